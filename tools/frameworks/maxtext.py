"""MaxText: writes and reads YAML that overrides base.yml, with the mesh split into ICI and DCN axes.

Names: src/maxtext/configs/base.yml and types.py of AI-Hypercomputer/maxtext, commit e591f30.
"""

import math
from collections.abc import Mapping
from typing import Any

from tools.errors import InputError
from tools.frameworks.assemble import Draft, Given, get_num_devices, get_num_layers
from tools.frameworks.reading import Settings, parse_yaml
from tools.frameworks.writing import NO_RECOMPUTE_STATED, Export, Job, yaml_text
from tools.hardware import get_device
from tools.scenario import ClusterSpec

# From the axis that talks most to the one that talks least: the first to be kept inside a slice.
INNERMOST_FIRST = ("tensor", "tensor_sequence", "context", "expert", "fsdp", "data", "pipeline")


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


DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
QUANTIZATIONS = {"fp8": "fp8", "mxfp8": "te_mxfp8", "nvfp4": "te_nvfp4", "int8": "int8"}
# "minimal" keeps the results of all matrix products and recomputes what is cheap.
REMAT_POLICIES = {"none": "none", "selective": "minimal", "full": "full"}


def export_maxtext(job: Job) -> Export:
    cluster = job.scenario.cluster
    hardware = get_device(cluster.device, cluster.overrides)
    settings = {
        "base_config": "base.yml",
        "hardware": "tpu" if hardware.vendor == "google" else "gpu",
        **_mesh(job),
        **_batch(job),
        **_precision(job),
    }
    if job.plan.recompute is not None:
        settings["remat_policy"] = REMAT_POLICIES[job.plan.recompute]
    comments = (
        f"MaxText settings for {cluster.num_devices} devices, on top of base.yml.",
        "Use: python3 -m maxtext.trainers.pre_train.train maxtext.yml model_name=... run_name=...",
    )
    return Export("maxtext", "maxtext.yml", yaml_text(comments, settings), _notes(job))


def axis_sizes(job: Job) -> dict[str, int]:
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


def _data_axes(job: Job) -> tuple[int, int]:
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


def _mesh(job: Job) -> dict[str, Any]:
    inside, across = split_axes(axis_sizes(job), job.scenario.cluster)
    named = {f"ici_{axis}_parallelism": size for axis, size in inside.items()}
    named |= {f"dcn_{axis}_parallelism": size for axis, size in across.items()}
    zero1: dict[str, Any] = {"shard_optimizer_over_data": True} if job.zero_stage == 1 else {}
    return named | zero1


def _batch(job: Job) -> dict[str, Any]:
    """MaxText counts the batch per device, whatever the axes: micro-batch * dp / devices, or a fraction."""
    training, plan = job.scenario.training, job.plan
    batch: dict[str, Any] = {"max_target_length": training.seq_len}
    if plan.pp == 1:
        sequences = plan.micro_batch_size * plan.dp
        return batch | {
            "per_device_batch_size": _per_device(sequences, job),
            "gradient_accumulation_steps": job.micro_batches,
        }
    layers = job.scenario.model.num_hidden_layers
    return batch | {
        "per_device_batch_size": _per_device(training.global_batch_size, job),
        "gradient_accumulation_steps": 1,
        "num_pipeline_microbatches": job.micro_batches,
        "num_pipeline_repeats": plan.vpp,
        **_layers_per_stage(job, layers),
    }


def _layers_per_stage(job: Job, layers: int) -> dict[str, int]:
    """Leading dense layers of an MoE model may stay outside the pipeline."""
    chunks, model = job.plan.pp * job.plan.vpp, job.scenario.model
    piped = layers if layers % chunks == 0 else layers - model.first_k_dense_replace
    return {"num_layers_per_pipeline_stage": piped // chunks, "pipeline_parallel_layers": piped}


def _per_device(sequences: int, job: Job) -> float | int:
    """MaxText multiplies back and cuts to an integer: a fraction that comes out too small is refused."""
    devices = job.scenario.cluster.num_devices
    value = sequences / devices
    if int(devices * value) != sequences:
        reason = f"{sequences} sequences over {devices} devices is a fraction that MaxText would round down"
        raise job.refuse("micro_batch_size", reason)
    return int(value) if value.is_integer() else value


def _precision(job: Job) -> dict[str, str]:
    precision = job.scenario.training.precision
    if precision in QUANTIZATIONS:
        return {"dtype": "bfloat16", "quantization": QUANTIZATIONS[precision]}
    return {"dtype": DTYPES[precision]}


def _notes(job: Job) -> tuple[str, ...]:
    plan, told = job.plan, []
    if plan.recompute is None:
        told.append(NO_RECOMPUTE_STATED)
    if job.scenario.model.is_moe and plan.tp > 1 and plan.etp == 1:
        told.append(f"MaxText splits the experts over the tensor axis too: etp is {plan.tp} there, not 1")
    if not job.scenario.training.flash_attention:
        told.append("set attention=dot_product to train without flash attention")
    return tuple(told)


AXES = ("tensor", "tensor_sequence", "context", "expert", "fsdp", "fsdp_transpose", "data", "pipeline")
LEFTOVER = {"ici": "fsdp", "dcn": "data"}  # the axes that are -1 in base.yml
PER_DEVICE_BATCH_SIZE = 12.0  # base.yml
PRECISION_OF_QUANTIZATION = {
    "": None, "fp8": "fp8", "fp8_full": "fp8", "fp8_gpu": "fp8", "nanoo_fp8": "fp8", "fp8_nanoo": "fp8",
    "te_fp8_delayedscaling": "fp8", "te_fp8_currentscaling": "fp8", "te_mxfp8": "mxfp8",
    "te_nvfp4": "nvfp4", "te_nvfp4_no_rht": "nvfp4", "int8": "int8",
}  # fmt: skip
PRECISION_OF_DTYPE = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
# Policies between the two ends keep some matrix products: "selective" is the nearest word.
REMATERIALISED = {"full": "full", "none": "none"}
MODEL_NAMES = {
    "base_num_decoder_layers": "num_hidden_layers",
    "base_emb_dim": "hidden_size",
    "base_mlp_dim": "intermediate_size",
    "base_num_query_heads": "num_attention_heads",
    "base_num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
}


def read_maxtext(text: str, given: Given) -> Draft:
    settings = Settings(parse_yaml(text), "maxtext")
    axes = _axes(settings, given)
    model = {ours: settings.integer(theirs) for theirs, ours in MODEL_NAMES.items()}
    sizes = _degrees(axes)
    devices = math.prod(axes.values())
    batch = _batch_maxtext(settings, sizes, devices)
    training = {
        "seq_len": settings.integer("max_target_length") or 2048,
        "global_batch_size": batch.pop("global_batch_size"),
        "precision": _precision_maxtext(settings),
    }
    policy = settings.word("remat_policy") or "full"
    plan = sizes | batch | _zero(settings, axes, sizes)
    plan |= {"vpp": _repeats(settings, sizes["pp"], given, model["num_hidden_layers"])}
    plan |= {"recompute": REMATERIALISED.get(policy, "selective")}
    for name in ("base_config", "hardware"):
        settings.word(name)
    notes = [f"not used: {name}" for name in settings.unread()]
    return Draft(plan, training, model, num_devices=devices, notes=notes)


def _axes(settings: Settings, given: Given) -> dict[str, int]:
    """Sizes inside a slice times sizes across slices; -1 takes what is left of a slice, or of the slices."""
    inside, across = _sizes(settings, "ici"), _sizes(settings, "dcn")
    slices = _filled(across, "dcn", given.num_slices)
    if -1 in inside.values():
        why = "one ici axis is -1 and takes the devices that are left (base.yml: ici_fsdp_parallelism)"
        devices = get_num_devices(given, why)
        if devices % slices:
            raise InputError("--num-devices", devices, f"must be a multiple of the {slices} slices")
        _filled(inside, "ici", devices // slices)
    return {axis: inside[axis] * across[axis] for axis in AXES}


def _sizes(settings: Settings, level: str) -> dict[str, int]:
    sizes = {}
    for axis in AXES:
        stated = settings.integer(f"{level}_{axis}_parallelism", least=-1)
        default = -1 if axis == LEFTOVER[level] else 1
        sizes[axis] = default if stated is None else stated or 1
    return sizes


def _filled(sizes: dict[str, int], level: str, target: int) -> int:
    """Puts the leftover in place of the one -1, and returns the product."""
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    product = math.prod(size for size in sizes.values() if size != -1)
    if not open_axes:
        return product
    if len(open_axes) > 1:
        raise InputError(f"maxtext: {level}_{open_axes[1]}_parallelism", -1, "only one axis may be -1")
    # Across slices the given number may be its default of 1 where the file itself says more.
    sizes[open_axes[0]] = 1 if level == "dcn" and target == 1 else _exactly(target, product, level)
    return product * sizes[open_axes[0]]


def _exactly(target: int, product: int, level: str) -> int:
    option = "--num-devices" if level == "ici" else "--num-slices"
    if target % product:
        raise InputError(option, target, f"must be a multiple of the file's {level} degrees ({product})")
    return target // product


def _degrees(axes: dict[str, int]) -> dict[str, Any]:
    return {
        "tp": axes["tensor"] * axes["tensor_sequence"],
        "pp": axes["pipeline"],
        "cp": axes["context"],
        "ep": axes["expert"],
        "dp": axes["data"] * axes["fsdp"] * axes["fsdp_transpose"] * axes["expert"],
        "sequence_parallel": axes["tensor_sequence"] > 1,
    }


def _zero(settings: Settings, axes: dict[str, int], sizes: dict[str, Any]) -> dict[str, int]:
    weights = axes["fsdp"] * axes["fsdp_transpose"] * axes["context"] * axes["expert"]
    over_data = settings.flag("shard_optimizer_over_data")
    if weights > 1:
        return {"zero_stage": 3, "dp_shard": weights}
    if over_data and sizes["dp"] > 1:
        return {"zero_stage": 1, "dp_shard": sizes["dp"]}
    return {"zero_stage": 0, "dp_shard": 1}


def _batch_maxtext(settings: Settings, sizes: dict[str, Any], devices: int) -> dict[str, int]:
    per_device = settings.number("per_device_batch_size") or PER_DEVICE_BATCH_SIZE
    steps = settings.integer("gradient_accumulation_steps") or 1
    piped = settings.integer("num_pipeline_microbatches", least=-1)
    sequences = int(devices * per_device)
    batches = 1
    if sizes["pp"] > 1:
        batches = piped if piped and piped > 0 else sizes["pp"]
    micro, rest = divmod(sequences, sizes["dp"] * batches)
    if rest or micro < 1:
        allowed = f"{sequences} sequences must divide over {sizes['dp']} data ranks * {batches} micro-batches"
        raise InputError("maxtext: per_device_batch_size", per_device, allowed)
    return {"micro_batch_size": micro, "global_batch_size": sequences * steps}


def _repeats(settings: Settings, pp: int, given: Given, layers_in_file: int | None) -> int:
    stated = settings.integer("num_pipeline_repeats", least=-1)
    per_stage = settings.integer("num_layers_per_pipeline_stage") or 1
    piped = settings.integer("pipeline_parallel_layers", least=-1)
    if pp == 1:
        return 1
    if stated and stated > 0:
        return stated
    layers = piped if piped and piped > 0 else get_num_layers(given, layers_in_file)
    return max(1, layers // (pp * per_stage))


def _precision_maxtext(settings: Settings) -> str:
    dtype = PRECISION_OF_DTYPE[settings.word("dtype", PRECISION_OF_DTYPE) or "bfloat16"]
    return PRECISION_OF_QUANTIZATION[settings.word("quantization", PRECISION_OF_QUANTIZATION) or ""] or dtype
