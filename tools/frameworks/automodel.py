"""NeMo Automodel: writes and reads its YAML recipes.

Names: nemo_automodel/recipes/_dist_utils.py and components/distributed of NVIDIA-NeMo/Automodel, 0.7.0.
"""

from tools.errors import InputError
from tools.frameworks.exporting import (
    RECOMPUTE_NOT_STATED,
    ExportJob,
    SettingsTree,
    nested,
    section_of,
    yaml_text,
)
from tools.frameworks.format import SURE, Format, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions, read_levers, stated_plan
from tools.frameworks.reading import SettingsReader
from tools.frameworks.trainer import read_lora

STRATEGIES = {"fsdp2": 3, "megatron_fsdp": 3, "ddp": 0}
SCHEDULES = ("1f1b", "gpipe")
CHECKPOINTING: dict[str | None, bool] = {None: False, "none": False, "full": True}
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "bf16": "bf16"}
OTHER_RECIPES = (
    "speculative", "eagle", "dpo", "knowledgedistillation", "kd_", "diffusion", "sequenceclassification",
)  # fmt: skip


class Automodel(Format):
    name = framework = "automodel"
    reads = "NeMo Automodel's YAML"
    writes = "YAML sections of a NeMo Automodel recipe"
    file_name = "automodel.yaml"
    judged_by = "nemo-automodel 0.7.0"
    has_levers = True
    carries = ("reshard_after_forward",)

    def certainty(self, file: UnknownFile) -> int:
        is_recipe = file.has_any("step_scheduler", "recipe") or "_target_" in file.section("model")
        return SURE if is_recipe else 0

    def write(self, job: ExportJob) -> tuple[str, tuple[str, ...]]:
        """The sections that a plan decides; model, data and optimizer stay in the recipe."""
        plan, training = job.plan, job.scenario.training
        job.check_precision("Automodel", ("bf16",))
        if plan.vpp > 1:
            raise job.refuse("vpp", "Automodel's recipe has one chunk per stage; must be 1")
        distributed: SettingsTree = {
            "activation_checkpointing": CHECKPOINTING.get(plan.recompute, "selective")
        }
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
        if job.zero_stage and plan.reshard_after_forward is not None:
            distributed["reshard_after_forward"] = plan.reshard_after_forward
        levers = nested(job.lever_settings)
        distributed |= section_of(levers, "distributed")
        local = plan.micro_batch_size
        if plan.pp > 1:
            if plan.schedule not in SCHEDULES:
                reason = f"Automodel's one chunk per stage runs {' or '.join(SCHEDULES)}"
                raise job.refuse("schedule", reason)
            # The pipeline cuts what a data rank gets at once, so a whole step's share is handed to it.
            local *= job.micro_batches
            distributed["pipeline"] = {
                "pp_schedule": plan.schedule,
                "pp_microbatch_size": plan.micro_batch_size,
            }
        settings: SettingsTree = {
            "step_scheduler": {"global_batch_size": training.global_batch_size, "local_batch_size": local},
            "distributed": distributed,
            "packed_sequence": {"packed_sequence_size": training.seq_len},
            **levers,
        }
        comments = (
            f"NeMo Automodel settings for {job.scenario.cluster.num_devices} devices: merge into a recipe.",
            "Use: automodel automodel.yaml --nproc-per-node N",
        )
        return yaml_text(comments, settings), () if plan.recompute else (RECOMPUTE_NOT_STATED,)

    def read(self, text: str, options: ImportOptions) -> Draft:
        if "flow_matching" in text:
            raise InputError("automodel: flow_matching", "diffusion", "not supported: a diffusion model")
        return super().read(text, options)

    def read_settings(self, settings: SettingsReader, options: ImportOptions) -> Draft:
        recipe = settings.text("recipe") or ""
        for name in OTHER_RECIPES:
            if name in recipe.lower().replace("-", "") or settings.has(name.rstrip("_")):
                rule = "not supported: a draft model or several models in one run"
                raise InputError("automodel: recipe", recipe, rule)
        strategy = settings.word("distributed.strategy") or settings.word("distributed.manager") or "fsdp2"
        tp, cp, pp = (
            settings.integer(f"distributed.{name}_size", minimum=0) or 1 for name in ("tp", "cp", "pp")
        )
        why = "the data-parallel size follows from it"
        dp = settings.integer("distributed.dp_size", minimum=0) or options.divide_devices(tp * cp * pp, why)
        replicas = settings.integer("distributed.dp_replicate_size", minimum=0) or 1
        local = settings.integer("step_scheduler.local_batch_size")
        in_pipeline = settings.integer("distributed.pipeline.pp_microbatch_size") if pp > 1 else None
        schedule = settings.word("distributed.pipeline.pp_schedule") or "1f1b"
        checkpoints = settings.text("distributed.activation_checkpointing")
        if checkpoints not in ("full", "selective", "none"):  # a flag
            checkpoints = "full" if settings.flag("distributed.activation_checkpointing") else "none"
        plan = stated_plan(
            (tp, pp, cp, dp),
            STRATEGIES.get(strategy, 3),
            dp * cp // replicas,
            ep=settings.integer("distributed.ep_size", minimum=0) or 1,
            micro_batch_size=options.get_micro_batch_size((in_pipeline or 1) if pp > 1 else local),
            sequence_parallel=bool(settings.flag("distributed.sequence_parallel")) and tp > 1,
            recompute=checkpoints,
            reshard_after_forward=settings.flag("distributed.reshard_after_forward"),
            schedule=schedule if pp > 1 and schedule in SCHEDULES else None,
        )
        training = read_levers(settings, self.framework)
        if settings.flag("distributed.enable_compile"):
            training["compile"] = True
        if stored := settings.text("model.torch_dtype"):
            training["optimizer_state"] = "fp32" if "32" in stored else "bf16"
        rank, modules = settings.integer("peft.dim"), settings.items("peft.target_modules")
        module, all_linear = settings.text("peft.target_modules"), settings.flag("peft.match_all_linear")
        has_adapter = rank is not None or settings.has("peft._target_")
        targets = ["all"] if all_linear else modules or ([module] if module else [])
        return Draft(
            plan,
            _precision(settings, strategy),
            seq_len=settings.integer("packed_sequence.packed_sequence_size", minimum=0)
            or settings.integer("dataset.seq_len")
            or settings.integer("dataset.seq_length"),
            global_batch_size=settings.integer("step_scheduler.global_batch_size"),
            model_name=settings.text("model.pretrained_model_name_or_path")
            or settings.text("model.config.pretrained_model_name_or_path")
            or "",
            training=training | ({"lora": read_lora(rank, targets)} if has_adapter else {}),
            unused=settings.unused(),
        )


def _precision(settings: SettingsReader, strategy: str) -> str:
    """FSDP 2 computes in bf16 by default, whatever the weights are kept in (FSDP2Config.mp_policy)."""
    kept = settings.text("model.torch_dtype") or "bfloat16"
    computed = settings.text("distributed.mp_policy.param_dtype") or (
        "bfloat16" if strategy == "fsdp2" else kept
    )
    return DTYPES.get(computed.removeprefix("torch."), "bf16")
