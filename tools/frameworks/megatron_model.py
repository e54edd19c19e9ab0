"""The model that Megatron-LM's arguments describe, by Hugging Face names, and its layers over pipeline stages
and chunks: written for a plan, read back as chunks per stage.

Names and defaults: megatron/training/arguments.py, TransformerConfig, MLATransformerConfig and
megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

import re

from tools.errors import InputError
from tools.frameworks.exporting import ExportJob, SettingsTree
from tools.frameworks.importing import ImportOptions, ModelFields
from tools.frameworks.reading import SettingsReader
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
    "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
    "linear_num_value_heads",
)  # fmt: skip
KNOWN_VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Tokenizers with one vocabulary only (megatron/training/tokenizer)."""
VOCABULARY_STEP = 128
"""make_vocab_size_divisible_by, per tensor-parallel rank."""
MAX_STAGES = 10_000
LATENT_ATTENTION_FIELDS = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}


def read_model(settings: SettingsReader) -> ModelFields:
    """The model by Hugging Face names."""
    sizes = {
        name: settings.integer(argument, minimum=int(argument != "mtp_num_layers")) or None
        for argument, name in MODEL_FIELDS.items()
    }
    vocabulary = settings.integer("padded_vocab_size") or settings.integer("vocab_size")
    tokenizer = settings.word("tokenizer_type")
    step = settings.integer("make_vocab_size_divisible_by") or VOCABULARY_STEP
    if vocabulary is None and tokenizer is None and settings.has("merge_file"):
        tokenizer = "GPT2BPETokenizer"  # Megatron's default with a vocabulary and merges
    vocabulary = vocabulary or KNOWN_VOCABULARIES.get(tokenizer or "")
    if vocabulary and not settings.has("padded_vocab_size"):
        multiple = step * (settings.integer("tensor_model_parallel_size") or 1)
        vocabulary = -(-vocabulary // multiple) * multiple
    model: ModelFields = {
        **sizes,
        **_attention(settings, sizes["num_attention_heads"]),
        **_feed_forward(settings, sizes["hidden_size"], is_moe=bool(sizes["num_experts"])),
        **_layer_kinds(settings, sizes["num_hidden_layers"] or 0),
        "vocab_size": vocabulary,
        # Megatron ties the embeddings by default.
        "tie_word_embeddings": not settings.flag("untie_embeddings_and_output_weights"),
        "mtp_use_repeated_layer": settings.flag("mtp_use_repeated_layer") or None,
    }
    if "model_type" in model:  # the family's class has defaults of its own, which Megatron's run has not
        absent = ("num_experts", "shared_expert_intermediate_size", "num_nextn_predict_layers")
        model |= {name: model.get(name) or 0 for name in absent}
    return {name: value for name, value in model.items() if value is not None}


def _layer_kinds(settings: SettingsReader, layers: int) -> ModelFields:
    """Which layers hold experts, a delta net or Mamba."""
    fields: ModelFields = {}
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
        fields["mtp_hybrid_override_pattern"] = settings.word("mtp_hybrid_override_pattern")
        heads, dim, groups, state = (
            settings.integer(f"mamba_{name}") for name in ("num_heads", "head_dim", "num_groups", "state_dim")
        )
        if heads is None:
            heads = 2 * (settings.integer("hidden_size") or 0) // (dim or 64)
        fields |= {
            "mamba_num_heads": heads,
            "mamba_head_dim": dim,
            "n_groups": groups,
            "ssm_state_size": state,
        }
    elif settings.has("hybrid_attention_ratio"):
        reason = "give the layers by hybrid_override_pattern, for example M-M*-"
        raise InputError("megatron: hybrid_attention_ratio", settings.text("hybrid_attention_ratio"), reason)
    return fields


def _attention(settings: SettingsReader, heads: int | None) -> ModelFields:
    is_grouped, groups = settings.flag("group_query_attention"), settings.integer("num_query_groups")
    settings.flag("attention_output_gate")
    window = settings.text("window_size")
    latent = {name: settings.integer(argument) for argument, name in LATENT_ATTENTION_FIELDS.items()}
    if settings.flag("multi_latent_attention"):
        return {**latent}
    fields: ModelFields = {"num_key_value_heads": groups if is_grouped is not False and groups else heads}
    if window and (tokens := re.match(r"\(?(\d+)", window)):
        fields["sliding_window"] = int(tokens[1])
    return fields


def _feed_forward(settings: SettingsReader, hidden: int | None, *, is_moe: bool) -> ModelFields:
    names = ("swiglu", "geglu", "gated_linear_unit", "quick_geglu")
    gated = bool([name for name in names if settings.flag(name)])
    settings.flag("squared_relu")
    width = settings.integer("ffn_hidden_size")
    if width is None and hidden is not None:
        # arguments.py: 4 h, or 8/3 h in multiples of 64 with a gate
        width = int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden
    topk, expert = settings.integer("moe_router_topk"), settings.integer("moe_ffn_hidden_size")
    shared = settings.integer("moe_shared_expert_intermediate_size")
    fields: ModelFields = {"gated_mlp": gated, "intermediate_size": width}
    if is_moe:
        fields |= {"num_experts_per_tok": topk or 2, "moe_intermediate_size": expert or width}
        fields |= {"shared_expert_intermediate_size": shared, "num_shared_experts": 1 if shared else None}
    return fields


def uneven_stages(job: ExportJob, last_stage_name: str) -> SettingsTree:
    """Layers that do not divide: embedding and loss count as layers, or the last stage takes fewer.

    TransformerConfig and the command line call the layers of the last stage differently.
    """
    plan, layers = job.plan, job.scenario.model.num_hidden_layers
    missing = -layers % (plan.pp * plan.vpp)
    if missing <= 2:
        flags = ("account_for_loss_in_pipeline_split", "account_for_embedding_in_pipeline_split")
        return dict.fromkeys(flags[:missing], True)
    if plan.vpp > 1:
        # Three places are missing: embedding and loss take one each, and MTP (or nothing) the third.
        # Letters as in megatron/core/transformer/pipeline_parallel_layer_layout.py.
        places = (layers + missing) // (plan.pp * plan.vpp)
        if places < 2:
            raise job.refuse("vpp", "leaves no layer for the chunks of embedding and loss")
        middle = f"({'t' * places}|)*{plan.pp * plan.vpp - 2}"
        end = f"{'t' * (places - 2)}{'m' * job.scenario.model.num_nextn_predict_layers}L"
        return {"pipeline_model_parallel_layout": f"E{'t' * (places - 1)}|{middle}{end}"}
    per_stage = -(-layers // plan.pp)
    last = layers - per_stage * (plan.pp - 1)
    if last < 1:
        raise job.refuse("pp", f"{layers} layers in {plan.pp} stages leave the last one empty")
    return {last_stage_name: last}


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
    if layout:  # bars separate stages; `(tt|)*29` repeats (pipeline_parallel_layer_layout.py)
        groups: list[tuple[str, str]] = re.findall(r"\(([^()]*)\)\*(\d{1,4})", layout)
        repeated = sum(group.count("|") * int(times) for group, times in groups)
        stages = repeated + re.sub(r"\([^()]*\)\*\d+", "", layout).count("|") + 1
        if stages > MAX_STAGES:
            rule = f"at most {MAX_STAGES} stages"
            raise InputError("megatron: pipeline_model_parallel_layout", layout, rule)
        return max(1, stages // pp)
    if per_chunk:
        layers = options.get_num_layers(layers_in_file) + sum(ends)
        return max(1, layers // (pp * per_chunk))
    return stated or size or 1
