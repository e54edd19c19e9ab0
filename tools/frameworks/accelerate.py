"""Hugging Face Accelerate: writes and reads the YAML of `accelerate launch --config_file`.

FSDP 2 with its parallelism_config, plain data parallelism, or DeepSpeed, the only one with ZeRO stage 1.
Names: accelerate/commands/config/config_args.py, commands/launch.py and parallelism_config.py of 1.15.0.
"""

from tools.errors import InputError
from tools.frameworks.deepspeed import zero_section
from tools.frameworks.exporting import Export, ExportJob, Settings, first_names, yaml_text
from tools.frameworks.finetuning import DATA_PARALLEL, Engine, TrainerRun, deepspeed_engine, draft_of
from tools.frameworks.importing import Draft, ImportOptions
from tools.frameworks.reading import SettingsReader, parse_yaml

PRECISIONS = {"fp32": "no", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}


def engine_framework(job: ExportJob) -> str:
    """The framework whose rules apply: the engine that Accelerate runs the plan with."""
    _refuse_unsupported(job)
    return "deepspeed" if uses_deepspeed(job) else "torch-fsdp2"


def uses_deepspeed(job: ExportJob) -> bool:
    """Only DeepSpeed has ZeRO stage 1."""
    return job.scenario.training.framework == "deepspeed" or job.zero_stage == 1


def export_accelerate(job: ExportJob) -> Export:
    _refuse_unsupported_splits(job)
    cluster = job.scenario.cluster
    settings: Settings = {
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


def _refuse_unsupported(job: ExportJob) -> None:
    plan = job.plan
    if job.scenario.training.precision not in PRECISIONS:
        raise job.refuse_precision("Accelerate", PRECISIONS)
    if plan.pp > 1:
        raise job.refuse("pp", "Accelerate has no pipeline; must be 1 (megatron and torchtitan have one)")
    if plan.ep > 1:
        raise job.refuse("ep", "Accelerate's parallelism_config has no expert axis; must be 1")
    if plan.recompute == "selective":
        raise job.refuse("recompute", "Accelerate checkpoints whole layers; must be none or full")


def _refuse_unsupported_splits(job: ExportJob) -> None:
    plan = job.plan
    if uses_deepspeed(job):
        for field in ("tp", "cp"):
            if getattr(plan, field) > 1:
                raise job.refuse(field, "Accelerate with DeepSpeed runs ZeRO alone; must be 1")
        if "zero_hpz_partition_size" in zero_section(job):
            reason = "Accelerate's deepspeed_config has no hpZ; must be dp (or use --format deepspeed)"
            raise job.refuse("dp_shard", reason)
    elif job.zero_stage == 0 and plan.tp * plan.cp > 1:
        reason = "Accelerate composes tp and cp with FSDP only; must be 2 or 3, with dp_shard above 1"
        raise job.refuse("zero_stage", reason)
    elif job.zero_stage and plan.cp > 1 and (plan.dp_shard % plan.cp or plan.dp_shard == plan.cp):
        reason = (
            f"FSDP shards over dp_shard and cp together; must be a multiple of cp ({plan.cp}) and above it"
        )
        raise job.refuse("dp_shard", reason)


def _engine(job: ExportJob) -> Settings:
    if uses_deepspeed(job):
        section: Settings = {
            "gradient_accumulation_steps": job.micro_batches,
            "zero_stage": job.zero_stage,
            "zero3_init_flag": job.zero_stage == 3,
        }
        return {"distributed_type": "DEEPSPEED", "deepspeed_config": section}
    if job.zero_stage == 0:
        return {"distributed_type": "MULTI_GPU" if job.plan.dp > 1 else "NO"}
    return {"distributed_type": "FSDP", "fsdp_config": _fsdp(job), "parallelism_config": _parallelism(job)}


def _fsdp(job: ExportJob) -> Settings:
    section: Settings = {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": job.zero_stage == 3,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    if job.plan.recompute is not None:
        section["fsdp_activation_checkpointing"] = job.plan.recompute == "full"
    return section


def _parallelism(job: ExportJob) -> Settings:
    plan = job.plan
    shard = plan.dp_shard // plan.cp
    sizes = {"dp_replicate": plan.dp // shard, "dp_shard": shard, "tp": plan.tp, "cp": plan.cp}
    return {f"parallelism_config_{name}_size": size for name, size in sizes.items()}


def _notes(job: ExportJob) -> tuple[str, ...]:
    plan = job.plan
    notes = [
        f"in the script: a batch of {plan.micro_batch_size} per device and "
        f"Accelerator(gradient_accumulation_steps={job.micro_batches})"
    ]
    if job.scenario.training.precision == "fp8":
        notes.append("fp8 needs a backend: add an fp8_config, or install torchao or Transformer Engine")
    if plan.recompute is None:
        notes.append("the plan does not state recompute: the script decides")
    elif plan.recompute == "full" and job.zero_stage == 0:
        notes.append("call gradient_checkpointing_enable() on the model")
    return tuple(notes)


FSDP_STAGES = {"FULL_SHARD": 3, "HYBRID_SHARD": 3, "SHARD_GRAD_OP": 2, "HYBRID_SHARD_ZERO2": 2, "NO_SHARD": 0}
LAUNCH_SETTINGS = (
    "num_machines", "machine_rank", "main_training_function", "compute_environment", "use_cpu",
    "same_network", "downcast_bf16", "fsdp_config.fsdp_auto_wrap_policy", "fsdp_config.fsdp_state_dict_type",
    "deepspeed_config.zero3_init_flag",
)  # fmt: skip
"""Say how the job starts and is saved, nothing about its speed."""
DATA_PARALLEL_TYPES = ("NO", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU", "MULTI_HPU", "XLA", "TPU")


def import_accelerate(text: str, options: ImportOptions) -> Draft:
    """A launch file: the script's own batch and model come as options."""
    settings = SettingsReader(parse_yaml(text), "accelerate")
    kind = settings.word("distributed_type") or "NO"
    axes = {
        name: settings.integer(f"parallelism_config.parallelism_config_{name}_size", minimum=0) or 1
        for name in ("tp", "cp", "dp_replicate", "dp_shard")
    }
    if kind == "FSDP":
        engine = _fsdp_engine(settings)
    elif kind == "DEEPSPEED":
        engine = _deepspeed_engine(settings)
    elif kind in DATA_PARALLEL_TYPES:
        engine = DATA_PARALLEL
    else:
        raise InputError(
            "accelerate: distributed_type", kind, "not read; allowed: FSDP, DEEPSPEED, MULTI_GPU, NO"
        )
    processes = settings.integer("num_processes")
    checkpoints = settings.flag("fsdp_config.fsdp_activation_checkpointing")
    hybrid = settings.has("parallelism_config.parallelism_config_dp_shard_size")
    run = TrainerRun(
        engine=engine,
        precision=first_names(PRECISIONS).get(settings.text("mixed_precision") or "no", "fp32"),
        tp=axes["tp"],
        cp=axes["cp"],
        accumulation=settings.integer("deepspeed_config.gradient_accumulation_steps")
        or settings.integer("gradient_accumulation_steps")
        or 1,
        recompute=None if checkpoints is None else "full" if checkpoints else "none",
        num_devices=1 if kind == "NO" else processes,
        dp_shard=axes["dp_shard"] * axes["cp"] if hybrid else None,
    )
    settings.used(*LAUNCH_SETTINGS)
    return draft_of(run, options, {}, settings.unused_notes())


def _fsdp_engine(settings: SettingsReader) -> Engine:
    version = settings.integer("fsdp_config.fsdp_version") or 1
    strategy = settings.text("fsdp_config.fsdp_sharding_strategy") or "FULL_SHARD"
    reshards = settings.text("fsdp_config.fsdp_reshard_after_forward") or "true"
    offload = bool(settings.flag("fsdp_config.fsdp_offload_params"))
    stage = FSDP_STAGES.get(reshards, 2 if reshards.lower() == "false" else 3)
    if version == 1:
        numbered = dict(enumerate(FSDP_STAGES, start=1))  # older files state the position
        name = numbered.get(int(strategy), strategy) if strategy.isdigit() else strategy
        stage = FSDP_STAGES.get(name, 3)
    return Engine("torch-fsdp2" if version == 2 else "torch-fsdp", stage, offload)


def _deepspeed_engine(settings: SettingsReader) -> Engine:
    path = settings.text("deepspeed_config.deepspeed_config_file")
    if path:
        return deepspeed_engine(path, "accelerate: deepspeed_config_file")
    device = settings.text("deepspeed_config.offload_optimizer_device")
    stage = settings.integer("deepspeed_config.zero_stage", minimum=0)
    return Engine("deepspeed", 2 if stage is None else stage, device in ("cpu", "nvme"))
