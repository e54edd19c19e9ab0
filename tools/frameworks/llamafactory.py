"""LLaMA-Factory: reads the YAML of `llamafactory-cli train`, of both of its trainers.

Names: src/llamafactory/hparams and src/llamafactory/v1/config of hiyouga/LLaMA-Factory.
"""

from dataclasses import replace

from tools.errors import InputError
from tools.frameworks.finetuning import (
    DATA_PARALLEL,
    Engine,
    TrainerRun,
    deepspeed_engine,
    draft_of,
    lora_fields,
)
from tools.frameworks.importing import Degrees, Draft, ImportOptions, Sharding, stated_plan
from tools.frameworks.reading import JsonObject, SettingsReader, parse_yaml

STAGES = ("pt", "sft")
DEFAULT_MICRO_BATCH_SIZE = 8  # transformers' TrainingArguments


def import_llamafactory(text: str, options: ImportOptions) -> Draft:
    settings = SettingsReader(parse_yaml(text), "llamafactory")
    _refuse_no_training(settings)
    bits = _quantization_bits(settings)
    training = _adapter(settings, bits if bits in PRICED_BITS else None)
    notes = () if bits in PRICED_BITS else (f"frozen weights of {bits} bits are not priced",)
    run = TrainerRun(
        engine=_engine(settings),
        precision=_precision(settings),
        micro_batch_size=settings.integer("per_device_train_batch_size")
        or settings.integer("micro_batch_size")
        or DEFAULT_MICRO_BATCH_SIZE,
        accumulation=settings.integer("gradient_accumulation_steps") or 1,
        seq_len=settings.integer("cutoff_len"),
        recompute="none" if settings.flag("disable_gradient_checkpointing") else "full",
        model_name=settings.text("model_name_or_path") or settings.text("model") or "",
    )
    draft = draft_of(run, options, training, ())
    if settings.has("tensor_model_parallel_size"):
        draft = _with_megatron(draft, settings, run)
    return replace(draft, notes=(*notes, *settings.unused_notes()))


def _refuse_no_training(settings: SettingsReader) -> None:
    stage, kind = settings.text("stage"), settings.text("finetuning_type")
    if settings.has("export_dir") or settings.has("peft_config.export_dir"):
        raise InputError(
            "llamafactory: export_dir", settings.text("export_dir"), "an export of weights, no training"
        )
    if settings.flag("do_train") is False or settings.has("infer_backend"):
        raise InputError("llamafactory: do_train", False, "no training")
    if stage is not None and stage not in STAGES:
        raise InputError(
            "llamafactory: stage",
            stage,
            f"not priced: several models in one run; allowed: {', '.join(STAGES)}",
        )
    if kind == "freeze":
        raise InputError("llamafactory: finetuning_type", kind, "not priced: layers trained in part")


def _engine(settings: SettingsReader) -> Engine:
    path, fsdp = settings.text("deepspeed"), settings.text("fsdp")
    name = settings.text("dist_config.name")
    if path:
        return deepspeed_engine(path, "llamafactory: deepspeed")
    if name == "deepspeed":
        return deepspeed_engine(settings.text("dist_config.config_file") or "", "llamafactory: dist_config")
    if fsdp or name in ("fsdp", "fsdp2"):
        return Engine("torch-fsdp2" if name == "fsdp2" else "torch-fsdp", 3, "offload" in (fsdp or ""))
    return DATA_PARALLEL


def _with_megatron(draft: Draft, settings: SettingsReader, run: TrainerRun) -> Draft:
    """Its Megatron trainer states degrees of its own."""
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    tp, pp, cp = (settings.integer(name) or 1 for name in names)
    devices = draft.num_devices or 1
    if devices % (tp * pp * cp):
        raise InputError(
            "--num-devices", devices, f"must be a multiple of the file's degrees ({tp * pp * cp})"
        )
    dp = devices // (tp * pp * cp)
    shards = bool(settings.flag("use_distributed_optimizer")) and dp * cp > 1
    plan = stated_plan(
        Degrees(tp, pp, cp, dp),
        Sharding(1, dp * cp) if shards else Sharding(0, 1),
        ep=settings.integer("expert_model_parallel_size") or 1,
        micro_batch_size=run.micro_batch_size or 1,
        vpp=settings.integer("virtual_pipeline_model_parallel_size") or 1,
        sequence_parallel=bool(settings.flag("sequence_parallel")) and tp > 1,
        recompute={"full": "full", "selective": "selective"}.get(
            settings.text("recompute_granularity") or "", "none"
        ),
    )
    total = (run.micro_batch_size or 1) * run.accumulation * dp
    return replace(draft, plan=plan, global_batch_size=total, framework="megatron-core")


def _precision(settings: SettingsReader) -> str:
    stated = {name: settings.flag(name) for name in ("bf16", "fp16", "pure_bf16", "fp8")}
    settings.used("mixed_precision")
    return "fp8" if stated["fp8"] else "fp16" if stated["fp16"] else "bf16"


PRICED_BITS = (None, 4, 8)


def _quantization_bits(settings: SettingsReader) -> int | None:
    return settings.integer("quantization_bit") or settings.integer("quant_config.quantization_bit")


def _adapter(settings: SettingsReader, weight_bits: int | None) -> JsonObject:
    kind = settings.text("finetuning_type") or settings.text("peft_config.name")
    rank = settings.integer("lora_rank") or settings.integer("peft_config.r")
    target = settings.text("lora_target") or settings.text("peft_config.target_modules") or "all"
    if kind in ("full", None):
        return {}
    if kind not in ("lora", "oft"):
        raise InputError("llamafactory: finetuning_type", kind, "not priced; allowed: full, lora")
    return lora_fields(rank, [name.strip(" []'") for name in target.split(",")], weight_bits)
