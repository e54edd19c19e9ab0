"""NeMo: overrides for a Megatron-Bridge recipe, as YAML.

Megatron-Bridge merges the file into a recipe's ConfigContainer and accepts known fields only
(megatron/bridge/training/config.py and training/utils/omegaconf_utils.py of 0.3.1).
"""

from typing import Any

from tools.frameworks.megatron import (
    RECOMPUTE_ARGUMENTS,
    SHARDING,
    check_replicas,
    degrees,
    notes,
    uneven_stages,
)
from tools.frameworks.writing import Export, Job, yaml_text

# megatron/bridge/training/mixed_precision.py; without mixed precision a model is fp32.
MIXED_PRECISIONS = {
    "fp32": None,
    "fp16": "fp16_mixed",
    "bf16": "bf16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
NO_RECOMPUTE = {"recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None}


def export_nemo(job: Job) -> Export:
    """Every field is written, since a recipe has defaults of its own."""
    training, plan = job.scenario.training, job.plan
    if training.precision not in MIXED_PRECISIONS:
        raise job.refuse_precision("Megatron-Bridge", MIXED_PRECISIONS)
    overrides = {
        "model": _model(job),
        "train": {"micro_batch_size": plan.micro_batch_size, "global_batch_size": training.global_batch_size},
        "dataset": {"sequence_length": training.seq_len},
        "ddp": _ddp(job),
        "optimizer": {"use_distributed_optimizer": job.zero_stage > 0},
        **({"checkpoint": {"ckpt_format": "fsdp_dtensor"}} if job.zero_stage in SHARDING else {}),
        "mixed_precision": MIXED_PRECISIONS[training.precision],
    }
    comments = (
        f"Overrides of a Megatron-Bridge recipe for {job.scenario.cluster.num_devices} devices.",
        "Use: process_config_with_overrides(recipe_config, config_filepath='nemo.yaml')",
    )
    return Export("nemo", "nemo.yaml", yaml_text(comments, overrides), notes(job))


def _model(job: Job) -> dict[str, Any]:
    plan = job.plan
    recompute = {} if plan.recompute is None else NO_RECOMPUTE | RECOMPUTE_ARGUMENTS[plan.recompute]
    return {
        **degrees(job),
        "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else None,
        "sequence_parallel": plan.sequence_parallel,
        **uneven_stages(job, "num_layers_in_last_pipeline_stage"),
        "seq_length": job.scenario.training.seq_len,
        **recompute,
    }


def _ddp(job: Job) -> dict[str, Any]:
    if job.zero_stage:
        check_replicas(job)
    settings: dict[str, Any] = {
        "use_distributed_optimizer": job.zero_stage > 0,
        "num_distributed_optimizer_instances": job.replicas if job.zero_stage else 1,
        "use_megatron_fsdp": job.zero_stage in SHARDING,
    }
    if job.zero_stage in SHARDING:
        settings["data_parallel_sharding_strategy"] = SHARDING[job.zero_stage]
    return settings
