"""NeMo Automodel: writes and reads its YAML recipes.

Names: nemo_automodel/recipes and components/distributed of NVIDIA-NeMo/Automodel.
"""

from tools.errors import InputError
from tools.frameworks.exporting import RECOMPUTE_NOT_STATED, Export, ExportJob, Settings, yaml_text
from tools.frameworks.finetuning import lora_fields
from tools.frameworks.importing import (
    NO_SHARDING,
    Degrees,
    Draft,
    ImportOptions,
    Sharding,
    stated_plan,
)
from tools.frameworks.reading import JsonObject, SettingsReader, parse_yaml

STRATEGIES = {"fsdp2": 3, "megatron_fsdp": 3, "ddp": 0}
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
    if plan.recompute == "selective":
        raise job.refuse("recompute", "Automodel checkpoints whole layers; must be none or full")
    distributed: Settings = {
        "strategy": "fsdp2" if job.zero_stage else "ddp",
        "dp_replicate_size": job.replicas if job.zero_stage else 1,
        "tp_size": plan.tp,
        "cp_size": plan.cp,
        "pp_size": plan.pp,
        "ep_size": plan.ep,
        "sequence_parallel": plan.sequence_parallel,
        "activation_checkpointing": plan.recompute == "full",
    }
    settings: Settings = {
        "step_scheduler": {
            "global_batch_size": training.global_batch_size,
            "local_batch_size": plan.micro_batch_size,
        },
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
        raise InputError("automodel: flow_matching", "diffusion", "not priced: a diffusion model")
    for name in OTHER_RECIPES:
        if name in recipe.lower().replace("-", "") or settings.has(name.rstrip("_")):
            raise InputError(
                "automodel: recipe", recipe, "not priced: a draft model or several models in one run"
            )
    strategy = settings.word("distributed.strategy") or settings.word("distributed.manager") or "fsdp2"
    tp, cp, pp = (settings.integer(f"distributed.{name}_size", minimum=0) or 1 for name in ("tp", "cp", "pp"))
    why = "the data-parallel size follows from it"
    dp = settings.integer("distributed.dp_size", minimum=0) or options.divide_devices(tp * cp * pp, why)
    replicas = settings.integer("distributed.dp_replicate_size", minimum=0) or 1
    stage = STRATEGIES.get(strategy, 3)
    shard = dp * cp // replicas
    micro = options.get_micro_batch_size(settings.integer("step_scheduler.local_batch_size"))
    plan = stated_plan(
        Degrees(tp, pp, cp, dp),
        Sharding(stage, shard) if stage and shard > 1 else NO_SHARDING,
        ep=settings.integer("distributed.ep_size", minimum=0) or 1,
        micro_batch_size=micro,
        vpp=1,
        sequence_parallel=bool(settings.flag("distributed.sequence_parallel")) and tp > 1,
        recompute="full" if settings.flag("distributed.activation_checkpointing") else "none",
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
