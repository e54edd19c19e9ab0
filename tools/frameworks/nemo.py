"""NeMo: writes overrides for a Megatron-Bridge recipe, as YAML.

Megatron-Bridge merges the file into a recipe's ConfigContainer and accepts known fields only
(megatron/bridge/training/config.py and training/utils/omegaconf_utils.py of 0.3.1).
"""

from tools.frameworks.exporting import Export, ExportJob, Settings, yaml_text
from tools.frameworks.megatron import (
    FSDP_STAGES,
    FSDP_STRATEGIES,
    RECOMPUTE_ARGUMENTS,
    check_replicas,
    degree_arguments,
    export_notes,
    uneven_stages,
)

# megatron/bridge/training/mixed_precision.py; without mixed precision a model is fp32.
MIXED_PRECISIONS = {
    "fp32": None,
    "fp16": "fp16_mixed",
    "bf16": "bf16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
NO_RECOMPUTE: Settings = {
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
}


def export_nemo(job: ExportJob) -> Export:
    """Writes every field, because a recipe has defaults of its own."""
    training, plan = job.scenario.training, job.plan
    if training.precision not in MIXED_PRECISIONS:
        raise job.refuse_precision("Megatron-Bridge", MIXED_PRECISIONS)
    overrides: Settings = {
        "model": _model(job),
        "train": {"micro_batch_size": plan.micro_batch_size, "global_batch_size": training.global_batch_size},
        "dataset": {"sequence_length": training.seq_len},
        "ddp": _ddp(job),
        "optimizer": {"use_distributed_optimizer": job.zero_stage > 0},
        **({"checkpoint": {"ckpt_format": "fsdp_dtensor"}} if job.zero_stage in FSDP_STAGES else {}),
        "mixed_precision": MIXED_PRECISIONS[training.precision],
    }
    comments = (
        f"Overrides of a Megatron-Bridge recipe for {job.scenario.cluster.num_devices} devices.",
        "Use: process_config_with_overrides(recipe_config, config_filepath='nemo.yaml')",
    )
    return Export("nemo", "nemo.yaml", yaml_text(comments, overrides), export_notes(job))


def _model(job: ExportJob) -> Settings:
    plan = job.plan
    recompute = {} if plan.recompute is None else NO_RECOMPUTE | RECOMPUTE_ARGUMENTS[plan.recompute]
    return {
        **degree_arguments(job),
        "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else None,
        "sequence_parallel": plan.sequence_parallel,
        **uneven_stages(job, "num_layers_in_last_pipeline_stage"),
        "seq_length": job.scenario.training.seq_len,
        **recompute,
    }


def _ddp(job: ExportJob) -> Settings:
    if job.zero_stage:
        check_replicas(job)
    settings: Settings = {
        "use_distributed_optimizer": job.zero_stage > 0,
        "num_distributed_optimizer_instances": job.replicas if job.zero_stage else 1,
        "use_megatron_fsdp": job.zero_stage in FSDP_STAGES,
    }
    if job.zero_stage in FSDP_STAGES:
        settings["data_parallel_sharding_strategy"] = FSDP_STRATEGIES[job.zero_stage]
    return settings
