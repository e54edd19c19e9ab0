"""DeepSpeed: ds_config JSON.

Names: deepspeed/runtime/config.py, runtime/zero/config.py, runtime/tensor_parallel/config.py and
module_inject/auto_ep_config.py of 0.19.8.
"""

from typing import Any

from tools.export.record import Export, Job
from tools.export.text import json_text

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
