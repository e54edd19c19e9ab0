"""Hugging Face: reads a model's config.json; writes and reads TrainingArguments of its Trainer as JSON.

Names: transformers/training_args.py of 5.22; `HfArgumentParser.parse_json_file` reads the file. FSDP 2, plain
data parallelism, or DeepSpeed with its configuration inside.
"""

from tools.frameworks.accelerate import NO_OFFLOAD_NOTE, mesh_sizes, uses_deepspeed
from tools.frameworks.deepspeed import zero_section
from tools.frameworks.exporting import ExportJob, SettingsTree, json_text
from tools.frameworks.format import LIKELY, SURE, Format, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions
from tools.frameworks.reading import SettingsReader, UnusedSetting, parse_text
from tools.frameworks.trainer import (
    BATCH_SETTING,
    DEEPSPEED,
    DEFAULT_MICRO_BATCH_SIZE,
    HOST_DEVICES,
    Engine,
    TrainerRun,
)
from tools.scenario.config import unread_fields
from tools.scenario.spec import FULL_SHARDING

DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
DEFAULT_PRECISION = "bf16"
PRECISIONS = ("fp32", "fp16", "bf16")
MODEL_MARKS = ("model_type", "architectures", "text_config")
LEFT_TO_TRAINER = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
"""Settings of DeepSpeed that the Trainer fills in."""


class HuggingFace(Format):
    name = framework = "huggingface"
    aliases = ("hf",)
    reads = "a model's config.json (no plan yet), or TrainingArguments as JSON"
    writes = "TrainingArguments as JSON: FSDP 2, DeepSpeed or plain data parallelism"
    file_name = "training_args.json"
    judged_by = "transformers 5, accelerate 1.15.0"
    has_levers = True
    says = ("optimizer_offload",)
    carries = ("reshard_after_forward",)

    def certainty(self, file: UnknownFile) -> int:
        if BATCH_SETTING in file.keys:
            return SURE
        is_model = file.has_any(*MODEL_MARKS) or {"hidden_size", "num_hidden_layers"} <= file.keys
        return LIKELY if is_model else 0

    def write(self, job: ExportJob) -> tuple[str, tuple[str, ...]]:
        """The arguments that a plan decides; model, data and optimizer stay in the script."""
        plan, training = job.plan, job.scenario.training
        job.check_precision("TrainingArguments", PRECISIONS)
        sizes = mesh_sizes(job)
        if plan.recompute == "selective":
            raise job.refuse("recompute", "the Trainer checkpoints whole layers; must be none or full")
        has_half = training.precision != "fp32"
        settings: SettingsTree = {
            BATCH_SETTING: plan.micro_batch_size,
            "gradient_accumulation_steps": job.micro_batches,
            **({training.precision: True} if has_half else {}),
            **job.lever_settings,
        }
        checkpoints = {} if plan.recompute is None else {"checkpointing": plan.recompute == "full"}
        if uses_deepspeed(job):
            settings["deepspeed"] = {
                "zero_optimization": zero_section(job),
                **({training.precision: {"enabled": "auto"}} if has_half else {}),
                **dict.fromkeys(LEFT_TO_TRAINER, "auto"),
            }
        elif job.zero_stage:
            fsdp: SettingsTree = {"version": 2, "reshard_after_forward": not job.keeps_weights}
            if training.optimizer_offload:
                fsdp["cpu_offload"] = True
            fsdp |= {f"activation_{name}": value for name, value in checkpoints.items()}
            settings |= {"fsdp": True, "fsdp_config": fsdp}
        if "fsdp" not in settings:
            settings |= {f"gradient_{name}": value for name, value in checkpoints.items()}
        devices = job.scenario.cluster.num_devices
        notes = [f"start {devices} processes, with sequences of {training.seq_len} tokens from the script"]
        if sizes and sizes["dp_shard_size"] < devices:
            mesh = ", ".join(f"{name}={size}" for name, size in sizes.items() if size > 1)
            notes.append(f"in the script: TrainingArguments(parallelism_config=ParallelismConfig({mesh}))")
        if job.zero_stage == 0 and training.optimizer_offload:
            notes.append(NO_OFFLOAD_NOTE)
        if plan.recompute is None:
            notes.append("the plan does not state recompute: the script decides")
        return json_text(settings), tuple(notes)

    def read(self, text: str, options: ImportOptions) -> Draft:
        values = parse_text(text, "JSON")
        if BATCH_SETTING in values:
            return _read_arguments(SettingsReader(values, "huggingface"), options)
        inner = values.get("text_config")
        stated = values | {k: v for k, v in inner.items() if v} if isinstance(inner, dict) else values
        dtype = str(stated.get("dtype") or stated.get("torch_dtype"))
        is_stated = options.precision or dtype in DTYPES
        assumed = f"precision {DEFAULT_PRECISION} is assumed; training.precision states another"
        return Draft(
            plan=None,  # `asap optimize` starts cold from it
            precision=DTYPES.get(dtype, DEFAULT_PRECISION),
            model=values,
            has_class_defaults="model_type" in values or "text_config" in values,
            notes=() if is_stated else (assumed,),
            unused=tuple(UnusedSetting.of(name, values.get(name)) for name in unread_fields(values)),
        )


def _read_arguments(settings: SettingsReader, options: ImportOptions) -> Draft:
    half = [name for name in ("fp16", "bf16") if settings.flag(name)]
    checkpoints = settings.flag("gradient_checkpointing")
    in_fsdp = settings.flag("fsdp_config.activation_checkpointing")
    checkpoints = in_fsdp if in_fsdp is not None else checkpoints
    section = "deepspeed.zero_optimization"
    stage = settings.integer(f"{section}.stage", minimum=0)
    offload = settings.text(f"{section}.offload_optimizer.device") in HOST_DEVICES
    settings.used(f"{section}.offload_optimizer.pin_memory", f"{section}.overlap_comm")
    engine = Engine()
    if stage is not None:
        engine = Engine(stage, offload, DEEPSPEED)
    elif settings.text("fsdp") not in (None, "False", ""):
        keeps = settings.flag("fsdp_config.reshard_after_forward")
        engine = Engine(FULL_SHARDING, bool(settings.flag("fsdp_config.cpu_offload")), reshards=keeps)
    run = TrainerRun(
        engine=engine,
        precision=half[0] if half else "fp32",
        micro_batch_size=settings.integer(BATCH_SETTING) or DEFAULT_MICRO_BATCH_SIZE,
        accumulation=settings.integer("gradient_accumulation_steps") or 1,
        recompute=None if checkpoints is None else "full" if checkpoints else "none",
    )
    settings.used(*(f"deepspeed.{name}" for name in LEFT_TO_TRAINER), "fsdp_config.version")
    settings.used("deepspeed.bf16.enabled", "deepspeed.fp16.enabled")
    return run.draft(settings, options)
