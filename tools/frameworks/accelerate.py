"""Hugging Face Accelerate: writes and reads the YAML of `accelerate launch --config_file`.

FSDP 2 with its parallelism_config, plain data parallelism, or DeepSpeed, the only one with ZeRO stage 1.
Names: accelerate/commands/config/config_args.py, commands/launch.py and parallelism_config.py of 1.15.0.
"""

from tools.errors import InputError
from tools.frameworks.deepspeed import zero_section
from tools.frameworks.exporting import ExportJob, SettingsTree, first_names, nested, yaml_text
from tools.frameworks.format import SURE, Format, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions
from tools.frameworks.reading import SettingsReader, parse_text
from tools.frameworks.trainer import DEEPSPEED, HOST_DEVICES, Engine, TrainerRun, deepspeed_engine
from tools.scenario.spec import FULL_SHARDING

PRECISIONS = {"fp32": "no", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
FSDP_STAGES = {"FULL_SHARD": 3, "HYBRID_SHARD": 3, "SHARD_GRAD_OP": 2, "HYBRID_SHARD_ZERO2": 2, "NO_SHARD": 0}
LAUNCH_SETTINGS = (
    "num_machines", "machine_rank", "main_training_function", "compute_environment", "use_cpu",
    "same_network", "downcast_bf16", "fsdp_config.fsdp_auto_wrap_policy", "fsdp_config.fsdp_state_dict_type",
    "deepspeed_config.zero3_init_flag",
)  # fmt: skip
"""Say how the job starts and is saved, nothing about its speed."""
DATA_PARALLEL_TYPES = ("NO", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU", "MULTI_HPU", "XLA", "TPU")
NO_OFFLOAD_NOTE = "optimizer_offload is left out: plain data parallelism keeps the state on the device"
AXES = ("dp_replicate", "dp_shard", "tp", "cp")


def uses_deepspeed(job: ExportJob) -> bool:
    """Only DeepSpeed has ZeRO stage 1."""
    return job.scenario.training.framework == DEEPSPEED or job.zero_stage == 1


class Accelerate(Format):
    name = framework = "accelerate"
    aliases = ("fsdp", "torch-fsdp", "torch-fsdp2")
    reads = "the YAML of 'accelerate launch'; model and batch sizes are given beside it"
    writes = "YAML for accelerate launch --config_file"
    file_name = "accelerate.yaml"
    judged_by = "accelerate 1.15.0"
    has_levers = True
    says = ("optimizer_offload",)
    carries = ("reshard_after_forward",)

    def certainty(self, file: UnknownFile) -> int:
        return SURE if file.has_any("distributed_type", "compute_environment") else 0

    def write(self, job: ExportJob) -> tuple[str, tuple[str, ...]]:
        plan, cluster, precision = job.plan, job.scenario.cluster, job.scenario.training.precision
        job.check_precision("Accelerate", PRECISIONS)
        if plan.recompute == "selective":
            raise job.refuse("recompute", "Accelerate checkpoints whole layers; must be none or full")
        settings: SettingsTree = {
            "compute_environment": "LOCAL_MACHINE",
            **_write_engine(job),
            **nested(job.lever_settings),
            "mixed_precision": PRECISIONS[precision],
            "num_machines": -(-cluster.num_devices // cluster.devices_per_node),
            "num_processes": cluster.num_devices,
            "machine_rank": 0,
            "main_training_function": "main",
            "use_cpu": False,
        }
        comments = (
            f"Accelerate settings for {cluster.num_devices} devices.",
            "Use, on every node: accelerate launch --config_file accelerate.yaml --machine_rank N train.py",
        )
        notes = [
            f"in the script: a batch of {plan.micro_batch_size} per device and "
            f"Accelerator(gradient_accumulation_steps={job.micro_batches})"
        ]
        if precision == "fp8":
            notes.append("fp8 needs a backend: add an fp8_config, or install torchao or Transformer Engine")
        if plan.recompute is None:
            notes.append("the plan does not state recompute: the script decides")
        elif plan.recompute == "full" and job.zero_stage == 0:
            notes.append("call gradient_checkpointing_enable() on the model")
        if job.zero_stage == 0 and job.scenario.training.optimizer_offload:
            notes.append(NO_OFFLOAD_NOTE)
        return yaml_text(comments, settings), tuple(notes)

    def read(self, text: str, options: ImportOptions) -> Draft:
        """A launch file: the script's own batch and model come as options."""
        settings = SettingsReader(parse_text(text, "YAML"), "accelerate")
        kind = settings.word("distributed_type") or "NO"
        prefix = "parallelism_config.parallelism_config"
        sizes = {name: settings.integer(f"{prefix}_{name}_size", minimum=0) or 1 for name in AXES}
        checkpoints = settings.flag("fsdp_config.fsdp_activation_checkpointing")
        processes = settings.integer("num_processes")
        run = TrainerRun(
            engine=_read_engine(settings, kind),
            precision=first_names(PRECISIONS).get(settings.text("mixed_precision") or "no", "fp32"),
            tp=sizes["tp"],
            cp=sizes["cp"],
            accumulation=settings.integer("deepspeed_config.gradient_accumulation_steps")
            or settings.integer("gradient_accumulation_steps")
            or 1,
            recompute=None if checkpoints is None else "full" if checkpoints else "none",
            num_devices=1 if kind == "NO" else processes,
            dp_shard=sizes["dp_shard"] * sizes["cp"] if settings.has(f"{prefix}_dp_shard_size") else None,
        )
        settings.used(*LAUNCH_SETTINGS)
        return run.draft(settings, options)


def mesh_sizes(job: ExportJob) -> dict[str, int]:
    """The fields of a ParallelismConfig; none for plain data parallelism and DeepSpeed."""
    plan = job.plan
    if uses_deepspeed(job):
        for field in ("tp", "cp"):
            if getattr(plan, field) > 1:
                raise job.refuse(field, "Accelerate with DeepSpeed runs ZeRO alone; must be 1")
        return {}
    if job.zero_stage == 0:
        if plan.tp * plan.cp > 1:
            reason = "Accelerate composes tp and cp with FSDP only; must be 2 or 3, with dp_shard above 1"
            raise job.refuse("zero_stage", reason)
        return {}
    if plan.cp > 1 and (plan.dp_shard % plan.cp or plan.dp_shard == plan.cp):
        reason = f"FSDP shards over dp_shard and cp; must be a multiple of cp ({plan.cp}) and above it"
        raise job.refuse("dp_shard", reason)
    shard = plan.dp_shard // plan.cp
    sizes = zip(AXES, (plan.dp // shard, shard, plan.tp, plan.cp), strict=True)
    return {f"{axis}_size": size for axis, size in sizes}


def _write_engine(job: ExportJob) -> SettingsTree:
    plan, sizes = job.plan, mesh_sizes(job)
    if uses_deepspeed(job):
        if "zero_hpz_partition_size" in zero_section(job):
            reason = "Accelerate's deepspeed_config has no hpZ; must be dp (or use the deepspeed format)"
            raise job.refuse("dp_shard", reason)
        section: SettingsTree = {
            "gradient_accumulation_steps": job.micro_batches,
            "zero_stage": job.zero_stage,
            "zero3_init_flag": job.zero_stage == 3,
            **({"offload_optimizer_device": "cpu"} if job.scenario.training.optimizer_offload else {}),
        }
        return {"distributed_type": "DEEPSPEED", "deepspeed_config": section}
    if not sizes:
        return {"distributed_type": "MULTI_GPU" if plan.dp > 1 else "NO"}
    fsdp: SettingsTree = {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": not job.keeps_weights,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        **({"fsdp_offload_params": True} if job.scenario.training.optimizer_offload else {}),
    }
    if plan.recompute is not None:
        fsdp["fsdp_activation_checkpointing"] = plan.recompute == "full"
    parallelism = {f"parallelism_config_{name}": size for name, size in sizes.items()}
    return {"distributed_type": "FSDP", "fsdp_config": fsdp, "parallelism_config": parallelism}


def _read_engine(settings: SettingsReader, kind: str) -> Engine:
    if kind in DATA_PARALLEL_TYPES:
        return Engine()
    if kind == "DEEPSPEED":
        if path := settings.text("deepspeed_config.deepspeed_config_file"):
            return deepspeed_engine(path, "accelerate: deepspeed_config_file")
        device = settings.text("deepspeed_config.offload_optimizer_device")
        stage = settings.integer("deepspeed_config.zero_stage", minimum=0)
        return Engine(2 if stage is None else stage, device in HOST_DEVICES, DEEPSPEED)
    if kind != "FSDP":
        rule = "not read; allowed: FSDP, DEEPSPEED, MULTI_GPU, NO"
        raise InputError("accelerate: distributed_type", kind, rule)
    version = settings.integer("fsdp_config.fsdp_version") or 1
    strategy = settings.text("fsdp_config.fsdp_sharding_strategy") or "FULL_SHARD"
    reshards = settings.text("fsdp_config.fsdp_reshard_after_forward") or ""
    offload = bool(settings.flag("fsdp_config.fsdp_offload_params"))
    if version != 1:
        flag = {"true": True, "false": False}.get(reshards.lower())
        return Engine(FSDP_STAGES.get(reshards, FULL_SHARDING), offload, reshards=flag)
    numbered = {str(number): name for number, name in enumerate(FSDP_STAGES, start=1)}  # older files
    return Engine(FSDP_STAGES.get(numbered.get(strategy, strategy), FULL_SHARDING), offload)
