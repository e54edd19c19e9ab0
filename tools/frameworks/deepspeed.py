"""DeepSpeed: writes and reads ds_config JSON.

Names: deepspeed/runtime/config.py, runtime/zero/config.py, runtime/tensor_parallel/config.py and
module_inject/auto_ep_config.py of 0.19.8.
"""

import re

from tools.errors import InputError
from tools.frameworks.exporting import Export, ExportJob, Settings, json_text
from tools.frameworks.importing import (
    Batch,
    Degrees,
    Draft,
    ImportOptions,
    Sharding,
    read_levers,
    stated_plan,
)
from tools.frameworks.reading import SettingsReader, parse_json

HALF_PRECISIONS = ("bf16", "fp16")  # each a section of its own name
PRECISIONS = ("fp32", "fp16", "bf16")


def export_deepspeed(job: ExportJob) -> Export:
    """The whole plan, though DeepSpeed takes some of it from the model's code (see the notes)."""
    training, plan = job.scenario.training, job.plan
    if training.precision not in PRECISIONS:
        raise job.refuse_precision("ds_config", PRECISIONS)
    if plan.recompute == "selective":
        raise job.refuse("recompute", "DeepSpeed checkpoints whole layers; must be none or full")
    if plan.sequence_parallel:
        raise job.refuse("sequence_parallel", "AutoTP does not split the sequence; must be false")
    settings: Settings = {
        "train_batch_size": training.global_batch_size,
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": job.micro_batches,
        "zero_optimization": zero_section(job),
        **_precision_section(training.precision),
        **_parallel_sections(job),
    }
    if plan.recompute == "full":
        layers = job.scenario.model.num_hidden_layers
        settings["activation_checkpointing"] = {"number_checkpoints": layers}
    return Export("deepspeed", "ds_config.json", json_text(settings), _notes(job))


def zero_section(job: ExportJob) -> Settings:
    section: Settings = {"stage": job.zero_stage}
    # Ulysses ranks hold the same weights, and ZeRO shards over them too: the whole group is dp * cp.
    if job.zero_stage == 3 and job.plan.dp_shard not in (job.plan.dp, job.plan.dp * job.plan.cp):
        section["zero_hpz_partition_size"] = job.plan.dp_shard
    section |= {name.rpartition(".")[2]: value for name, value in job.lever_settings.items()}
    if job.scenario.training.optimizer_offload:
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return section


def _precision_section(precision: str) -> Settings:
    return {precision: {"enabled": True}} if precision in HALF_PRECISIONS else {}


def _parallel_sections(job: ExportJob) -> Settings:
    plan = job.plan
    sections: Settings = {}
    if plan.tp > 1:
        sections["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.pp > 1:
        sections["pipeline"] = {"stages": plan.pp}
    if plan.cp > 1:
        sections["sequence_parallel_size"] = plan.cp
    if plan.ep > 1 or (plan.etp > 1 and job.scenario.model.is_moe):
        sections["expert_parallel"] = {
            "enabled": True,
            "autoep_size": plan.ep,
            "expert_tensor_parallel_size": plan.etp,
        }
    return sections


def _notes(job: ExportJob) -> tuple[str, ...]:
    plan = job.plan
    notes = {
        f"build the model as PipelineModule(num_stages={plan.pp}): DeepSpeed takes the stages from there": (
            plan.pp > 1
        ),
        "the model must use deepspeed.sequence (Ulysses) for sequence_parallel_size to take effect": (
            plan.cp > 1
        ),
        "the model must call deepspeed.checkpointing (or gradient_checkpointing_enable) on every layer": (
            plan.recompute == "full"
        ),
        "leave gradient checkpointing off in the model": plan.recompute == "none",
        "the plan does not state recompute: the model's code decides": plan.recompute is None,
        f"zero_hpz_partition_size keeps a copy of the weights in every {plan.dp_shard} ranks; gradients and "
        "optimizer state are still sharded over all": "zero_hpz_partition_size" in zero_section(job),
    }
    return tuple(note for note, applies in notes.items() if applies)


RECOMPUTE_NOTE = (
    "recompute is left open: DeepSpeed's model code decides it (state it with --set plan.recompute=none)"
)


def import_deepspeed(text: str, options: ImportOptions) -> Draft:
    settings = SettingsReader(parse_json(_fill_template(text, options)), "deepspeed")
    tp = settings.integer("tensor_parallel.autotp_size", minimum=0) or 1
    pp = settings.integer("pipeline.stages") or 1
    cp = settings.integer("sequence_parallel_size") or 1
    dp, batch = _data_ranks(settings, tp * pp * cp, options)
    degrees = Degrees(tp, pp, cp, dp)
    checkpoints = _checkpoints_activations(settings)
    offload = _offloads_optimizer(settings)
    plan = stated_plan(
        degrees,
        _sharding(settings, dp * cp),
        ep=_expert_size(settings, "autoep_size"),
        etp=_expert_size(settings, "expert_tensor_parallel_size"),
        micro_batch_size=batch.micro_batch_size,
        vpp=1,
        sequence_parallel=False,
        recompute="full" if checkpoints else None,
    )
    return Draft(
        plan,
        _precision(settings, options),
        global_batch_size=batch.global_batch_size,
        num_devices=degrees.num_devices,
        training={**read_levers(settings, "deepspeed"), **({"optimizer_offload": True} if offload else {})},
        notes=(*(() if checkpoints else (RECOMPUTE_NOTE,)), *settings.unused_notes()),
    )


_PLACEHOLDER = re.compile(r"(:\s*)\"?([A-Z][A-Z0-9_]{2,})\"?(?=\s*[,}\n])")


def _fill_template(text: str, options: ImportOptions) -> str:
    """Templates leave values to names in capitals, which a script replaces."""
    for match in _PLACEHOLDER.finditer(text):
        if match[2] not in options.variables and not match[0].endswith('"'):
            reason = f"the file is a template, so give it here: --set {match[2]}=VALUE"
            raise InputError("--set", match[2], reason)
    return _PLACEHOLDER.sub(lambda match: match[1] + options.variables.get(match[2], f'"{match[2]}"'), text)


def _expert_size(settings: SettingsReader, name: str) -> int:
    size = settings.integer(f"expert_parallel.{name}") or 1
    return size if settings.flag("expert_parallel.enabled") else 1


def _data_ranks(settings: SettingsReader, split: int, options: ImportOptions) -> tuple[int, Batch]:
    """Two of train batch, micro-batch and accumulation fix the third for a number of data ranks."""
    total = options.global_batch_size or settings.integer("train_batch_size")
    micro = options.micro_batch_size or settings.integer("train_micro_batch_size_per_gpu")
    steps = settings.integer("gradient_accumulation_steps")
    if total and micro and steps and options.num_devices is None:
        return _divide_exactly(total, micro * steps), Batch(micro, total)
    dp = options.divide_devices(split, "the file alone does not determine the data-parallel size")
    if total is None and micro:
        total = micro * (steps or 1) * dp
    if micro is None and total:
        micro = _divide_exactly(total, (steps or 1) * dp)
    if total is None or micro is None:
        allowed = "the file must state it, or give --micro-batch-size or --global-batch-size"
        raise InputError("deepspeed: train_micro_batch_size_per_gpu", None, allowed)
    return dp, Batch(micro, total)


def _divide_exactly(total: int, divisor: int) -> int:
    if total % divisor:
        raise InputError("deepspeed: train_batch_size", total, f"must be a multiple of {divisor}")
    return total // divisor


def _sharding(settings: SettingsReader, data_ranks: int) -> Sharding:
    stage = settings.integer("zero_optimization.stage", minimum=0) or 0
    partition = settings.integer("zero_optimization.zero_hpz_partition_size", minimum=0) or 1
    return Sharding.over(stage, partition if partition > 1 and stage == 3 and data_ranks > 1 else data_ranks)


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
    if left_open:
        return {"float16": "fp16", "float32": "fp32"}.get(dtype, "bf16" if "bf16" in left_open else "fp16")
    return "fp32"


def _offloads_optimizer(settings: SettingsReader) -> bool:
    section = "zero_optimization"
    device = settings.text(f"{section}.offload_optimizer.device")
    old = settings.flag(f"{section}.cpu_offload")
    return device in ("cpu", "nvme") or bool(old)


def _checkpoints_activations(settings: SettingsReader) -> bool:
    stated = (
        settings.integer("activation_checkpointing.number_checkpoints", minimum=0),
        settings.flag("activation_checkpointing.partition_activations"),
        settings.flag("activation_checkpointing.cpu_checkpointing"),
        settings.integer("pipeline.activation_checkpoint_interval", minimum=0),
    )
    return any(stated)
