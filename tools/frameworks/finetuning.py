"""axolotl, LLaMA-Factory and TRL, tools on top of Hugging Face's Trainer: reads their YAML, and the arguments
of TRL's scripts; and what they share with Accelerate: adapters, engines of data parallelism, batches.

They name a model by its hub id and shard it by DDP, FSDP or DeepSpeed. Names:
src/axolotl/utils/schemas/config.py of axolotl-ai-cloud/axolotl; src/llamafactory/hparams and
src/llamafactory/v1/config of hiyouga/LLaMA-Factory; trl/scripts, trl/trainer/sft_config.py and
model_config.py, and transformers' TrainingArguments.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pydantic import JsonValue

from tools.errors import InputError
from tools.frameworks.importing import Degrees, Draft, ImportOptions, Sharding, stated_plan
from tools.frameworks.reading import JsonObject, SettingsReader, parse_yaml
from tools.frameworks.shell import has_options, parse_arguments

_ATTENTION_TARGET = re.compile(
    r"(q|k|v|o|qkv|query|key|value|self_attn|attn|attention|out|c_attn|dense)\b|_proj"
)
_MLP_TARGET = re.compile(r"gate|up|down|mlp|fc|w1|w2|w3|expert|dense_h_to_4h|c_fc|in_proj")
_ONLY_ATTENTION = re.compile(r"^(.*[._])?(q|k|v|o|qkv|query|key|value)(_proj)?$")
_STAGE = re.compile(r"(?:zero|stage|z)[_-]?([0-3])", re.IGNORECASE)
DEFAULT_LORA_RANK = 8
"""peft's own default."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How the weights are shared between data-parallel ranks."""

    framework: str
    zero_stage: int
    offload: bool = False


DATA_PARALLEL = Engine("torch-fsdp2", 0)


def deepspeed_engine(path: str, option: str) -> Engine:
    """The stage is in the file's name only: the path leads to another file."""
    stage = _STAGE.search(path)
    if stage is None:
        reason = (
            "the stage is in another file; give it by --set plan.zero_stage=3, with --set plan.dp_shard=N"
        )
        raise InputError(option, path, reason)
    return Engine("deepspeed", int(stage[1]), "offload" in path.lower())


def lora_targets(names: Iterable[JsonValue]) -> list[JsonValue]:
    """The parts of a layer that have adapters, by the names of their modules or a pattern of them."""
    text = [str(name).lower() for name in names]
    if not text or any(name in ("all", "all-linear", "all_linear") for name in text):
        return ["attention", "mlp"]
    attention = any(_ATTENTION_TARGET.search(name) for name in text if not _MLP_TARGET.search(name))
    attention = attention or any("|q|" in name or "(q" in name or "self_attn" in name for name in text)
    mlp = any(_MLP_TARGET.search(name) for name in text if not _ONLY_ATTENTION.match(name))
    return [part for part, used in (("attention", attention), ("mlp", mlp)) if used] or ["attention"]


def lora_fields(rank: int | None, names: Iterable[JsonValue], weight_bits: int | None = None) -> JsonObject:
    bits: JsonObject = {"weight_bits": weight_bits} if weight_bits else {}
    return {"lora": {"rank": rank or DEFAULT_LORA_RANK, "targets": lora_targets(names), **bits}}


def loaded_bits(settings: SettingsReader) -> int | None:
    """QLoRA: the bits of the frozen weights, by the names of transformers' quantization; None if they keep
    their own."""
    in_4, in_8 = settings.flag("load_in_4bit"), settings.flag("load_in_8bit")
    return 4 if in_4 else 8 if in_8 else None


@dataclass(frozen=True, slots=True)
class TrainerRun:
    """A run of a trainer with data parallelism, as its file states it; None is not stated."""

    engine: Engine
    precision: str
    tp: int = 1
    cp: int = 1
    micro_batch_size: int | None = None
    accumulation: int = 1
    seq_len: int | None = None
    recompute: str | None = None
    num_devices: int | None = None
    dp_shard: int | None = None
    model_name: str = ""


def draft_of(run: TrainerRun, options: ImportOptions, training: JsonObject, notes: tuple[str, ...]) -> Draft:
    """The scenario's parts; the number of devices gives the data-parallel size."""
    devices = options.num_devices or run.num_devices
    if devices is None:
        devices = options.get_num_devices("how many devices the job is launched on")
    if devices % (run.tp * run.cp):
        raise InputError("--num-devices", devices, f"must be a multiple of tp * cp ({run.tp * run.cp})")
    dp = devices // (run.tp * run.cp)
    degrees = Degrees(run.tp, 1, run.cp, dp)
    micro = options.get_micro_batch_size(run.micro_batch_size)
    shard = run.dp_shard or dp * run.cp
    sharding = Sharding.over(run.engine.zero_stage, shard)
    total = options.global_batch_size or micro * run.accumulation * dp
    plan = stated_plan(
        degrees,
        sharding,
        ep=1,
        micro_batch_size=micro,
        vpp=1,
        sequence_parallel=False,
        recompute=run.recompute,
    )
    offload: JsonObject = {"optimizer_offload": True} if run.engine.offload else {}
    return Draft(
        plan,
        run.precision,
        seq_len=run.seq_len,
        global_batch_size=total,
        num_devices=degrees.num_devices,
        training={**training, **offload},
        model_name=run.model_name,
        framework=run.engine.framework,
        notes=notes,
    )


OTHER_TRL_TRAINERS = (
    "dpo",
    "grpo",
    "ppo",
    "kto",
    "orpo",
    "rloo",
    "reward",
    "gkd",
    "online_dpo",
    "cpo",
    "xpo",
    "nash_md",
)
TRAINER_MICRO_BATCH_SIZE = 8  # transformers' TrainingArguments
TRL_SEQ_LEN = 1024
TRL_LORA_RANK = 16  # ModelConfig.lora_r


def import_trl(text: str, options: ImportOptions) -> Draft:
    is_arguments = has_options(text)
    if is_arguments:
        _refuse_other_trainers(text)
    values = parse_arguments(text, options.variables) if is_arguments else parse_yaml(text)
    settings = SettingsReader(values, "trl", bare_flags=is_arguments)
    for name in ("num_generations", "beta", "reward_funcs"):
        if settings.has(name):
            raise InputError(
                f"trl: {name}", settings.text(name), "not supported: training with several models (RL)"
            )
    path, fsdp = settings.text("deepspeed"), settings.text("fsdp")
    engine = deepspeed_engine(path, "trl: deepspeed") if path else DATA_PARALLEL
    if fsdp:
        engine = Engine("torch-fsdp", 3, "offload" in fsdp)
    half = [name for name in ("fp16", "bf16") if settings.flag(name)]
    dtype = settings.text("dtype") or settings.text("torch_dtype")
    checkpoints = settings.flag("gradient_checkpointing")
    run = TrainerRun(
        engine=engine,
        precision=half[0] if half else {"float32": "fp32", "float16": "fp16"}.get(dtype or "", "bf16"),
        micro_batch_size=settings.integer("per_device_train_batch_size") or TRAINER_MICRO_BATCH_SIZE,
        accumulation=settings.integer("gradient_accumulation_steps") or 1,
        seq_len=settings.integer("max_length") or settings.integer("max_seq_length") or TRL_SEQ_LEN,
        # SFTConfig turns it on.
        recompute="none" if checkpoints is False else "full",
        model_name=settings.text("model_name_or_path") or "",
    )
    rank, names = settings.integer("lora_r"), settings.items("lora_target_modules")
    target = settings.text("lora_target_modules")
    adapter = settings.flag("use_peft")
    bits = loaded_bits(settings)
    training = lora_fields(rank or TRL_LORA_RANK, names or [target or "all"], bits) if adapter else {}
    return draft_of(run, options, training, settings.unused_notes())


def _refuse_other_trainers(text: str) -> None:
    for name in OTHER_TRL_TRAINERS:
        if f"trl {name}" in text or f"{name}.py" in text:
            raise InputError(
                "FILE", f"trl {name}", "not supported: training with several models; allowed: sft"
            )


AXOLOTL_REFUSED = {
    "reward_model": "a reward model",
    "process_reward_model": "a reward model",
    "vllm": "a run with a generating server",
}
FULL_SHARD = ("FULL_SHARD", "HYBRID_SHARD")


def import_axolotl(text: str, options: ImportOptions) -> Draft:
    settings = SettingsReader(parse_yaml(text), "axolotl")
    for name, what in AXOLOTL_REFUSED.items():
        if settings.flag(name) if name != "vllm" else settings.has(name):
            raise InputError(f"axolotl: {name}", settings.text(name), f"not supported: {what}")
    if any("diffusion" in str(plugin).lower() for plugin in settings.items("plugins")):
        raise InputError(
            "axolotl: plugins", "diffusion", "not supported: training of a diffusion language model"
        )
    if settings.has("rl") and settings.text("rl") not in ("", "None"):
        raise InputError("axolotl: rl", settings.text("rl"), "not supported: several models in one run (RL)")
    run = TrainerRun(
        engine=_axolotl_engine(settings),
        precision=_axolotl_precision(settings),
        tp=settings.integer("tensor_parallel_size") or 1,
        cp=settings.integer("context_parallel_size") or settings.integer("sequence_parallel_degree") or 1,
        micro_batch_size=settings.integer("micro_batch_size"),
        accumulation=settings.integer("gradient_accumulation_steps") or 1,
        seq_len=settings.integer("sequence_len"),
        recompute="full" if _axolotl_checkpoints(settings) else "none",
        dp_shard=settings.integer("dp_shard_size"),
        model_name=settings.text("base_model") or "",
    )
    return draft_of(run, options, _axolotl_adapter(settings), settings.unused_notes())


def _axolotl_engine(settings: SettingsReader) -> Engine:
    path = settings.text("deepspeed")
    version = settings.integer("fsdp_version") or settings.integer("fsdp_config.fsdp_version")
    strategy = settings.text("fsdp_config.fsdp_sharding_strategy") or settings.text(
        "fsdp_config.sharding_strategy"
    )
    old = [str(word) for word in settings.items("fsdp")]
    reshards = settings.flag("fsdp_config.reshard_after_forward")
    offload = bool(
        settings.flag("fsdp_config.offload_params") or settings.flag("fsdp_config.fsdp_offload_params")
    )
    if path:
        return deepspeed_engine(path, "axolotl: deepspeed")
    if old or version or strategy or settings.has("fsdp_config.auto_wrap_policy"):
        full = reshards is not False and (strategy in (None, *FULL_SHARD) or "full_shard" in old)
        return Engine("torch-fsdp2" if version == 2 else "torch-fsdp", 3 if full else 2, offload)
    return DATA_PARALLEL


def _axolotl_precision(settings: SettingsReader) -> str:
    if settings.flag("fp8"):
        return "fp8"
    stated = {name: settings.text(name) for name in ("bf16", "bfloat16", "fp16", "float16")}
    if stated["fp16"] == "True" or stated["float16"] == "True":
        return "fp16"
    return "fp32" if stated["bf16"] in ("False", "false") else "bf16"


def _axolotl_checkpoints(settings: SettingsReader) -> bool:
    return settings.text("gradient_checkpointing") not in (None, "False", "false")


def _axolotl_adapter(settings: SettingsReader) -> JsonObject:
    adapter = settings.text("adapter")
    rank, names, bits = (
        settings.integer("lora_r"),
        settings.items("lora_target_modules"),
        loaded_bits(settings),
    )
    if not names and settings.has("lora_target_modules"):
        names = [settings.text("lora_target_modules")]
    if settings.flag("lora_target_linear"):
        names = ["all"]
    if adapter in (None, "", "None"):
        return {}
    if adapter not in ("lora", "qlora"):
        raise InputError("axolotl: adapter", adapter, "not supported; allowed: lora, qlora")
    return lora_fields(rank, names, bits)


LLAMAFACTORY_STAGES = ("pt", "sft")


def import_llamafactory(text: str, options: ImportOptions) -> Draft:
    settings = SettingsReader(parse_yaml(text), "llamafactory")
    _refuse_no_training(settings)
    bits = _quantization_bits(settings)
    training = _llamafactory_adapter(settings, bits if bits in PRICED_BITS else None)
    notes = () if bits in PRICED_BITS else (f"frozen weights of {bits} bits are not modelled",)
    run = TrainerRun(
        engine=_llamafactory_engine(settings),
        precision=_llamafactory_precision(settings),
        micro_batch_size=settings.integer("per_device_train_batch_size")
        or settings.integer("micro_batch_size")
        or TRAINER_MICRO_BATCH_SIZE,
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
            "llamafactory: export_dir",
            settings.text("export_dir"),
            "must be a training run, not an export of weights",
        )
    if settings.flag("do_train") is False or settings.has("infer_backend"):
        raise InputError(
            "llamafactory: do_train", False, "must be a training run, not inference or evaluation"
        )
    if stage is not None and stage not in LLAMAFACTORY_STAGES:
        raise InputError(
            "llamafactory: stage",
            stage,
            f"not supported: several models in one run; allowed: {', '.join(LLAMAFACTORY_STAGES)}",
        )
    if kind == "freeze":
        raise InputError("llamafactory: finetuning_type", kind, "not supported: layers trained in part")


def _llamafactory_engine(settings: SettingsReader) -> Engine:
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
    plan = stated_plan(
        Degrees(tp, pp, cp, dp),
        Sharding.over(int(bool(settings.flag("use_distributed_optimizer"))), dp * cp),
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


def _llamafactory_precision(settings: SettingsReader) -> str:
    stated = {name: settings.flag(name) for name in ("bf16", "fp16", "pure_bf16", "fp8")}
    settings.used("mixed_precision")
    return "fp8" if stated["fp8"] else "fp16" if stated["fp16"] else "bf16"


PRICED_BITS = (None, 4, 8)


def _quantization_bits(settings: SettingsReader) -> int | None:
    return settings.integer("quantization_bit") or settings.integer("quant_config.quantization_bit")


def _llamafactory_adapter(settings: SettingsReader, weight_bits: int | None) -> JsonObject:
    kind = settings.text("finetuning_type") or settings.text("peft_config.name")
    rank = settings.integer("lora_rank") or settings.integer("peft_config.r")
    target = settings.text("lora_target") or settings.text("peft_config.target_modules") or "all"
    if kind in ("full", None):
        return {}
    if kind not in ("lora", "oft"):
        raise InputError("llamafactory: finetuning_type", kind, "not supported; allowed: full, lora")
    return lora_fields(rank, [name.strip(" []'") for name in target.split(",")], weight_bits)
