"""MaxText: writes and reads YAML that overrides base.yml, with the mesh split into ICI and DCN axes.

Names: src/maxtext/configs/base.yml and types.py of AI-Hypercomputer/maxtext, commit e591f30.
"""

import math
from collections.abc import Mapping

from tools.errors import InputError
from tools.frameworks.exporting import (
    RECOMPUTE_NOT_STATED,
    Export,
    ExportJob,
    Settings,
    first_names,
    yaml_text,
)
from tools.frameworks.importing import (
    Batch,
    Degrees,
    Draft,
    ImportOptions,
    Sharding,
    read_levers,
    stated_plan,
)
from tools.frameworks.maxtext_model import read_model
from tools.frameworks.reading import SettingsReader, parse_yaml
from tools.hardware import get_device
from tools.scenario import ClusterSpec
from tools.scenario.fields import usable_count

# From the axis with the most traffic to the one with the least: the first to be kept inside a slice.
INNERMOST_FIRST = ("tensor", "tensor_sequence", "context", "expert", "fsdp", "data", "pipeline")
AXES = (*INNERMOST_FIRST, "fsdp_transpose")
LEFTOVER_AXES = {"ici": "fsdp", "dcn": "data"}  # the axes that are -1 in base.yml
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
QUANTIZED_DTYPE = "bfloat16"
QUANTIZATIONS = {
    "fp8": "fp8", "fp8_full": "fp8", "fp8_gpu": "fp8", "nanoo_fp8": "fp8", "fp8_nanoo": "fp8",
    "te_fp8_delayedscaling": "fp8", "te_fp8_currentscaling": "fp8", "te_mxfp8": "mxfp8",
    "te_nvfp4": "nvfp4", "te_nvfp4_no_rht": "nvfp4", "int8": "int8",
}  # fmt: skip
# "minimal" keeps the results of all matrix products and recomputes what is cheap. Every other policy keeps
# some of them: "selective" is the nearest word.
REMAT_POLICIES = {"none": "none", "minimal": "selective", "full": "full"}
DEFAULT_PER_DEVICE_BATCH_SIZE = 12.0  # base.yml
DEFAULT_SEQ_LEN = 2048  # base.yml


def split_axes(sizes: Mapping[str, int], cluster: ClusterSpec) -> tuple[dict[str, int], dict[str, int]]:
    """The sizes inside a slice and across slices.

    A slice divides the devices and the sizes multiply to the devices, so taking the greatest common divisor
    axis by axis fills the slice exactly.
    """
    left = devices_per_slice(cluster)
    inside: dict[str, int] = {}
    for axis in INNERMOST_FIRST:
        inside[axis] = math.gcd(sizes[axis], left)
        left //= inside[axis]
    return inside, {axis: sizes[axis] // inside[axis] for axis in INNERMOST_FIRST}


def devices_per_slice(cluster: ClusterSpec) -> int:
    device = get_device(cluster.device, cluster.overrides)
    largest = device.fast_domain_devices if device.torus_dimensions else cluster.devices_per_node
    return math.gcd(cluster.num_devices, min(largest, cluster.num_devices))


def export_maxtext(job: ExportJob) -> Export:
    cluster = job.scenario.cluster
    hardware = get_device(cluster.device, cluster.overrides)
    settings: Settings = {
        "base_config": "base.yml",
        "hardware": "tpu" if hardware.vendor == "google" else "gpu",
        **_mesh_settings(job),
        **_batch_settings(job),
        **_precision_settings(job),
        **job.lever_settings,
    }
    if job.plan.recompute is not None:
        settings["remat_policy"] = first_names(REMAT_POLICIES)[job.plan.recompute]
    comments = (
        f"MaxText settings for {cluster.num_devices} devices, on top of base.yml.",
        "Use: python3 -m maxtext.trainers.pre_train.train maxtext.yml model_name=... run_name=...",
    )
    return Export("maxtext", "maxtext.yml", yaml_text(comments, settings), _notes(job))


def axis_sizes(job: ExportJob) -> dict[str, int]:
    """The mesh axes that the plan fills; all others stay 1."""
    plan = job.plan
    data, fsdp = _data_axes(job)
    return {
        "tensor": 1 if plan.sequence_parallel else plan.tp,
        "tensor_sequence": plan.tp if plan.sequence_parallel else 1,
        "context": plan.cp,
        "expert": plan.ep,
        "fsdp": fsdp,
        "data": data,
        "pipeline": plan.pp,
    }


def _data_axes(job: ExportJob) -> tuple[int, int]:
    plan = job.plan
    if job.zero_stage == 2:
        raise job.refuse("zero_stage", "MaxText shards weights (3), optimizer state (1) or nothing (0)")
    if plan.dp % plan.ep:
        raise job.refuse("ep", f"MaxText's expert axis splits the batch: must divide dp ({plan.dp})")
    split = plan.cp * plan.ep
    if job.zero_stage != 3:
        if split > 1:
            reason = f"MaxText splits weights over cp ({plan.cp}) and ep ({plan.ep}) too; must be 3"
            raise job.refuse("zero_stage", reason)
        if job.zero_stage == 1 and plan.dp_shard != plan.dp:
            reason = f"shard_optimizer_over_data takes the whole data axis; must be dp ({plan.dp})"
            raise job.refuse("dp_shard", reason)
        return plan.dp, 1
    if plan.dp_shard % split:
        reason = (
            f"MaxText splits weights over cp * ep = {plan.cp} * {plan.ep} too; must be a multiple of {split}"
        )
        raise job.refuse("dp_shard", reason)
    return plan.dp * plan.cp // plan.dp_shard, plan.dp_shard // split


def _mesh_settings(job: ExportJob) -> Settings:
    inside, across = split_axes(axis_sizes(job), job.scenario.cluster)
    return {
        **{f"ici_{axis}_parallelism": size for axis, size in inside.items()},
        **{f"dcn_{axis}_parallelism": size for axis, size in across.items()},
        **({"shard_optimizer_over_data": True} if job.zero_stage == 1 else {}),
    }


def _batch_settings(job: ExportJob) -> Settings:
    """MaxText counts the batch per device, whatever the axes: micro-batch * dp / devices, or a fraction."""
    training, plan = job.scenario.training, job.plan
    batch: Settings = {"max_target_length": training.seq_len}
    if plan.pp == 1:
        sequences = plan.micro_batch_size * plan.dp
        return batch | {
            "per_device_batch_size": _per_device(sequences, job),
            "gradient_accumulation_steps": job.micro_batches,
        }
    return batch | {
        "per_device_batch_size": _per_device(training.global_batch_size, job),
        "gradient_accumulation_steps": 1,
        "num_pipeline_microbatches": job.micro_batches,
        "num_pipeline_repeats": plan.vpp,
        **_layers_per_stage(job),
    }


def _layers_per_stage(job: ExportJob) -> Settings:
    """Leading dense layers of an MoE model may stay outside the pipeline."""
    chunks, model = job.plan.pp * job.plan.vpp, job.scenario.model
    layers = model.num_hidden_layers
    piped = layers if layers % chunks == 0 else layers - model.first_k_dense_replace
    return {"num_layers_per_pipeline_stage": piped // chunks, "pipeline_parallel_layers": piped}


def _per_device(sequences: int, job: ExportJob) -> float | int:
    """MaxText multiplies back and cuts to an integer: a fraction that comes out too small is refused."""
    devices = job.scenario.cluster.num_devices
    value = sequences / devices
    if int(devices * value) != sequences:
        reason = f"{sequences} sequences over {devices} devices is a fraction that MaxText would round down"
        raise job.refuse("micro_batch_size", reason)
    return int(value) if value.is_integer() else value


def _precision_settings(job: ExportJob) -> Settings:
    precision = job.scenario.training.precision
    if quantization := first_names(QUANTIZATIONS).get(precision):
        return {"dtype": QUANTIZED_DTYPE, "quantization": quantization}
    return {"dtype": first_names(DTYPES)[precision]}


def _notes(job: ExportJob) -> tuple[str, ...]:
    plan, notes = job.plan, list[str]()
    if plan.recompute is None:
        notes.append(RECOMPUTE_NOT_STATED)
    if job.scenario.model.is_moe and plan.tp > 1 and plan.etp == 1:
        notes.append(f"MaxText splits the experts over the tensor axis too: etp is {plan.tp} there, not 1")
    if not job.scenario.training.flash_attention:
        notes.append("set attention=dot_product to train without flash attention")
    return tuple(notes)


def import_maxtext(text: str, options: ImportOptions) -> Draft:
    settings = SettingsReader(parse_yaml(text), "maxtext")
    axes = _axes(settings, options)
    degrees = Degrees(
        tp=axes["tensor"] * axes["tensor_sequence"],
        pp=axes["pipeline"],
        cp=axes["context"],
        dp=axes["data"] * axes["fsdp"] * axes["fsdp_transpose"] * axes["expert"],
    )
    stated = read_model(settings)
    is_whole = "hidden_size" in stated and "num_hidden_layers" in stated
    model = stated if is_whole else {}
    layers = usable_count(model.get("num_hidden_layers")) or None
    batch = _batch(settings, degrees)
    plan = stated_plan(
        degrees,
        _sharding(settings, axes, degrees.dp),
        ep=axes["expert"],
        micro_batch_size=batch.micro_batch_size,
        vpp=_repeats(settings, degrees.pp, options, layers),
        sequence_parallel=axes["tensor_sequence"] > 1,
        recompute=REMAT_POLICIES.get(settings.word("remat_policy") or "full", "selective"),
    )
    for name in ("base_config", "hardware"):
        settings.word(name)
    return Draft(
        plan,
        _precision(settings),
        seq_len=settings.integer("max_target_length") or DEFAULT_SEQ_LEN,
        global_batch_size=batch.global_batch_size,
        num_devices=degrees.num_devices,
        model=model,
        model_changes={} if is_whole else stated,
        model_name=settings.word("model_name") or "",
        training=read_levers(settings, "maxtext"),
        notes=settings.unused_notes(),
    )


def _axes(settings: SettingsReader, options: ImportOptions) -> dict[str, int]:
    """Sizes inside a slice times sizes across slices; -1 takes what is left of a slice, or of the slices."""
    inside, across = _sizes(settings, "ici"), _sizes(settings, "dcn")
    slices = _fill(across, "dcn", options.num_slices)
    if -1 in inside.values():
        why = "one ici axis is -1 and takes the devices that are left (base.yml: ici_fsdp_parallelism)"
        devices = options.get_num_devices(why)
        if devices % slices:
            raise InputError("--num-devices", devices, f"must be a multiple of the {slices} slices")
        _fill(inside, "ici", devices // slices)
    return {axis: inside[axis] * across[axis] for axis in AXES}


def _sizes(settings: SettingsReader, level: str) -> dict[str, int]:
    sizes = {}
    for axis in AXES:
        stated = settings.integer(f"{level}_{axis}_parallelism", minimum=-1)
        default = -1 if axis == LEFTOVER_AXES[level] else 1
        sizes[axis] = default if stated is None else stated or 1
    return sizes


def _fill(sizes: dict[str, int], level: str, target: int) -> int:
    """Replaces the one -1 by what is left of the target, and returns the product."""
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    product = math.prod(size for size in sizes.values() if size != -1)
    if not open_axes:
        return product
    if len(open_axes) > 1:
        raise InputError(f"maxtext: {level}_{open_axes[1]}_parallelism", -1, "only one axis may be -1")
    # --num-slices defaults to 1 although the file itself may state more.
    sizes[open_axes[0]] = 1 if level == "dcn" and target == 1 else _leftover(target, product, level)
    return product * sizes[open_axes[0]]


def _leftover(target: int, product: int, level: str) -> int:
    option = "--num-devices" if level == "ici" else "--num-slices"
    if target % product:
        raise InputError(option, target, f"must be a multiple of the file's {level} degrees ({product})")
    return target // product


def _sharding(settings: SettingsReader, axes: Mapping[str, int], dp: int) -> Sharding:
    weights = axes["fsdp"] * axes["fsdp_transpose"] * axes["context"] * axes["expert"]
    over_data = settings.flag("shard_optimizer_over_data")
    return Sharding(3, weights) if weights > 1 else Sharding.over(int(bool(over_data)), dp)


def _batch(settings: SettingsReader, degrees: Degrees) -> Batch:
    per_device = settings.number("per_device_batch_size") or DEFAULT_PER_DEVICE_BATCH_SIZE
    steps = settings.integer("gradient_accumulation_steps") or 1
    in_pipeline = settings.integer("num_pipeline_microbatches", minimum=-1)
    sequences = int(degrees.num_devices * per_device)
    batches = 1
    if degrees.pp > 1:
        batches = in_pipeline if in_pipeline and in_pipeline > 0 else degrees.pp
    micro, rest = divmod(sequences, degrees.dp * batches)
    if rest or micro < 1:
        allowed = f"{sequences} sequences must divide over {degrees.dp} data ranks * {batches} micro-batches"
        raise InputError("maxtext: per_device_batch_size", per_device, allowed)
    return Batch(micro, sequences * steps)


def _repeats(settings: SettingsReader, pp: int, options: ImportOptions, layers_in_file: int | None) -> int:
    stated = settings.integer("num_pipeline_repeats", minimum=-1)
    per_stage = settings.integer("num_layers_per_pipeline_stage") or 1
    piped = settings.integer("pipeline_parallel_layers", minimum=-1)
    if pp == 1:
        return 1
    if stated and stated > 0:
        return stated
    layers = piped if piped and piped > 0 else options.get_num_layers(layers_in_file)
    return max(1, layers // (pp * per_stage))


def _precision(settings: SettingsReader) -> str:
    dtype = settings.word("dtype", DTYPES) or "bfloat16"
    quantization = settings.word("quantization", ("", *QUANTIZATIONS))
    return QUANTIZATIONS[quantization] if quantization else DTYPES[dtype]
