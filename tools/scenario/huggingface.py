"""A Hugging Face config.json, as it is, turned into the canonical fields of `ModelSpec`.

Covers decoder-only transformers: dense, GQA, MLA, sliding window, MoE. Not covered, and refused: layers
that are not attention (Mamba, linear attention).
"""

from functools import lru_cache
from typing import Any

from tools.errors import InputError
from tools.scenario import vocabulary as words
from tools.scenario.fields import get_object, shown, usable_count
from tools.scenario.layers import expert_fields, window_fields
from tools.scenario.names import NEAR_MISS, nearest
from tools.scenario.spec import ModelSpec

MAX_FIELDS = 1000
"""Each is compared with every known name; real configurations have some 200."""


def canonical_model(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of `ModelSpec` that the given model states or implies; their types are checked later."""
    config = _flatten(given)
    _refuse_near_misses(config)
    fields = _renamed(config)
    canonical = {key: value for key, value in fields.items() if key in ModelSpec.model_fields}
    for implied in (_attention_fields, _mlp_fields, expert_fields, window_fields):
        canonical |= implied(fields)
    return {"name": _name(config)} | {key: value for key, value in canonical.items() if value is not None}


def _flatten(given: dict[str, Any]) -> dict[str, Any]:
    """Multi-modal and older configurations hold the decoder's fields in a block of their own."""
    config = {key: value for key, value in given.items() if key not in words.NESTED}
    for block in words.NESTED:
        if given.get(block) is not None:
            config |= get_object(given[block], f"model.{block}")
    if len(config) > MAX_FIELDS:
        raise InputError("model", shown(config), f"allowed: at most {MAX_FIELDS:,} fields")
    return config


def _refuse_near_misses(config: dict[str, Any]) -> None:
    for key in config:
        if close := _near_miss(str(key)):
            hint = f"unknown field, did you mean {close}?"
            raise InputError(f"model.{key}", shown(config[key]), hint)


@lru_cache(maxsize=10_000)  # a batch repeats the same few keys, and comparing names is slow
def _near_miss(key: str) -> str | None:
    """The known field that the key must have meant; None for a known one and for one unlike any."""
    known = set(ModelSpec.model_fields) | set(words.SYNONYMS) | words.INPUTS
    if key in known or key in words.IGNORED:
        return None
    return next(iter(nearest(key, known, cutoff=NEAR_MISS, count=1)), None)


def _renamed(config: dict[str, Any]) -> dict[str, Any]:
    """Synonyms under their canonical names; two that contradict each other are an error."""
    fields = {key: value for key, value in config.items() if key not in words.SYNONYMS}
    if not isinstance(fields.get("model_type"), str):
        fields.pop("model_type", None)
    for synonym, canonical in words.SYNONYMS.items():
        value = config.get(synonym)
        if value is None:
            continue
        stated = fields.get(canonical)
        if stated is not None and stated != value:
            raise InputError(
                f"model.{synonym}", shown(value), f"must equal {canonical}, of which it is a synonym"
            )
        fields[canonical] = value
    return fields


def _name(config: dict[str, Any]) -> object:
    stated = (config.get(key) for key in ("name", "_name_or_path", "model_type"))
    return next((value for value in stated if value is not None), "")


def _attention_fields(fields: dict[str, Any]) -> dict[str, Any]:
    kv_heads = fields.get("num_key_value_heads")
    if fields.get("multi_query") is True and fields.get("new_decoder_architecture") is not True:
        kv_heads = 1  # Falcon and GPT-BigCode: the flag wins over a stated number of heads
    elif kv_heads is None:
        kv_heads = fields.get("num_attention_heads")
    return {"num_key_value_heads": kv_heads, "head_dim": _head_dim(fields)}


def _head_dim(fields: dict[str, Any]) -> object:
    """Under MLA a query head is its two parts, whatever `head_dim` says (DeepSeek states the rotary part)."""
    parts = usable_count(fields.get("qk_nope_head_dim")) + usable_count(fields.get("qk_rope_head_dim"))
    if usable_count(fields.get("kv_lora_rank")) and parts:
        return parts
    heads, hidden = usable_count(fields.get("num_attention_heads")), usable_count(fields.get("hidden_size"))
    if fields.get("head_dim") is not None or not heads or not hidden:
        return fields.get("head_dim")
    if hidden % heads:
        allowed = f"must divide hidden_size ({hidden}) where head_dim is not given"
        raise InputError("model.num_attention_heads", heads, allowed)
    return hidden // heads


def _mlp_fields(fields: dict[str, Any]) -> dict[str, Any]:
    model_type = fields.get("model_type")
    implied: dict[str, Any] = {}
    if fields.get("gated_mlp") is None:
        implied["gated_mlp"] = _is_gated(fields)
    if fields.get("tie_word_embeddings") is None:
        implied["tie_word_embeddings"] = model_type in words.TIED_TYPES
    if fields.get("intermediate_size") is None and model_type in words.FOUR_TIMES_WIDE_TYPES:
        ratio = usable_count(fields.get("expansion_ratio")) or 4
        implied["intermediate_size"] = ratio * usable_count(fields.get("hidden_size")) or None
    return implied


def _is_gated(fields: dict[str, Any]) -> bool:
    """SwiGLU and its kin have a gate; plain GELU and ReLU blocks have none (arXiv 2002.05202)."""
    model_type = fields.get("model_type")
    if model_type in words.UNGATED_TYPES or model_type in words.GATED_TYPES:
        return model_type in words.GATED_TYPES
    stated = (fields.get(key) for key in ("hidden_activation", "hidden_act", "activation_function"))
    activation = next((value.lower() for value in stated if isinstance(value, str)), "silu")
    return "glu" in activation or "gated" in activation or activation in words.GATED_ACTIVATIONS
