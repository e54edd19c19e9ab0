"""The model that Megatron-LM's arguments describe, by Hugging Face names, and its layers over pipeline stages
and chunks: written for a plan, read back as chunks per stage.

Names and defaults: megatron/training/arguments.py, TransformerConfig, MLATransformerConfig and
megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

import re

from tools.errors import InputError
from tools.frameworks.exporting import ExportJob, Settings
from tools.frameworks.importing import ImportOptions
from tools.frameworks.reading import JsonObject, SettingsReader
from tools.frameworks.shell import parse_layer_list

MODEL_FIELDS = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "kv_channels": "head_dim",
    "num_experts": "num_experts",
    "mtp_num_layers": "num_nextn_predict_layers",
    "moe_router_num_groups": "n_group",
    "moe_router_group_topk": "topk_group",
    "moe_latent_size": "moe_latent_size",
}
DELTA_NET_FIELDS = (
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
)
KNOWN_VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "MegatronHFTokenizer": None}
"""Tokenizers with one vocabulary only (megatron/training/tokenizer)."""
VOCABULARY_STEP = 128
"""make_vocab_size_divisible_by, per tensor-parallel rank."""
LATENT_ATTENTION_FIELDS = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}


def read_model(settings: SettingsReader) -> JsonObject:
    """The model by Hugging Face names."""
    sizes = {name: settings.integer(argument) for argument, name in MODEL_FIELDS.items()}
    model: JsonObject = {
        **sizes,
        **_attention(settings, sizes["num_attention_heads"]),
        **_feed_forward(settings, sizes["hidden_size"], is_moe=bool(sizes["num_experts"])),
        **_layer_kinds(settings, sizes["num_hidden_layers"] or 0),
        "vocab_size": _vocabulary(settings),
        # Megatron ties the embeddings by default.
        "tie_word_embeddings": not settings.flag("untie_embeddings_and_output_weights"),
    }
    if "model_type" in model:  # the family's class has defaults of its own, which Megatron's run has not
        absent = ("num_experts", "shared_expert_intermediate_size", "num_nextn_predict_layers")
        model |= {name: model.get(name) or 0 for name in absent}
    return {name: value for name, value in model.items() if value is not None}


def _vocabulary(settings: SettingsReader) -> int | None:
    stated = settings.integer("padded_vocab_size") or settings.integer("vocab_size")
    tokenizer = settings.word("tokenizer_type")
    step = settings.integer("make_vocab_size_divisible_by") or VOCABULARY_STEP
    if stated is None and tokenizer is None and settings.has("merge_file"):
        tokenizer = "GPT2BPETokenizer"  # Megatron's default with a vocabulary and merges
    size = stated or KNOWN_VOCABULARIES.get(tokenizer or "")
    if size is None:
        return None
    multiple = step * (settings.integer("tensor_model_parallel_size") or 1)
    return size if settings.has("padded_vocab_size") else -(-size // multiple) * multiple


def _layer_kinds(settings: SettingsReader, layers: int) -> JsonObject:
    """Which layers hold experts, a delta net or Mamba."""
    fields: JsonObject = {}
    frequency = settings.text("moe_layer_freq")
    if frequency is not None:
        flags = parse_layer_list(frequency)
        fields["moe_layer_freq"] = [*flags] if flags else settings.integer("moe_layer_freq")
    variant = settings.word("linear_attention_type") or settings.word("experimental_attention_variant")
    delta = {name: settings.integer(name) for name in DELTA_NET_FIELDS}
    linear = settings.text("linear_attention_freq")
    if variant == "gated_delta_net" and linear is not None:
        flags = parse_layer_list(linear) or [int((n + 1) % int(linear) != 0) for n in range(layers)]
        kinds = ["linear_attention" if flag else "full_attention" for flag in flags]
        fields |= {"model_type": "qwen3_next", "layer_types": [*kinds], **delta}
        fields["attn_output_gate"] = bool(settings.flag("attention_output_gate"))
    elif variant is not None:
        raise InputError("megatron: experimental_attention_variant", variant, "allowed: gated_delta_net")
    if pattern := settings.word("hybrid_override_pattern") or settings.word("hybrid_layer_pattern"):
        fields |= {"model_type": "nemotron_h", "hybrid_override_pattern": pattern}
        for name in ("mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim"):
            fields[name] = settings.integer(name)
        fields["n_groups"], fields["ssm_state_size"] = (
            fields.pop("mamba_num_groups"),
            fields.pop("mamba_state_dim"),
        )
        if fields["mamba_num_heads"] is None:
            hidden, dim = settings.integer("hidden_size"), fields["mamba_head_dim"]
            fields["mamba_num_heads"] = 2 * (hidden or 0) // (dim if isinstance(dim, int) else 64)
    elif settings.has("hybrid_attention_ratio"):
        reason = "give the layers by hybrid_override_pattern, for example M-M*-"
        raise InputError("megatron: hybrid_attention_ratio", settings.text("hybrid_attention_ratio"), reason)
    return fields


def _attention(settings: SettingsReader, heads: int | None) -> JsonObject:
    is_grouped, groups = settings.flag("group_query_attention"), settings.integer("num_query_groups")
    settings.flag("attention_output_gate")
    window = settings.text("window_size")
    latent = {name: settings.integer(argument) for argument, name in LATENT_ATTENTION_FIELDS.items()}
    if settings.flag("multi_latent_attention"):
        return {**latent}
    fields: JsonObject = {"num_key_value_heads": groups if is_grouped is not False and groups else heads}
    if window and (tokens := re.match(r"\(?(\d+)", window)):
        fields["sliding_window"] = int(tokens[1])
    return fields


def _feed_forward(settings: SettingsReader, hidden: int | None, *, is_moe: bool) -> JsonObject:
    names = ("swiglu", "geglu", "gated_linear_unit", "quick_geglu")
    gated = bool([name for name in names if settings.flag(name)])
    settings.flag("squared_relu")
    width = settings.integer("ffn_hidden_size")
    if width is None and hidden is not None:
        # arguments.py: 4 h, or 8/3 h in multiples of 64 with a gate
        width = int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden
    topk, expert = settings.integer("moe_router_topk"), settings.integer("moe_ffn_hidden_size")
    shared = settings.integer("moe_shared_expert_intermediate_size")
    fields: JsonObject = {"gated_mlp": gated, "intermediate_size": width}
    if is_moe:
        fields |= {"num_experts_per_tok": topk or 2, "moe_intermediate_size": expert or width}
        fields |= {"shared_expert_intermediate_size": shared, "num_shared_experts": 1 if shared else None}
    return fields


MAX_STAGES = 10_000


def uneven_stages(job: ExportJob, last_stage_name: str) -> Settings:
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


def _layout(job: ExportJob, places: int) -> str:
    """Three places are missing: embedding and loss take one each, and MTP (or nothing) the third.

    Letters as in megatron/core/transformer/pipeline_parallel_layer_layout.py.
    """
    if places < 2:
        raise job.refuse("vpp", "leaves no layer for the chunks of embedding and loss")
    middle = f"({'t' * places}|)*{job.plan.pp * job.plan.vpp - 2}"
    predictions = "m" * job.scenario.model.num_nextn_predict_layers
    return f"E{'t' * (places - 1)}|{middle}{'t' * (places - 2)}{predictions}L"


def chunks_per_stage(
    settings: SettingsReader, pp: int, options: ImportOptions, layers_in_file: int | None
) -> int:
    stated = settings.integer("num_virtual_stages_per_pipeline_rank")
    size = settings.integer("virtual_pipeline_model_parallel_size")
    per_chunk = settings.integer("num_layers_per_virtual_pipeline_stage")
    layout = settings.word("pipeline_model_parallel_layout")
    ends = [bool(settings.flag(f"account_for_{end}_in_pipeline_split")) for end in ("embedding", "loss")]
    settings.used("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
    settings.used("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
    if pp == 1:
        return 1
    if layout:
        return max(1, _count_stages(layout) // pp)
    if per_chunk:
        layers = options.get_num_layers(layers_in_file) + sum(ends)
        return max(1, layers // (pp * per_chunk))
    return stated or size or 1


def _count_stages(layout: str) -> int:
    """Bars separate stages; `(tt|)*29` repeats (pipeline_parallel_layer_layout.py)."""
    groups: list[tuple[str, str]] = re.findall(r"\(([^()]*)\)\*(\d{1,4})", layout)
    repeated = sum(group.count("|") * int(times) for group, times in groups)
    stages = repeated + re.sub(r"\([^()]*\)\*\d+", "", layout).count("|") + 1
    if stages > MAX_STAGES:
        raise InputError("megatron: pipeline_model_parallel_layout", layout, f"at most {MAX_STAGES} stages")
    return stages
