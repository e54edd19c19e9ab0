"""Megatron-LM's arguments: a launch script's text, or YAML by the same names.

Names and defaults: megatron/training/arguments.py, TransformerConfig and TrainingConfig.
"""

import re
from typing import Any

from tools.errors import InputError
from tools.imports.arguments import has_options, parse_arguments
from tools.imports.assemble import Draft, Given, divide_devices, get_num_devices, get_num_layers, is_moe
from tools.imports.megatron_model import read_model
from tools.imports.reading import check_length, parse_yaml
from tools.imports.settings import Settings

STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
MAX_STAGES = 10_000


def read_megatron(text: str, given: Given) -> Draft:
    values, is_arguments = _values(text)
    settings = Settings(values, "megatron", bare_flags=is_arguments)
    model = read_model(settings)
    sizes = _degrees(settings, given)
    plan = sizes | _zero(settings, sizes) | _experts(settings, sizes["tp"], given, model)
    plan |= {"vpp": _vpp(settings, sizes["pp"], given, model.get("num_hidden_layers"))}
    plan |= {"sequence_parallel": bool(settings.flag("sequence_parallel"))}
    plan |= {"recompute": _recompute(settings), "micro_batch_size": settings.integer("micro_batch_size")}
    total = settings.integer("global_batch_size")
    micro = given.micro_batch_size or plan["micro_batch_size"]
    training = {
        "seq_len": settings.integer("seq_length") or settings.integer("encoder_seq_length"),
        "global_batch_size": total or (micro * sizes["dp"] if micro else None),
        "precision": _precision(settings),
    }
    notes = [f"not used: {name}" for name in settings.unread()]
    devices = sizes["tp"] * sizes["pp"] * sizes["cp"] * sizes["dp"]
    return Draft(plan, training, model, num_devices=devices, notes=notes)


def _values(text: str) -> tuple[dict[str, Any], bool]:
    """The settings by name, and whether they come from arguments (else from YAML)."""
    check_length(text)
    if has_options(text):
        return parse_arguments(text), True
    return _leaves(parse_yaml(text), depth=4), False


def _leaves(values: dict[str, Any], depth: int) -> dict[str, Any]:
    """YAML files group the arguments; the names are unique without the groups."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and depth > 1:
            found |= _leaves(value, depth - 1)
        else:
            found[str(key).replace("-", "_")] = value
    return found


def _degrees(settings: Settings, given: Given) -> dict[str, Any]:
    tp = settings.integer("tensor_model_parallel_size") or 1
    pp = settings.integer("pipeline_model_parallel_size") or 1
    cp = settings.integer("context_parallel_size") or 1
    devices = given.num_devices or _launched(settings)
    if devices is None:
        devices = get_num_devices(given, "Megatron takes the data-parallel size from it")
    return {"tp": tp, "pp": pp, "cp": cp, "dp": divide_devices(devices, tp * pp * cp)}


def _launched(settings: Settings) -> int | None:
    """torchrun's own options, where the script states them as numbers."""
    counts = []
    for name in ("nproc_per_node", "nnodes"):
        try:
            counts.append(settings.integer(name))
        except InputError:  # "gpu", "auto" or a range are torchrun's business, not a mistake
            counts.append(None)
    return counts[0] * (counts[1] or 1) if counts[0] else None


def _zero(settings: Settings, sizes: dict[str, Any]) -> dict[str, int]:
    strategy = settings.word("data_parallel_sharding_strategy", STRATEGIES) or "optim_grads_params"
    switches = [settings.flag(name) for name in ("use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2")]
    optimizer = bool(settings.flag("use_distributed_optimizer"))
    replicas = settings.integer("num_distributed_optimizer_instances") or 1
    settings.word("ckpt_format")
    stage = STRATEGIES[strategy] if any(switches) else int(optimizer)
    whole = sizes["dp"] * sizes["cp"]
    if whole % replicas:
        name = "megatron: num_distributed_optimizer_instances"
        raise InputError(name, replicas, f"must divide the {whole} data-parallel ranks")
    if stage == 0 or whole == replicas:
        return {"zero_stage": 0, "dp_shard": 1}
    return {"zero_stage": stage, "dp_shard": whole // replicas}


def _experts(settings: Settings, tp: int, given: Given, model: dict[str, Any]) -> dict[str, int]:
    ep = settings.integer("expert_model_parallel_size") or 1
    etp = settings.integer("expert_tensor_parallel_size")
    # Megatron splits experts like the rest where it is not told otherwise.
    return {"ep": ep, "etp": (etp or tp) if is_moe(given, model) else 1}


def _vpp(settings: Settings, pp: int, given: Given, layers_in_file: int | None) -> int:
    stated = settings.integer("num_virtual_stages_per_pipeline_rank")
    size = settings.integer("virtual_pipeline_model_parallel_size")
    per_chunk = settings.integer("num_layers_per_virtual_pipeline_stage")
    layout = settings.word("pipeline_model_parallel_layout")
    ends = [bool(settings.flag(f"account_for_{end}_in_pipeline_split")) for end in ("embedding", "loss")]
    for end in ("first", "last"):
        settings.integer(f"decoder_{end}_pipeline_num_layers")
    if pp == 1:
        return 1
    if layout:
        return max(1, _stages(layout) // pp)
    if per_chunk:
        layers = get_num_layers(given, layers_in_file) + sum(ends)
        return max(1, layers // (pp * per_chunk))
    return stated or size or 1


def _stages(layout: str) -> int:
    """Stages are divided by bars; `(tt|)*29` repeats (pipeline_parallel_layer_layout.py)."""
    groups: list[tuple[str, str]] = re.findall(r"\(([^()]*)\)\*(\d{1,4})", layout)
    repeated = sum(group.count("|") * int(times) for group, times in groups)
    stages = repeated + re.sub(r"\([^()]*\)\*\d+", "", layout).count("|") + 1
    if stages > MAX_STAGES:
        raise InputError("megatron: pipeline_model_parallel_layout", layout, f"at most {MAX_STAGES} stages")
    return stages


def _recompute(settings: Settings) -> str:
    granularity = settings.word("recompute_granularity", ("full", "selective"))
    activations = settings.flag("recompute_activations")
    settings.word("recompute_method")
    settings.integer("recompute_num_layers")
    return "selective" if activations else granularity or "none"


def _precision(settings: Settings) -> str:
    fp8 = settings.word("fp8_format") or settings.word("fp8")
    recipe = settings.word("fp8_recipe")
    fp4 = settings.word("fp4_format") or settings.word("fp4")
    half = [name for name in ("bf16", "fp16") if settings.flag(name)]
    if fp4:
        return "nvfp4"
    if fp8:
        return "mxfp8" if recipe == "mxfp8" else "fp8"
    return half[0] if half else "fp32"
