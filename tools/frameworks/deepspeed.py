"""DeepSpeed: writes and reads ds_config JSON.

Names: deepspeed/runtime/config.py, runtime/zero/config.py, runtime/tensor_parallel/config.py and
module_inject/auto_ep_config.py of 0.19.8.
"""

from typing import Any

from tools.errors import InputError
from tools.frameworks.assemble import Draft, Given, divide_devices, get_num_devices
from tools.frameworks.reading import Settings, parse_json
from tools.frameworks.writing import Export, Job, json_text

PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp16": {"fp16": {"enabled": True}},
    "bf16": {"bf16": {"enabled": True}},
}


def export_deepspeed(job: Job) -> Export:
    """The whole of a plan, though DeepSpeed reads some of it from the model's code (see the notes)."""
    training, plan = job.scenario.training, job.plan
    if training.precision not in PRECISIONS:
        raise job.refuse_precision("ds_config", PRECISIONS)
    if plan.recompute == "selective":
        raise job.refuse("recompute", "DeepSpeed checkpoints whole layers; must be none or full")
    if plan.sequence_parallel:
        raise job.refuse("sequence_parallel", "AutoTP does not split the sequence; must be false")
    settings = {
        "train_batch_size": training.global_batch_size,
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": job.micro_batches,
        "zero_optimization": zero_section(job),
        **PRECISIONS[training.precision],
        **_parallel_sections(job),
    }
    if plan.recompute == "full":
        layers = job.scenario.model.num_hidden_layers
        settings["activation_checkpointing"] = {"number_checkpoints": layers}
    return Export("deepspeed", "ds_config.json", json_text(settings), _notes(job))


def zero_section(job: Job) -> dict[str, Any]:
    section: dict[str, Any] = {"stage": job.zero_stage}
    # Ulysses ranks hold the same weights, and ZeRO shards over them too: the whole is dp * cp.
    if job.zero_stage == 3 and job.plan.dp_shard not in (job.plan.dp, job.plan.dp * job.plan.cp):
        section["zero_hpz_partition_size"] = job.plan.dp_shard
    return section


def _parallel_sections(job: Job) -> dict[str, Any]:
    plan, sections = job.plan, dict[str, Any]()
    if plan.tp > 1:
        sections["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.pp > 1:
        sections["pipeline"] = {"stages": plan.pp}
    if plan.cp > 1:
        sections["sequence_parallel_size"] = plan.cp
    if plan.ep > 1 or (plan.etp > 1 and job.scenario.model.is_moe):
        sections["expert_parallel"] = {
            "enabled": True,
            "autoep_size": plan.ep,
            "expert_tensor_parallel_size": plan.etp,
        }
    return sections


def _notes(job: Job) -> tuple[str, ...]:
    plan = job.plan
    told = {
        f"build the model as PipelineModule(num_stages={plan.pp}): DeepSpeed takes the stages from there": (
            plan.pp > 1
        ),
        "the model must use deepspeed.sequence (Ulysses) for sequence_parallel_size to act": plan.cp > 1,
        "the model must call deepspeed.checkpointing (or gradient_checkpointing_enable) on every layer": (
            plan.recompute == "full"
        ),
        "leave gradient checkpointing off in the model": plan.recompute == "none",
        "the plan does not state recompute: the model's code decides": plan.recompute is None,
        f"zero_hpz_partition_size keeps weights whole in {plan.dp_shard} ranks; gradients and optimizer "
        "state are still sharded over all": "zero_hpz_partition_size" in zero_section(job),
    }
    return tuple(note for note, holds in told.items() if holds)


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
