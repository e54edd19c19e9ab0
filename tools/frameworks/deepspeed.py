"""DeepSpeed: writes and reads ds_config JSON.

Names: deepspeed/runtime/config.py, runtime/zero/config.py, runtime/tensor_parallel/config.py and
module_inject/auto_ep_config.py of 0.19.8.
"""

import re

from tools.errors import InputError
from tools.frameworks.exporting import ExportJob, SettingsTree, json_text, nested, section_of
from tools.frameworks.format import LIKELY, Format, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions, TrainingFields, read_levers, stated_plan
from tools.frameworks.reading import SettingsReader, parse_text
from tools.frameworks.trainer import HOST_DEVICES

HALF_PRECISIONS = ("bf16", "fp16")  # each a section of its own name
OWN_KEYS = (
    "zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
)  # fmt: skip
RECOMPUTE_NOTE = "recompute is left open: DeepSpeed's model code decides it (plan.recompute states it)"
_PLACEHOLDER = re.compile(r"(:\s*)\"?([A-Z][A-Z0-9_]{2,})\"?(?=\s*[,}\n])")
"""Templates leave values to names in capitals, which a script replaces."""


class DeepSpeed(Format):
    name = framework = "deepspeed"
    reads = 'ds_config JSON ("auto" follows the model)'
    writes = "ds_config JSON"
    file_name = "ds_config.json"
    judged_by = "deepspeed 0.19.8"
    has_levers = True
    says = ("optimizer_offload",)

    def certainty(self, file: UnknownFile) -> int:
        return LIKELY if file.has_any(*OWN_KEYS) else 0

    def write(self, job: ExportJob) -> tuple[str, tuple[str, ...]]:
        """The whole plan, though DeepSpeed takes some of it from the model's code (see the notes)."""
        training, plan, model = job.scenario.training, job.plan, job.scenario.model
        job.check_precision("ds_config", ("fp32", "fp16", "bf16"))
        if plan.recompute == "selective":
            raise job.refuse("recompute", "DeepSpeed checkpoints whole layers; must be none or full")
        if plan.sequence_parallel:
            raise job.refuse("sequence_parallel", "AutoTP does not split the sequence; must be false")
        for field in ("tp", "cp", "ep"):
            if plan.pp > 1 and getattr(plan, field) > 1:
                reason = f"ds_config has no {field} beside a pipeline (pp {plan.pp}); Megatron-DeepSpeed has"
                raise job.refuse(field, reason)
        levers = nested(job.lever_settings)
        settings: SettingsTree = {
            "train_batch_size": training.global_batch_size,
            "train_micro_batch_size_per_gpu": plan.micro_batch_size,
            "gradient_accumulation_steps": job.micro_batches,
            "zero_optimization": zero_section(job) | section_of(levers, "zero_optimization"),
        }
        if training.precision in HALF_PRECISIONS:
            settings[training.precision] = {"enabled": True} | section_of(levers, training.precision)
        if plan.tp > 1:
            settings["tensor_parallel"] = {"autotp_size": plan.tp}
        if plan.pp > 1:
            settings["pipeline"] = {"stages": plan.pp}
        if plan.cp > 1:
            settings["sequence_parallel_size"] = plan.cp
        if plan.ep > 1 or (plan.etp > 1 and model.is_moe):
            sizes = {"autoep_size": plan.ep, "expert_tensor_parallel_size": plan.etp}
            settings["expert_parallel"] = {"enabled": True, **sizes}
        if plan.recompute == "full":
            settings["activation_checkpointing"] = {"number_checkpoints": model.num_hidden_layers}
        settings |= levers
        notes = (
            ("compile" in levers, "call engine.compile() in the script: the file alone does not compile"),
            (plan.pp > 1, f"build the model as PipelineModule(num_stages={plan.pp}): DeepSpeed takes the "
             "stages from there"),
            (plan.cp > 1, "the model must use deepspeed.sequence (Ulysses) for sequence_parallel_size to "
             "take effect"),
            (plan.recompute == "full", "the model must call deepspeed.checkpointing (or "
             "gradient_checkpointing_enable) on every layer"),
            (plan.recompute == "none", "leave gradient checkpointing off in the model"),
            (plan.recompute is None, "the plan does not state recompute: the model's code decides"),
            ("zero_hpz_partition_size" in zero_section(job), "zero_hpz_partition_size keeps a copy of the "
             f"weights in every {plan.dp_shard} ranks; gradients and optimizer state are still sharded over "
             "all"),
        )  # fmt: skip
        return json_text(settings), tuple(note for applies, note in notes if applies)

    def read(self, text: str, options: ImportOptions) -> Draft:
        variables = options.variables
        for match in _PLACEHOLDER.finditer(text):
            if match[2] not in variables and not match[0].endswith('"'):
                rule = f"the file is a template, so give it here: {match[2]}=VALUE"
                raise InputError("variables", match[2], rule)
        filled = _PLACEHOLDER.sub(lambda match: match[1] + variables.get(match[2], f'"{match[2]}"'), text)
        settings = SettingsReader(parse_text(filled, "JSON"), "deepspeed")
        tp = settings.integer("tensor_parallel.autotp_size", minimum=0) or 1
        pp = settings.integer("pipeline.stages") or 1
        cp = settings.integer("sequence_parallel_size") or 1
        dp, micro, total = _batch(settings, tp * pp * cp, options)
        zero = "zero_optimization"
        stage = settings.integer(f"{zero}.stage", minimum=0) or 0
        partition = settings.integer(f"{zero}.zero_hpz_partition_size", minimum=0) or 1
        ep, etp = (
            settings.integer(f"expert_parallel.{name}") or 1
            for name in ("autoep_size", "expert_tensor_parallel_size")
        )
        has_experts = settings.flag("expert_parallel.enabled")
        checkpoints = any((
            settings.integer("activation_checkpointing.number_checkpoints", minimum=0),
            settings.flag("activation_checkpointing.partition_activations"),
            settings.flag("activation_checkpointing.cpu_checkpointing"),
            settings.integer("pipeline.activation_checkpoint_interval", minimum=0),
        ))  # fmt: skip
        plan = stated_plan(
            (tp, pp, cp, dp),
            stage,
            partition if partition > 1 and stage == 3 and dp * cp > 1 else dp * cp,
            ep=ep if has_experts else 1,
            etp=etp if has_experts else 1,
            micro_batch_size=micro,
            recompute="full" if checkpoints else None,
        )
        device, old = settings.text(f"{zero}.offload_optimizer.device"), settings.flag(f"{zero}.cpu_offload")
        offload: TrainingFields = {"optimizer_offload": True} if device in HOST_DEVICES or old else {}
        settings.used(f"{zero}.offload_optimizer.pin_memory")
        return Draft(
            plan,
            _precision(settings, options),
            global_batch_size=total,
            training=read_levers(settings, "deepspeed") | offload,
            notes=() if checkpoints else (RECOMPUTE_NOTE,),
            unused=settings.unused(),
        )


def zero_section(job: ExportJob) -> SettingsTree:
    section: SettingsTree = {"stage": job.zero_stage}
    # Ulysses ranks hold the same weights, and ZeRO shards over them too: the whole group is dp * cp.
    if job.zero_stage == 3 and job.plan.dp_shard not in (job.plan.dp, job.plan.data_ranks):
        section["zero_hpz_partition_size"] = job.plan.dp_shard
    if job.scenario.training.optimizer_offload:
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return section


def _batch(settings: SettingsReader, split: int, options: ImportOptions) -> tuple[int, int, int]:
    """Data ranks, micro-batch and batch: two of batch, micro-batch and accumulation fix the third."""
    total = options.global_batch_size or settings.integer("train_batch_size")
    micro = options.stated_micro_batch_size or settings.integer("train_micro_batch_size_per_gpu")
    steps = settings.integer("gradient_accumulation_steps")
    if total and micro and steps and options.num_devices is None:
        return _divide_exactly(total, micro * steps), micro, total
    dp = options.divide_devices(split, "the file alone does not determine the data-parallel size")
    if total is None and micro:
        total = micro * (steps or 1) * dp
    if micro is None and total:
        micro = _divide_exactly(total, (steps or 1) * dp)
    if total is None or micro is None:
        rule = "the file must state it, or give plan.micro_batch_size or training.global_batch_size"
        raise InputError("deepspeed: train_micro_batch_size_per_gpu", None, rule)
    return dp, micro, total


def _divide_exactly(total: int, divisor: int) -> int:
    if total % divisor:
        raise InputError("deepspeed: train_batch_size", total, f"must be a multiple of {divisor}")
    return total // divisor


def _precision(settings: SettingsReader, options: ImportOptions) -> str:
    """ "auto" takes the model's own dtype (transformers' integration)."""
    for name in HALF_PRECISIONS:
        if settings.flag(f"{name}.enabled"):
            return name
    if settings.flag("torch_autocast.enabled"):
        return "bf16"
    left_open = [name for name in HALF_PRECISIONS if settings.is_auto(f"{name}.enabled")]
    model = options.model or {}
    dtype = str(model.get("dtype") or model.get("torch_dtype") or "").removeprefix("torch.")
    if not left_open:
        return "fp32"
    return {"float16": "fp16", "float32": "fp32"}.get(dtype, "bf16" if "bf16" in left_open else "fp16")
