"""Which layers of a model are mixture-of-experts or windowed, from a Hugging Face configuration.

A ModelSpec knows leading dense layers and then every n-th layer, so that is what patterns are reduced to;
a list of layers that no such pair describes is refused rather than approximated.
"""

from typing import Any

from tools.errors import InputError
from tools.scenario import vocabulary as words
from tools.scenario.fields import shown, usable_count

_WINDOWED = {"sliding_attention", "chunked_attention"}
_ATTENTION = _WINDOWED | {"full_attention", "attention", "global_attention"}


def expert_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Widths of the experts and the layers that have them; empty for a dense model."""
    if fields.get("num_experts") is None or fields["num_experts"] == 0:
        return {"num_experts": 0}
    dense_width = fields.get("intermediate_size_mlp")
    width = fields.get("moe_intermediate_size")
    if width is None:
        width = fields.get("intermediate_size")
    shared = fields.get("num_shared_experts")
    if shared is None and fields.get("model_type") in words.SHARED_EXPERT_TYPES:
        shared = 1
    found = {"moe_intermediate_size": width, "num_shared_experts": shared}
    if dense_width is not None:
        found["intermediate_size"] = dense_width
    return found | _shared_width(fields, width, shared) | _expert_layers(fields)


def _shared_width(fields: dict[str, Any], width: object, shared: object) -> dict[str, Any]:
    """Shared experts are stated as a number of experts or as one width: keep both, in agreement."""
    stated, expert = fields.get("shared_expert_intermediate_size"), usable_count(width)
    if stated is not None:
        return {"num_shared_experts": usable_count(stated) / expert} if expert else {}
    if isinstance(shared, int | float) and not isinstance(shared, bool) and 0 < shared < 1e6:
        return {"shared_expert_intermediate_size": round(shared * expert)}
    return {}


def _expert_layers(fields: dict[str, Any]) -> dict[str, Any]:
    count = usable_count(fields.get("num_hidden_layers"))
    stated, dense = fields.get("moe_layer_freq"), fields.get("mlp_only_layers")
    if isinstance(stated, list):
        return _regular(
            "moe_layer_freq", stated, {i for i, flag in enumerate(stated[:count]) if flag == 1}, count
        )
    if isinstance(fields.get("moe_layers"), list):
        return _regular(
            "moe_layers", fields["moe_layers"], {i for i in fields["moe_layers"] if isinstance(i, int)}, count
        )
    if isinstance(dense, list) and dense and fields.get("first_k_dense_replace") is None:
        every = usable_count(stated) or 1
        experts = {i for i in range(count) if i not in dense and (i + 1) % every == 0}
        return _regular("mlp_only_layers", dense, experts, count)
    return {}


def _regular(field: str, given: object, experts: set[int], count: int) -> dict[str, Any]:
    first = min(experts, default=0)
    for every in range(1, first + 2):
        if {i for i in range(first, count) if (i + 1) % every == 0} == experts:
            leading = first if every == 1 or first >= every else 0
            return {"first_k_dense_replace": leading, "moe_layer_freq": every}
    allowed = "allowed: leading dense layers, then every n-th layer with experts"
    raise InputError(f"model.{field}", shown(given), allowed)


def window_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The window, and one windowed layer among how many (1 = all, 2 = alternating, 1.2 = five of six)."""
    kinds = fields.get("layer_types")
    if isinstance(kinds, list):
        _refuse_other_layers(kinds)
    window = _window_tokens(fields)
    if not window or fields.get("sliding_window_every") is not None:
        return {"sliding_window": window}
    every = _every(fields, kinds)
    return {"sliding_window": window if every else 0, "sliding_window_every": every or 1.0}


def _refuse_other_layers(kinds: list[Any]) -> None:
    for kind in kinds:
        if kind not in _ATTENTION:
            raise InputError("model.layer_types", shown(kind), f"allowed: {', '.join(sorted(_ATTENTION))}")


def _window_tokens(fields: dict[str, Any]) -> object:
    """Chunked attention (Llama 4) counts as a window of one chunk: an upper bound of what a token sees."""
    window = fields.get("sliding_window")
    if window is None and fields.get("layer_types") is not None:
        window = fields.get("attention_chunk_size")
    default_on = fields.get("model_type") not in words.NO_WINDOW_BY_DEFAULT_TYPES
    return window if window is not None and fields.get("use_sliding_window", default_on) is True else 0


def _every(fields: dict[str, Any], kinds: object) -> float:
    if isinstance(kinds, list):
        windowed = sum(kind in _WINDOWED for kind in kinds)
        return len(kinds) / windowed if windowed else 0.0
    pattern = usable_count(fields.get("sliding_window_pattern"))
    if pattern:  # one full layer closes every `pattern` layers
        return pattern / (pattern - 1) if pattern > 1 else 0.0
    return 2.0 if fields.get("model_type") in words.EVERY_SECOND_WINDOW_TYPES else 1.0
