"""DeepSpeed's ds_config JSON (deepspeed/runtime/config.py of 0.19.8)."""

from typing import Any

from tools.errors import InputError
from tools.imports.assemble import Draft, Given, divide_devices, get_num_devices
from tools.imports.reading import parse_json
from tools.imports.settings import Settings

RECOMPUTE_NOTE = (
    "recompute is left open: DeepSpeed's model code decides it (state it with --set plan.recompute=none)"
)


def read_deepspeed(text: str, given: Given) -> Draft:
    settings = Settings(parse_json(text), "deepspeed")
    sizes: dict[str, Any] = {
        "tp": settings.integer("tensor_parallel.autotp_size", least=0) or 1,
        "pp": settings.integer("pipeline.stages") or 1,
        "cp": settings.integer("sequence_parallel_size") or 1,
        "ep": _expert_size(settings, "autoep_size"),
        "etp": _expert_size(settings, "expert_tensor_parallel_size"),
    }
    batch = _batch(settings, sizes, given)
    sizes["dp"] = batch.pop("dp")
    training = {
        "seq_len": None,
        "global_batch_size": batch.pop("global_batch_size"),
        "precision": _precision(settings),
    }
    recompute, notes = _recompute(settings)
    plan = sizes | batch | _zero(settings, sizes)
    plan |= {"vpp": 1, "sequence_parallel": False, "recompute": recompute}
    notes += [f"not used: {name}" for name in settings.unread()]
    num_devices = sizes["tp"] * sizes["pp"] * sizes["cp"] * sizes["dp"]
    return Draft(plan, training, num_devices=num_devices, notes=notes)


def _expert_size(settings: Settings, name: str) -> int:
    size = settings.integer(f"expert_parallel.{name}") or 1
    return size if settings.flag("expert_parallel.enabled") else 1


def _batch(settings: Settings, sizes: dict[str, Any], given: Given) -> dict[str, int]:
    """Two of train batch, micro-batch and accumulation fix the third, given the data ranks."""
    total = given.global_batch_size or settings.integer("train_batch_size")
    micro = given.micro_batch_size or settings.integer("train_micro_batch_size_per_gpu")
    steps = settings.integer("gradient_accumulation_steps")
    if total and micro and steps and given.num_devices is None:
        return {"dp": _exactly(total, micro * steps), "micro_batch_size": micro, "global_batch_size": total}
    why = "the file alone does not tell the data-parallel size"
    dp = divide_devices(get_num_devices(given, why), sizes["tp"] * sizes["pp"] * sizes["cp"])
    if total is None and micro:
        total = micro * (steps or 1) * dp
    if micro is None and total:
        micro = _exactly(total, (steps or 1) * dp)
    if total is None or micro is None:
        allowed = "the file must state it, or give --micro-batch-size or --global-batch-size"
        raise InputError("deepspeed: train_micro_batch_size_per_gpu", None, allowed)
    return {"dp": dp, "micro_batch_size": micro, "global_batch_size": total}


def _exactly(total: int, divisor: int) -> int:
    if total % divisor:
        raise InputError("deepspeed: train_batch_size", total, f"must be a multiple of {divisor}")
    return total // divisor


def _zero(settings: Settings, sizes: dict[str, Any]) -> dict[str, int]:
    stage = settings.integer("zero_optimization.stage", least=0) or 0
    part = settings.integer("zero_optimization.zero_hpz_partition_size", least=0) or 1
    whole = sizes["dp"] * sizes["cp"]
    if stage == 0 or whole == 1:
        return {"zero_stage": 0, "dp_shard": 1}
    return {"zero_stage": stage, "dp_shard": part if part > 1 and stage == 3 else whole}


def _precision(settings: Settings) -> str:
    for name in ("bf16", "fp16"):
        if settings.flag(f"{name}.enabled"):
            return name
    return "bf16" if settings.flag("torch_autocast.enabled") else "fp32"


def _recompute(settings: Settings) -> tuple[str | None, list[str]]:
    names: list[Any] = [
        settings.integer("activation_checkpointing.number_checkpoints", least=0),
        settings.flag("activation_checkpointing.partition_activations"),
        settings.flag("activation_checkpointing.cpu_checkpointing"),
        settings.integer("pipeline.activation_checkpoint_interval", least=0),
    ]
    return ("full", []) if any(names) else (None, [RECOMPUTE_NOTE])
