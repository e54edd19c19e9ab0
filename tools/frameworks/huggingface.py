"""Hugging Face: reads a model's config.json; writes and reads TrainingArguments of its Trainer as JSON.

Names: transformers/training_args.py of 5.22; `HfArgumentParser.parse_json_file` reads the file. FSDP 2, plain
data parallelism, or DeepSpeed with its configuration inside.
"""

from tools.frameworks.accelerate import uses_deepspeed
from tools.frameworks.deepspeed import zero_section
from tools.frameworks.exporting import Export, ExportJob, Settings, json_text
from tools.frameworks.finetuning import DATA_PARALLEL, Engine, TrainerRun, draft_of
from tools.frameworks.importing import Draft, ImportOptions
from tools.frameworks.reading import UNUSED, JsonObject, SettingsReader, parse_json
from tools.scenario.huggingface import unread_fields

DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
DEFAULT_PRECISION = "bf16"
PRECISIONS = ("fp32", "fp16", "bf16")
BATCH_SETTING = "per_device_train_batch_size"
DEFAULT_BATCH_SIZE = 8
LEFT_TO_TRAINER = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
"""Settings of DeepSpeed that the Trainer fills in."""


def engine_framework(job: ExportJob) -> str:
    """The framework whose rules apply: the engine that the Trainer runs the plan with."""
    return "deepspeed" if uses_deepspeed(job) else "torch-fsdp2"


def export_huggingface(job: ExportJob) -> Export:
    """The arguments that a plan decides; model, data and optimizer stay in the script."""
    _refuse_unsupported(job)
    plan, precision = job.plan, job.scenario.training.precision
    settings: Settings = {
        BATCH_SETTING: plan.micro_batch_size,
        "gradient_accumulation_steps": job.micro_batches,
        **({precision: True} if precision != "fp32" else {}),
        **_engine(job),
    }
    if plan.recompute is not None and "fsdp" not in settings:
        settings["gradient_checkpointing"] = plan.recompute == "full"
    devices, seq_len = job.scenario.cluster.num_devices, job.scenario.training.seq_len
    notes = [f"start {devices} processes, with sequences of {seq_len} tokens from the script"]
    if plan.recompute is None:
        notes.append("the plan does not state recompute: the script decides")
    return Export("huggingface", "training_args.json", json_text(settings), tuple(notes))


def _refuse_unsupported(job: ExportJob) -> None:
    plan = job.plan
    if job.scenario.training.precision not in PRECISIONS:
        raise job.refuse_precision("TrainingArguments", PRECISIONS)
    for field in ("tp", "pp", "cp", "ep"):
        if getattr(plan, field) > 1:
            raise job.refuse(field, "TrainingArguments states data parallelism alone; must be 1")
    if job.zero_stage and plan.dp_shard != plan.dp:
        raise job.refuse("dp_shard", f"the Trainer shards over all ranks; must be dp ({plan.dp})")
    if plan.recompute == "selective":
        raise job.refuse("recompute", "the Trainer checkpoints whole layers; must be none or full")


def _engine(job: ExportJob) -> Settings:
    if uses_deepspeed(job):
        precision = job.scenario.training.precision
        half: Settings = {precision: {"enabled": "auto"}} if precision != "fp32" else {}
        section: Settings = {
            "zero_optimization": zero_section(job),
            **half,
            **dict.fromkeys(LEFT_TO_TRAINER, "auto"),
        }
        return {"deepspeed": section}
    if job.zero_stage == 0:
        return {}
    fsdp: Settings = {"version": 2, "reshard_after_forward": job.zero_stage == 3}
    if job.plan.recompute is not None:
        fsdp["activation_checkpointing"] = job.plan.recompute == "full"
    return {"fsdp": True, "fsdp_config": fsdp}


def import_huggingface(text: str, options: ImportOptions) -> Draft:
    values = parse_json(text)
    return _arguments(values, options) if BATCH_SETTING in values else _model(values, options)


def _model(model: JsonObject, options: ImportOptions) -> Draft:
    """A draft without a plan: `asap optimize` starts cold from it."""
    inner = model.get("text_config")
    stated = (
        {**model, **{key: value for key, value in inner.items() if value}}
        if isinstance(inner, dict)
        else model
    )
    dtype = str(stated.get("dtype") or stated.get("torch_dtype"))
    is_stated = options.precision or dtype in DTYPES
    assumed = f"precision {DEFAULT_PRECISION} is assumed; --precision states another"
    return Draft(
        plan=None,
        precision=DTYPES.get(dtype, DEFAULT_PRECISION),
        model=model,
        has_class_defaults="model_type" in model or "text_config" in model,
        notes=(*(() if is_stated else (assumed,)), *(f"{UNUSED}{name}" for name in unread_fields(model))),
    )


def _arguments(values: JsonObject, options: ImportOptions) -> Draft:
    settings = SettingsReader(values, "huggingface")
    half = [name for name in ("fp16", "bf16") if settings.flag(name)]
    checkpoints = settings.flag("gradient_checkpointing")
    in_fsdp = settings.flag("fsdp_config.activation_checkpointing")
    checkpoints = in_fsdp if in_fsdp is not None else checkpoints
    run = TrainerRun(
        engine=_read_engine(settings),
        precision=half[0] if half else "fp32",
        micro_batch_size=settings.integer(BATCH_SETTING) or DEFAULT_BATCH_SIZE,
        accumulation=settings.integer("gradient_accumulation_steps") or 1,
        recompute=None if checkpoints is None else "full" if checkpoints else "none",
    )
    settings.used(*(f"deepspeed.{name}" for name in LEFT_TO_TRAINER), "fsdp_config.version")
    settings.used("deepspeed.bf16.enabled", "deepspeed.fp16.enabled")
    return draft_of(run, options, {}, settings.unused_notes())


def _read_engine(settings: SettingsReader) -> Engine:
    section = "deepspeed.zero_optimization"
    stage = settings.integer(f"{section}.stage", minimum=0)
    offload = settings.text(f"{section}.offload_optimizer.device") in ("cpu", "nvme")
    settings.used(f"{section}.offload_optimizer.pin_memory", f"{section}.overlap_comm")
    if stage is not None:
        return Engine("deepspeed", stage, offload)
    reshards = settings.flag("fsdp_config.reshard_after_forward")
    if settings.text("fsdp") in (None, "False", ""):
        return DATA_PARALLEL
    return Engine(
        "torch-fsdp2", 2 if reshards is False else 3, bool(settings.flag("fsdp_config.cpu_offload"))
    )
