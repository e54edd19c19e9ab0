"""Megatron-LM: writes the arguments of its training scripts as a bash array; reads launch scripts or YAML.

Names and defaults: megatron/training/arguments.py, TransformerConfig, ModelParallelConfig and
TrainingConfig.
"""

import re
import shlex
from typing import Any

from tools.errors import InputError
from tools.frameworks.assemble import Draft, Given, divide_devices, get_num_devices, get_num_layers, is_moe
from tools.frameworks.reading import Settings, check_length, has_options, parse_arguments, parse_yaml
from tools.frameworks.writing import NO_RECOMPUTE_STATED, Export, Job, comment_lines

SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
PRECISION_ARGUMENTS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp16": {"fp16": True},
    "bf16": {"bf16": True},
    "fp8": {"bf16": True, "fp8_format": "hybrid"},
    "mxfp8": {"bf16": True, "fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4_format": "e2m1"},
}
RECOMPUTE_ARGUMENTS: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def export_megatron(job: Job) -> Export:
    """Arguments only: model, data and optimizer stay in the launch script."""
    cluster = job.scenario.cluster
    comments = (
        f"Megatron-LM arguments for {cluster.num_devices} devices, {cluster.devices_per_node} a node.",
        'Use: source megatron-args.sh; torchrun ... pretrain_gpt.py "${ASAP_ARGS[@]}" ...',
    )
    rows = "".join(f"    {_row(name, value)}\n" for name, value in arguments(job).items())
    text = f"{comment_lines(comments)}ASAP_ARGS=(\n{rows})\n"
    return Export("megatron", "megatron-args.sh", text, notes(job))


def arguments(job: Job) -> dict[str, Any]:
    """By Megatron's own names with underscores; True for a flag."""
    training, plan = job.scenario.training, job.plan
    if training.precision not in PRECISION_ARGUMENTS:
        raise job.refuse_precision("Megatron-LM", PRECISION_ARGUMENTS)
    return {
        **degrees(job),
        **_stages(job),
        **_sharding(job),
        "micro_batch_size": plan.micro_batch_size,
        "global_batch_size": training.global_batch_size,
        "seq_length": training.seq_len,
        **PRECISION_ARGUMENTS[training.precision],
        **RECOMPUTE_ARGUMENTS[plan.recompute or "none"],
    }


def degrees(job: Job) -> dict[str, Any]:
    plan = job.plan
    sizes: dict[str, Any] = {
        "tensor_model_parallel_size": plan.tp,
        "pipeline_model_parallel_size": plan.pp,
        "context_parallel_size": plan.cp,
    }
    if job.scenario.model.is_moe:
        # Megatron's own default for experts is tp, so that 1 must be written too.
        sizes |= {"expert_model_parallel_size": plan.ep, "expert_tensor_parallel_size": plan.etp}
    return sizes | ({"sequence_parallel": True} if plan.sequence_parallel else {})


def _stages(job: Job) -> dict[str, Any]:
    uneven = uneven_stages(job, "decoder_last_pipeline_num_layers")
    if job.plan.vpp == 1 or "pipeline_model_parallel_layout" in uneven:
        return uneven  # a layout tells the chunks too, and Megatron-LM takes one of the two only
    return {"num_virtual_stages_per_pipeline_rank": job.plan.vpp} | uneven


def uneven_stages(job: Job, last_stage_name: str) -> dict[str, Any]:
    """Layers that do not divide: embedding and loss count as layers, or the last stage takes fewer.

    TransformerConfig and the command line call the layers of the last stage differently.
    """
    plan, layers = job.plan, job.scenario.model.num_hidden_layers
    missing = -layers % (plan.pp * plan.vpp)
    if missing <= 2:
        flags = ("account_for_loss_in_pipeline_split", "account_for_embedding_in_pipeline_split")
        return dict.fromkeys(flags[:missing], True)
    if plan.vpp > 1:
        return {"pipeline_model_parallel_layout": _layout(job, (layers + missing) // (plan.pp * plan.vpp))}
    per_stage = -(-layers // plan.pp)
    last = layers - per_stage * (plan.pp - 1)
    if last < 1:
        reason = f"{layers} layers in {plan.pp} stages leave the last one empty"
        raise job.refuse("pp", reason)
    return {last_stage_name: last}


def _layout(job: Job, places: int) -> str:
    """Three places are missing: embedding and loss take one each, and MTP (or nothing) the third.

    Letters as in megatron/core/transformer/pipeline_parallel_layer_layout.py.
    """
    if places < 2:
        raise job.refuse("vpp", "leaves no layer for the chunks of embedding and loss")
    middle = f"({'t' * places}|)*{job.plan.pp * job.plan.vpp - 2}"
    predictions = "m" * job.scenario.model.num_nextn_predict_layers
    return f"E{'t' * (places - 1)}|{middle}{'t' * (places - 2)}{predictions}L"


def _sharding(job: Job) -> dict[str, Any]:
    if job.zero_stage == 0:
        return {}
    check_replicas(job)
    chosen: dict[str, Any] = {"use_distributed_optimizer": True}
    if job.zero_stage in SHARDING:
        chosen |= {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": SHARDING[job.zero_stage],
            "ckpt_format": "fsdp_dtensor",  # the only format that Megatron-FSDP saves in
        }
    return chosen | ({"num_distributed_optimizer_instances": job.replicas} if job.replicas > 1 else {})


def check_replicas(job: Job) -> None:
    """The replicas of what is sharded must divide the data ranks of the experts too (parallel_state.py)."""
    plan = job.plan
    expert_ranks = plan.dp * plan.cp * plan.tp // (plan.ep * plan.etp)
    if job.scenario.model.is_moe and expert_ranks % job.replicas:
        reason = f"{job.replicas} replicas do not divide the {expert_ranks} data ranks of an expert"
        raise job.refuse("dp_shard", reason)


def notes(job: Job) -> tuple[str, ...]:
    plan, told = job.plan, []
    if plan.recompute is None:
        told.append(NO_RECOMPUTE_STATED)
    if job.zero_stage and plan.cp > 1 and plan.dp_shard == plan.dp:
        told.append(
            f"dp_shard {plan.dp} is less than dp * cp = {plan.dp * plan.cp}: what is sharded is kept "
            f"{job.replicas} times; Megatron's own default shards over all {plan.dp * plan.cp}"
        )
    if job.zero_stage in SHARDING:
        told.append("Megatron-FSDP needs CUDA_DEVICE_MAX_CONNECTIONS unset or above 1")
    return tuple(told)


def _row(name: str, value: object) -> str:
    flag = "--" + name.replace("_", "-")
    return flag if value is True else f"{flag} {shlex.quote(str(value))}"


PLAIN_NAMES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "kv_channels": "head_dim",
    "num_experts": "num_experts",
    "moe_layer_freq": "moe_layer_freq",
}
LATENT_NAMES = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}


def read_model(settings: Settings) -> dict[str, Any]:
    model: dict[str, Any] = {ours: settings.integer(theirs) for theirs, ours in PLAIN_NAMES.items()}
    model |= _attention(settings, model) | _feed_forward(settings, model)
    model["vocab_size"] = settings.integer("padded_vocab_size") or settings.integer("vocab_size")
    # Megatron ties unless told otherwise.
    model["tie_word_embeddings"] = not settings.flag("untie_embeddings_and_output_weights")
    return {name: value for name, value in model.items() if value is not None}


def _attention(settings: Settings, model: dict[str, Any]) -> dict[str, Any]:
    grouped, groups = settings.flag("group_query_attention"), settings.integer("num_query_groups")
    latent = settings.flag("multi_latent_attention")
    parts = {ours: settings.integer(theirs) for theirs, ours in LATENT_NAMES.items()}
    if latent:
        return parts
    return {
        "num_key_value_heads": groups if grouped is not False and groups else model["num_attention_heads"]
    }


def _feed_forward(settings: Settings, model: dict[str, Any]) -> dict[str, Any]:
    gated = bool(settings.flag("swiglu"))
    stated, hidden = settings.integer("ffn_hidden_size"), model["hidden_size"]
    # arguments.py: 4 h, or 8/3 h in multiples of 64 with a gate
    usual = None if hidden is None else int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden
    width = stated or usual
    topk, expert = settings.integer("moe_router_topk"), settings.integer("moe_ffn_hidden_size")
    shared = settings.integer("moe_shared_expert_intermediate_size")
    fields: dict[str, Any] = {"gated_mlp": gated, "intermediate_size": width}
    if model["num_experts"]:
        fields |= {"num_experts_per_tok": topk or 2, "moe_intermediate_size": expert or width}
        fields |= {"shared_expert_intermediate_size": shared, "num_shared_experts": 1 if shared else None}
    return fields


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
        return max(1, _stages_megatron(layout) // pp)
    if per_chunk:
        layers = get_num_layers(given, layers_in_file) + sum(ends)
        return max(1, layers // (pp * per_chunk))
    return stated or size or 1


def _stages_megatron(layout: str) -> int:
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
