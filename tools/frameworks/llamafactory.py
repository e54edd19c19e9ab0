"""LLaMA-Factory: reads its YAML.

Names: src/llamafactory/hparams and src/llamafactory/v1/config of hiyouga/LLaMA-Factory.
"""

from dataclasses import replace

from tools.errors import InputError
from tools.frameworks.exporting import ExportJob, SettingsTree
from tools.frameworks.format import SURE, Format, Keys, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions, divide_devices, stated_plan
from tools.frameworks.megatron import degree_arguments, recompute_arguments
from tools.frameworks.reading import SettingsReader, parse_text
from tools.frameworks.trainer import (
    BATCH_SETTING,
    DEFAULT_MICRO_BATCH_SIZE,
    Engine,
    TrainerRun,
    deepspeed_engine,
    fsdp_engine,
    read_lora,
    trainer_settings,
)
from tools.scenario.spec import LoraSpec

OWN_KEYS = (
    "finetuning_type", "cutoff_len", "template", "stage", "dist_config", "peft_config", "quant_config",
)  # fmt: skip
STAGES = ("pt", "sft")
PRICED_BITS = (None, 4, 8)
MEGATRON_DEGREES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


class LlamaFactory(Format):
    name = "llamafactory"
    framework = "huggingface"
    reads = "YAML, also LoRA"

    def certainty(self, file: UnknownFile) -> int:
        return SURE if file.has_any("model_name_or_path", "model") and file.has_any(*OWN_KEYS) else 0

    def settings(self, job: ExportJob, names: Keys) -> SettingsTree:
        if MEGATRON_DEGREES[0] in names:
            plan = job.plan
            return {
                **degree_arguments(job),
                **recompute_arguments(plan),
                **({"virtual_pipeline_model_parallel_size": plan.vpp} if plan.vpp > 1 else {}),
                **({"use_distributed_optimizer": True} if job.zero_stage else {}),
                BATCH_SETTING: plan.micro_batch_size,
                "gradient_accumulation_steps": job.micro_batches,
            }
        batch = "micro_batch_size" if "micro_batch_size" in names else BATCH_SETTING
        return {
            **trainer_settings(job, batch),
            **({} if job.plan.recompute == "full" else {"disable_gradient_checkpointing": True}),
        }

    def read(self, text: str, options: ImportOptions) -> Draft:
        settings = SettingsReader(parse_text(text, "YAML"), "llamafactory")
        _refuse_no_training(settings)
        if (experts := settings.integer("dist_config.ep_size") or 1) > 1:
            rule = "not supported: expert parallelism of LLaMA-Factory 1"
            raise InputError("llamafactory: dist_config.ep_size", experts, rule)
        bits = settings.integer("quantization_bit") or settings.integer("quant_config.quantization_bit")
        is_priced = bits in PRICED_BITS
        stated = {name: settings.flag(name) for name in ("bf16", "fp16", "pure_bf16", "fp8")}
        settings.used("mixed_precision")
        run = TrainerRun(
            engine=_engine(settings),
            precision="fp8" if stated["fp8"] else "fp16" if stated["fp16"] else "bf16",
            micro_batch_size=settings.integer(BATCH_SETTING)
            or settings.integer("micro_batch_size")
            or DEFAULT_MICRO_BATCH_SIZE,
            accumulation=settings.integer("gradient_accumulation_steps") or 1,
            seq_len=settings.integer("cutoff_len"),
            cp=settings.integer("cp_size") or 1,
            recompute="none" if settings.flag("disable_gradient_checkpointing") else "full",
            model_name=settings.text("model_name_or_path") or settings.text("model") or "",
            lora=_adapter(settings, bits if is_priced else None),
        )
        draft = run.draft(settings, options)
        if settings.has(MEGATRON_DEGREES[0]):
            draft = _with_megatron(draft, settings, run)
        notes = () if is_priced else (f"frozen weights of {bits} bits are not modelled",)
        return replace(draft, notes=notes, unused=settings.unused())


def _refuse_no_training(settings: SettingsReader) -> None:
    stage, kind, exported = (settings.text(name) for name in ("stage", "finetuning_type", "export_dir"))
    if exported is not None or settings.has("peft_config.export_dir"):
        raise InputError(
            "llamafactory: export_dir", exported, "must be a training run, not an export of weights"
        )
    if settings.flag("do_train") is False or settings.has("infer_backend"):
        rule = "must be a training run, not inference or evaluation"
        raise InputError("llamafactory: do_train", False, rule)
    if stage not in (None, *STAGES):
        rule = f"not supported: several models in one run; allowed: {', '.join(STAGES)}"
        raise InputError("llamafactory: stage", stage, rule)
    if kind == "freeze":
        raise InputError("llamafactory: finetuning_type", kind, "not supported: layers trained in part")


def _engine(settings: SettingsReader) -> Engine:
    path, fsdp = settings.text("deepspeed"), settings.text("fsdp")
    name = settings.text("dist_config.name")
    if path:
        return deepspeed_engine(path, "llamafactory: deepspeed")
    if name == "deepspeed":
        return deepspeed_engine(settings.text("dist_config.config_file") or "", "llamafactory: dist_config")
    if fsdp or name in ("fsdp", "fsdp2"):
        return fsdp_engine(fsdp or "")
    return Engine()


def _adapter(settings: SettingsReader, weight_bits: int | None) -> LoraSpec | None:
    kind = settings.text("finetuning_type") or settings.text("peft_config.name")
    rank = settings.integer("lora_rank") or settings.integer("peft_config.r")
    target = settings.text("lora_target") or settings.text("peft_config.target_modules") or "all"
    if kind in ("full", None):
        return None
    if kind not in ("lora", "oft"):
        raise InputError("llamafactory: finetuning_type", kind, "not supported; allowed: full, lora")
    return read_lora(rank, [name.strip(" []'") for name in target.split(",")], weight_bits)


def _with_megatron(draft: Draft, settings: SettingsReader, run: TrainerRun) -> Draft:
    """Its Megatron trainer states degrees of its own."""
    tp, pp, cp = (settings.integer(name) or 1 for name in MEGATRON_DEGREES)
    dp = divide_devices(draft.plan.dp if draft.plan else 1, tp * pp * cp)
    micro, granularity = run.micro_batch_size or 1, settings.text("recompute_granularity")
    plan = stated_plan(
        (tp, pp, cp, dp),
        int(bool(settings.flag("use_distributed_optimizer"))),
        dp * cp,
        ep=settings.integer("expert_model_parallel_size") or 1,
        micro_batch_size=micro,
        vpp=settings.integer("virtual_pipeline_model_parallel_size") or 1,
        sequence_parallel=bool(settings.flag("sequence_parallel")) and tp > 1,
        recompute=granularity if granularity in ("full", "selective") else "none",
    )
    return replace(
        draft, plan=plan, global_batch_size=micro * run.accumulation * dp, framework="megatron-core"
    )
