"""MaxText's YAML (src/maxtext/configs/base.yml, types.py): a file of overrides, the rest as in base.yml."""

import math
from typing import Any

from tools.errors import InputError
from tools.imports.assemble import Draft, Given, get_num_devices, get_num_layers
from tools.imports.reading import parse_yaml
from tools.imports.settings import Settings

AXES = ("tensor", "tensor_sequence", "context", "expert", "fsdp", "fsdp_transpose", "data", "pipeline")
LEFTOVER = {"ici": "fsdp", "dcn": "data"}  # the axes that are -1 in base.yml
PER_DEVICE_BATCH_SIZE = 12.0  # base.yml
QUANTIZATIONS = {
    "": None, "fp8": "fp8", "fp8_full": "fp8", "fp8_gpu": "fp8", "nanoo_fp8": "fp8", "fp8_nanoo": "fp8",
    "te_fp8_delayedscaling": "fp8", "te_fp8_currentscaling": "fp8", "te_mxfp8": "mxfp8",
    "te_nvfp4": "nvfp4", "te_nvfp4_no_rht": "nvfp4", "int8": "int8",
}  # fmt: skip
DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
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
    batch = _batch(settings, sizes, devices)
    training = {
        "seq_len": settings.integer("max_target_length") or 2048,
        "global_batch_size": batch.pop("global_batch_size"),
        "precision": _precision(settings),
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


def _batch(settings: Settings, sizes: dict[str, Any], devices: int) -> dict[str, int]:
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


def _precision(settings: Settings) -> str:
    dtype = DTYPES[settings.word("dtype", DTYPES) or "bfloat16"]
    return QUANTIZATIONS[settings.word("quantization", QUANTIZATIONS) or ""] or dtype
