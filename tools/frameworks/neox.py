"""GPT-NeoX: reads its YAML.

Names and defaults: megatron/neox_arguments/neox_args.py and deepspeed_args.py of EleutherAI/gpt-neox.
"""

from tools.errors import InputError
from tools.frameworks.importing import Degrees, Draft, ImportOptions, Sharding, stated_plan
from tools.frameworks.reading import JsonObject, SettingsReader, parse_yaml

GATED = ("swiglu", "geglu", "reglu", "bilinear", "glu")
WIDTH_STEP = 256
"""Gated parts are a third of the stated width, up to this multiple (LLaMAParallelMLP)."""


def import_neox(text: str, options: ImportOptions) -> Draft:
    values = {str(key).replace("-", "_"): value for key, value in parse_yaml(text).items()}
    settings = SettingsReader(values, "neox")
    model = _model(settings)
    if not model and options.model is None:
        raise InputError(
            "FILE",
            "no num_layers",
            "must include the model's part of the GPT-NeoX configuration; join the two files",
        )
    tp = settings.integer("model_parallel_size", minimum=0) or 1
    pp = settings.integer("pipe_parallel_size", minimum=0) or 1
    cp = settings.integer("context_parallel_size") or 1
    dp = options.divide_devices(tp * pp * cp, "the data-parallel size follows from it")
    micro = options.micro_batch_size or settings.integer("train_micro_batch_size_per_gpu")
    steps = settings.integer("gradient_accumulation_steps") or settings.integer("gas") or 1
    total = options.global_batch_size or settings.integer("train_batch_size")
    if micro is None and total is not None:
        micro = max(total // (steps * dp), 1)
    micro = options.get_micro_batch_size(micro)
    stage = settings.integer("zero_optimization.stage", minimum=0) or 0
    offload = settings.flag("zero_optimization.cpu_offload") or settings.has(
        "zero_optimization.offload_optimizer"
    )
    plan = stated_plan(
        Degrees(tp, pp, cp, dp),
        Sharding.over(stage, dp),
        ep=settings.integer("moe_expert_parallel_size") or 1,
        micro_batch_size=micro,
        vpp=1,
        sequence_parallel=bool(settings.flag("sequence_parallel")),
        recompute="full" if settings.flag("checkpoint_activations") else "none",
    )
    return Draft(
        plan,
        _precision(settings),
        seq_len=settings.integer("seq_length"),
        global_batch_size=total or micro * steps * dp,
        num_devices=tp * pp * cp * dp,
        model=model,
        training={"optimizer_offload": True} if offload else {},
        framework="deepspeed",
        notes=settings.unused_notes(),
    )


def _model(settings: SettingsReader) -> JsonObject:
    hidden, layers = settings.integer("hidden_size"), settings.integer("num_layers")
    if hidden is None or layers is None:
        return {}
    gated = (settings.word("activation") or "gelu") in GATED
    width, step = settings.integer("intermediate_size"), settings.integer("mlp_multiple_of") or WIDTH_STEP
    if gated:
        width = -(-(width or 8 * hidden) // 3 // step) * step
    experts = settings.integer("moe_num_experts") or settings.integer("num_experts") or 1
    model: JsonObject = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": settings.integer("num_attention_heads"),
        "num_key_value_heads": settings.integer("num_kv_heads"),
        "intermediate_size": width or 4 * hidden,
        "gated_mlp": gated,
        "tie_word_embeddings": not settings.flag("no_weight_tying"),
        "vocab_size": settings.integer("padded_vocab_size") or settings.integer("vocab_size"),
        "sliding_window": settings.integer("sliding_window_width"),
    }
    if experts > 1:
        topk = settings.integer("moe_top_k") or settings.integer("moe_router_topk") or 1
        model |= {
            "num_experts": experts,
            "num_experts_per_tok": topk,
            "moe_intermediate_size": width or 4 * hidden,
        }
    kinds = {str(kind) for group in settings.items("attention_config") for kind in _kinds(group)}
    if other := kinds & {"rwkv", "mamba", "gmlp", "amlp", "aft"}:
        raise InputError("neox: attention_config", min(other), "not supported in a GPT-NeoX configuration")
    return {name: value for name, value in model.items() if value is not None}


def _kinds(group: object) -> list[str]:
    """`[["flash", "local"], 12]`: the kinds that repeat."""
    first = group[0] if isinstance(group, list) and group else []
    return [str(kind) for kind in first] if isinstance(first, list) else []


def _precision(settings: SettingsReader) -> str:
    if settings.flag("fp16.enabled"):
        return "fp16"
    if settings.flag("bf16.enabled"):
        return "bf16"
    stated = settings.word("precision")
    return {"bfloat16": "bf16", "fp16": "fp16", "fp32": "fp32"}.get(stated or "", "fp16")
