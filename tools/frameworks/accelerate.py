"""Hugging Face Accelerate: the YAML of `accelerate launch --config_file`.

FSDP 2 with its parallelism_config, plain data parallelism, or DeepSpeed, the only one with ZeRO stage 1.
Names: accelerate/commands/config/config_args.py, commands/launch.py and parallelism_config.py of 1.15.0.
"""

from typing import Any

from tools.frameworks.deepspeed import zero_section
from tools.frameworks.writing import Export, Job, yaml_text

PRECISIONS = {"fp32": "no", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}


def accelerate_framework(job: Job) -> str:
    """Which engine under Accelerate runs the plan; refuses what no engine has."""
    _refuse_what_it_lacks(job)
    return _engine_name(job)


def _engine_name(job: Job) -> str:
    if job.scenario.training.framework == "deepspeed" or job.zero_stage == 1:
        return "deepspeed"
    return "torch-fsdp2"


def export_accelerate(job: Job) -> Export:
    _refuse_splits(job)
    cluster = job.scenario.cluster
    settings = {
        "compute_environment": "LOCAL_MACHINE",
        **_engine(job),
        "mixed_precision": PRECISIONS[job.scenario.training.precision],
        "num_machines": job.num_nodes,
        "num_processes": cluster.num_devices,
        "machine_rank": 0,
        "main_training_function": "main",
        "use_cpu": False,
    }
    comments = (
        f"Accelerate settings for {cluster.num_devices} devices.",
        "Use, on every node: accelerate launch --config_file accelerate.yaml --machine_rank N train.py",
    )
    return Export("accelerate", "accelerate.yaml", yaml_text(comments, settings), _notes(job))


def _refuse_what_it_lacks(job: Job) -> None:
    plan, precision = job.plan, job.scenario.training.precision
    if precision not in PRECISIONS:
        raise job.refuse_precision("Accelerate", PRECISIONS)
    if plan.pp > 1:
        raise job.refuse(
            "pp", "Accelerate trains without a pipeline; must be 1 (megatron and torchtitan have one)"
        )
    if plan.ep > 1:
        raise job.refuse("ep", "Accelerate's parallelism_config has no expert axis; must be 1")
    if plan.recompute == "selective":
        raise job.refuse("recompute", "Accelerate checkpoints whole layers; must be none or full")


def _refuse_splits(job: Job) -> None:
    plan = job.plan
    if _engine_name(job) == "deepspeed":
        for field in ("tp", "cp"):
            if getattr(plan, field) > 1:
                raise job.refuse(field, "Accelerate with DeepSpeed runs ZeRO alone; must be 1")
    elif job.zero_stage == 0 and plan.tp * plan.cp > 1:
        reason = "Accelerate composes tp and cp with FSDP only; must be 2 or 3, with dp_shard above 1"
        raise job.refuse("zero_stage", reason)
    elif job.zero_stage and plan.cp > 1 and (plan.dp_shard % plan.cp or plan.dp_shard == plan.cp):
        reason = (
            f"FSDP shards over dp_shard and cp together; must be a multiple of cp ({plan.cp}) and above it"
        )
        raise job.refuse("dp_shard", reason)


def _engine(job: Job) -> dict[str, Any]:
    if _engine_name(job) == "deepspeed":
        return {"distributed_type": "DEEPSPEED", "deepspeed_config": _deepspeed(job)}
    if job.zero_stage == 0:
        return {"distributed_type": "MULTI_GPU" if job.plan.dp > 1 else "NO"}
    return {"distributed_type": "FSDP", "fsdp_config": _fsdp(job), "parallelism_config": _parallelism(job)}


def _deepspeed(job: Job) -> dict[str, Any]:
    if "zero_hpz_partition_size" in zero_section(job):
        reason = "Accelerate's deepspeed_config has no hpZ; must be dp (or use --format deepspeed)"
        raise job.refuse("dp_shard", reason)
    return {
        "gradient_accumulation_steps": job.micro_batches,
        "zero_stage": job.zero_stage,
        "zero3_init_flag": job.zero_stage == 3,
    }


def _fsdp(job: Job) -> dict[str, Any]:
    section: dict[str, Any] = {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": job.zero_stage == 3,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    if job.plan.recompute is not None:
        section["fsdp_activation_checkpointing"] = job.plan.recompute == "full"
    return section


def _parallelism(job: Job) -> dict[str, Any]:
    plan = job.plan
    shard = plan.dp_shard // plan.cp
    sizes = {"dp_replicate": plan.dp // shard, "dp_shard": shard, "tp": plan.tp, "cp": plan.cp}
    return {f"parallelism_config_{name}_size": size for name, size in sizes.items()}


def _notes(job: Job) -> tuple[str, ...]:
    plan = job.plan
    told = [
        f"in the script: a batch of {plan.micro_batch_size} a device and "
        f"Accelerator(gradient_accumulation_steps={job.micro_batches})"
    ]
    if job.scenario.training.precision == "fp8":
        told.append("fp8 needs a backend: add an fp8_config, or install torchao or Transformer Engine")
    if plan.recompute is None:
        told.append("the plan does not state recompute: the script decides")
    elif plan.recompute == "full" and job.zero_stage == 0:
        told.append("call gradient_checkpointing_enable() on the model")
    return tuple(told)
