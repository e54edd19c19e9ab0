"""What tools on top of Hugging Face's Trainer share: adapters, engines of data parallelism, batches.

They name a model by its hub id and shard it by DDP, FSDP or DeepSpeed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tools.errors import InputError
from tools.frameworks.exporting import ExportJob, SettingsTree
from tools.frameworks.importing import (
    Draft,
    ImportOptions,
    TrainingFields,
    divide_devices,
    read_levers,
    stated_plan,
)
from tools.frameworks.reading import SettingsReader
from tools.scenario.fields import build
from tools.scenario.spec import LoraSpec

_ATTENTION_TARGET = re.compile(
    r"(q|k|v|o|qkv|query|key|value|self_attn|attn|attention|out|c_attn|dense)\b|_proj"
)
_MLP_TARGET = re.compile(r"gate|up|down|mlp|fc|w1|w2|w3|expert|dense_h_to_4h|c_fc|in_proj")
_ONLY_ATTENTION = re.compile(r"^(.*[._])?(q|k|v|o|qkv|query|key|value)(_proj)?$")
_STAGE = re.compile(r"(?:zero|stage|z)[_-]?([0-3])", re.IGNORECASE)
DEFAULT_LORA_RANK = 8
"""peft's own default."""
BATCH_SETTING = "per_device_train_batch_size"
DEFAULT_MICRO_BATCH_SIZE = 8
"""The default of transformers' TrainingArguments."""
FSDP_WORDS = {2: "shard_grad_op", 3: "full_shard"}
"""The words of transformers/trainer_utils.py (FSDPOption) for the ZeRO stages."""
HOST_DEVICES = ("cpu", "nvme")
DEEPSPEED = "deepspeed"


@dataclass(frozen=True, slots=True)
class Engine:
    """How the weights are shared between data-parallel ranks."""

    zero_stage: int = 0
    offload: bool = False
    framework: str | None = None
    """If it is not the one that the file belongs to."""
    reshards: bool | None = None
    """Whether weights leave the device between forward and backward."""


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
    lora: LoraSpec | None = None

    def draft(self, settings: SettingsReader, options: ImportOptions) -> Draft:
        """The scenario's parts; the number of devices gives the data-parallel size."""
        devices = options.num_devices or self.num_devices
        if devices is None:
            devices = options.get_num_devices("how many devices the job is launched on")
        dp = divide_devices(devices, self.tp * self.cp, "tp * cp")
        micro = options.get_micro_batch_size(self.micro_batch_size)
        plan = stated_plan(
            (self.tp, 1, self.cp, dp),
            self.engine.zero_stage,
            self.dp_shard or dp * self.cp,
            micro_batch_size=micro,
            recompute=self.recompute,
            reshard_after_forward=self.engine.reshards,
        )
        training: TrainingFields = {"lora": self.lora} if self.lora else {}
        for framework in ("huggingface", "accelerate"):  # either may start the other
            training |= read_levers(settings, framework)
        if settings.text("activation_offloading") in ("True", "true"):  # of TRL and Axolotl
            training["activation_offload"] = True
        return Draft(
            plan,
            self.precision,
            seq_len=self.seq_len,
            global_batch_size=options.global_batch_size or micro * self.accumulation * dp,
            training=training | ({"optimizer_offload": True} if self.engine.offload else {}),
            model_name=self.model_name,
            framework=self.engine.framework,
            unused=settings.unused(),
        )


def trainer_settings(job: ExportJob, batch: str = BATCH_SETTING) -> SettingsTree:
    """What a trainer's file says of batch and sharding."""
    plan, stage = job.plan, job.zero_stage
    if plan.tp * plan.pp * plan.cp > 1 or plan.is_hybrid_sharded or stage == 1:
        raise job.refuse("tp", "the file states data parallelism by DDP or FSDP over all ranks only")
    is_fsdp = stage and job.scenario.training.framework != DEEPSPEED
    return {
        batch: plan.micro_batch_size,
        "gradient_accumulation_steps": job.micro_batches,
        **({"fsdp": f"{FSDP_WORDS[stage]} auto_wrap"} if is_fsdp else {}),
    }


def fsdp_engine(words: str) -> Engine:
    """From the words of TrainingArguments' `fsdp`."""
    return Engine(2 if FSDP_WORDS[2] in words else 3, "offload" in words)


def deepspeed_engine(path: str, setting: str) -> Engine:
    """The stage is in the file's name only: the path leads to another file."""
    stage = _STAGE.search(path)
    if stage is None:
        raise InputError(
            setting, path, "the stage is in another file; give plan.zero_stage=3, with plan.dp_shard=N"
        )
    return Engine(int(stage[1]), "offload" in path.lower(), DEEPSPEED)


def read_lora(rank: int | None, modules: Iterable[object], weight_bits: int | None = None) -> LoraSpec:
    """The parts of a layer that have adapters, by the names of their modules or a pattern of them."""
    names = [str(name).lower() for name in modules]
    attention = any(_ATTENTION_TARGET.search(name) for name in names if not _MLP_TARGET.search(name))
    attention = attention or any("|q|" in name or "(q" in name or "self_attn" in name for name in names)
    mlp = any(_MLP_TARGET.search(name) for name in names if not _ONLY_ATTENTION.match(name))
    if not names or any(name in ("all", "all-linear", "all_linear") for name in names):
        attention = mlp = True
    parts = (("attention", attention or not mlp), ("mlp", mlp))
    fields = {"rank": rank or DEFAULT_LORA_RANK, "targets": tuple(part for part, used in parts if used)}
    return build(LoraSpec, fields | ({"weight_bits": weight_bits} if weight_bits else {}), "training.lora.")


def loaded_bits(settings: SettingsReader) -> int | None:
    """QLoRA: the bits of the frozen weights, by the names of transformers' quantization; None if they keep
    their own."""
    in_4, in_8 = settings.flag("load_in_4bit"), settings.flag("load_in_8bit")
    return 4 if in_4 else 8 if in_8 else None
