"""NeMo Automodel: writes and reads its YAML recipes.

Names: nemo_automodel/recipes/_dist_utils.py and components/distributed of NVIDIA-NeMo/Automodel, 0.7.0.
"""

from tools.errors import InputError
from tools.frameworks.exporting import RECOMPUTE_NOT_STATED, Export, ExportJob, Settings, yaml_text
from tools.frameworks.finetuning import lora_fields
from tools.frameworks.importing import Degrees, Draft, ImportOptions, Sharding, stated_plan
from tools.frameworks.reading import JsonObject, SettingsReader, parse_yaml

STRATEGIES = {"fsdp2": 3, "megatron_fsdp": 3, "ddp": 0}
SCHEDULES = {"1f1b": "1f1b", "gpipe": "gpipe"}
CHECKPOINTING: dict[str | None, bool | str] = {
    None: False,
    "none": False,
    "full": True,
    "selective": "selective",
}
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
OTHER_RECIPES = (
    "speculative",
    "eagle",
    "dpo",
    "knowledgedistillation",
    "kd_",
    "diffusion",
    "sequenceclassification",
)


def export_automodel(job: ExportJob) -> Export:
    """The sections that a plan decides; model, data and optimizer stay in the recipe."""
    plan, training = job.plan, job.scenario.training
    if training.precision != "bf16":
        raise job.refuse_precision("Automodel", ("bf16",))
    if plan.vpp > 1:
        raise job.refuse("vpp", "Automodel's recipe has one chunk per stage; must be 1")
    if job.zero_stage in (1, 2):
        raise job.refuse("zero_stage", "Automodel's FSDP 2 shards weights too; must be 0 or 3")
    distributed: Settings = {"activation_checkpointing": CHECKPOINTING[plan.recompute]}
    is_split = plan.tp * plan.cp * plan.pp * plan.ep > 1
    if not job.zero_stage and job.replicas > 1 and is_split:
        raise job.refuse("zero_stage", "Automodel's DDP knows data parallelism only; must be 3")
    if job.zero_stage or is_split:
        distributed |= {
            "strategy": "fsdp2",
            "dp_replicate_size": job.replicas,
            "tp_size": plan.tp,
            "cp_size": plan.cp,
            "pp_size": plan.pp,
            "ep_size": plan.ep,
            "sequence_parallel": plan.sequence_parallel,
        }
    else:
        distributed["strategy"] = "ddp"
    local = plan.micro_batch_size
    if plan.pp > 1:
        if plan.schedule not in SCHEDULES:
            raise job.refuse("schedule", f"Automodel's one chunk per stage runs {' or '.join(SCHEDULES)}")
        # The pipeline cuts what a data rank gets at once, so a whole step's share is handed to it.
        local *= job.micro_batches
        distributed["pipeline"] = {
            "pp_schedule": SCHEDULES[plan.schedule],
            "pp_microbatch_size": plan.micro_batch_size,
        }
    settings: Settings = {
        "step_scheduler": {"global_batch_size": training.global_batch_size, "local_batch_size": local},
        "distributed": distributed,
        "packed_sequence": {"packed_sequence_size": training.seq_len},
    }
    comments = (
        f"NeMo Automodel settings for {job.scenario.cluster.num_devices} devices: merge into a recipe.",
        "Use: automodel automodel.yaml --nproc-per-node N",
    )
    notes = () if plan.recompute else (RECOMPUTE_NOT_STATED,)
    return Export("automodel", "automodel.yaml", yaml_text(comments, settings), notes)


def import_automodel(text: str, options: ImportOptions) -> Draft:
    settings = SettingsReader(parse_yaml(text), "automodel")
    recipe = settings.text("recipe") or ""
    if "flow_matching" in text:
        raise InputError("automodel: flow_matching", "diffusion", "not supported: a diffusion model")
    for name in OTHER_RECIPES:
        if name in recipe.lower().replace("-", "") or settings.has(name.rstrip("_")):
            raise InputError(
                "automodel: recipe", recipe, "not supported: a draft model or several models in one run"
            )
    strategy = settings.word("distributed.strategy") or settings.word("distributed.manager") or "fsdp2"
    tp, cp, pp = (settings.integer(f"distributed.{name}_size", minimum=0) or 1 for name in ("tp", "cp", "pp"))
    why = "the data-parallel size follows from it"
    dp = settings.integer("distributed.dp_size", minimum=0) or options.divide_devices(tp * cp * pp, why)
    replicas = settings.integer("distributed.dp_replicate_size", minimum=0) or 1
    stage = STRATEGIES.get(strategy, 3)
    shard = dp * cp // replicas
    local = settings.integer("step_scheduler.local_batch_size")
    micro = options.get_micro_batch_size(
        (settings.integer("distributed.pipeline.pp_microbatch_size") or 1) if pp > 1 else local
    )
    schedule = settings.word("distributed.pipeline.pp_schedule") or "1f1b"
    plan = stated_plan(
        Degrees(tp, pp, cp, dp),
        Sharding.over(stage, shard),
        ep=settings.integer("distributed.ep_size", minimum=0) or 1,
        micro_batch_size=micro,
        vpp=1,
        sequence_parallel=bool(settings.flag("distributed.sequence_parallel")) and tp > 1,
        recompute=_recompute(settings),
        **({"schedule": schedule} if pp > 1 and schedule in SCHEDULES.values() else {}),
    )
    return Draft(
        plan,
        DTYPES.get((settings.text("model.torch_dtype") or "bfloat16").removeprefix("torch."), "bf16"),
        seq_len=settings.integer("packed_sequence.packed_sequence_size", minimum=0)
        or settings.integer("dataset.seq_len")
        or settings.integer("dataset.seq_length")
        or None,
        global_batch_size=settings.integer("step_scheduler.global_batch_size"),
        num_devices=tp * cp * pp * dp,
        model_name=_model_name(settings),
        training=_adapter(settings),
        framework="torch-fsdp2",
        notes=settings.unused_notes(),
    )


def _recompute(settings: SettingsReader) -> str:
    """A flag, or a word for it."""
    name = "distributed.activation_checkpointing"
    if (word := settings.text(name)) in ("full", "selective", "none"):
        return word
    return "full" if settings.flag(name) else "none"


def _model_name(settings: SettingsReader) -> str:
    names = ("model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path")
    return next((name for setting in names if (name := settings.text(setting))), "")


def _adapter(settings: SettingsReader) -> JsonObject:
    rank, names = settings.integer("peft.dim"), settings.items("peft.target_modules")
    all_linear = settings.flag("peft.match_all_linear")
    if rank is None and not settings.has("peft._target_"):
        return {}
    stated = [name for name in (settings.text("peft.target_modules"),) if name]
    return lora_fields(rank, ["all"] if all_linear else names or stated)
