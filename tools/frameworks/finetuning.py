"""What the tools on top of Hugging Face's Trainer share: adapters, engines of data parallelism, batches.

Accelerate, axolotl, LLaMA-Factory and TRL name a model by its hub id and shard it by DDP, FSDP or DeepSpeed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import JsonValue

from tools.errors import InputError
from tools.frameworks.importing import NO_SHARDING, Degrees, Draft, ImportOptions, Sharding, stated_plan
from tools.frameworks.reading import JsonObject, SettingsReader

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
    sharding = Sharding(run.engine.zero_stage, shard) if run.engine.zero_stage and shard > 1 else NO_SHARDING
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
