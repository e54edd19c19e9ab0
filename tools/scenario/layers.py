"""Which layers of a model hold experts or see only a window, from a Hugging Face configuration.

A pattern of expert layers is reduced to leading dense layers and then every n-th layer; one that no such
pair describes is kept as a list with an entry per layer.
"""

from typing import Any

from tools.errors import InputError
from tools.scenario import vocabulary as words
from tools.scenario.fields import shown, usable_count
from tools.scenario.spec import MAX_LAYERS

_WINDOWED = {"sliding_attention", "chunked_attention"}
_ATTENTION = _WINDOWED | {"full_attention", "attention", "global_attention"}


def expert_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Widths of the experts and the layers that have them; empty for a dense model."""
    if fields.get("num_experts") is None or fields["num_experts"] == 0:
        return {"num_experts": 0}
    width, shared = fields.get("moe_intermediate_size"), fields.get("num_shared_experts")
    if width is None:
        width = fields.get("intermediate_size")
    if shared is None and fields.get("model_type") in words.SHARED_EXPERT_TYPES:
        shared = 1
    dense = next((fields[key] for key in words.DENSE_WIDTHS if fields.get(key) is not None), None)
    found = {"moe_intermediate_size": width, "num_shared_experts": shared}
    found |= {} if dense is None else {"intermediate_size": dense}
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
    count = min(usable_count(fields.get("num_hidden_layers")), MAX_LAYERS)
    for name in ("moe_layer_freq", "mlp_layer_types", "moe_layers", "mlp_only_layers"):
        stated = fields.get(name)
        if isinstance(stated, list) and (stated or name == "moe_layer_freq"):
            return _pattern(name, stated, _layers_with_experts(name, stated, fields, count), count)
    return {}


def _layers_with_experts(name: str, stated: list[Any], fields: dict[str, Any], count: int) -> set[int]:
    if name in ("moe_layer_freq", "mlp_layer_types"):
        _check_flags(name, stated, count)
        return {layer for layer, flag in enumerate(stated[:count]) if flag in (1, "sparse", "moe")}
    listed = {layer for layer in stated if isinstance(layer, int)}
    if name == "moe_layers":
        return listed
    every = usable_count(fields.get("moe_layer_freq")) or 1
    return {layer for layer in range(count) if layer not in listed and (layer + 1) % every == 0}


def _check_flags(name: str, stated: list[Any], count: int) -> None:
    known = (0, 1) if name == "moe_layer_freq" else ("dense", "sparse", "moe")
    words = " and ".join(map(str, known))
    if len(stated) < count:
        raise InputError(
            f"model.{name}",
            shown(stated),
            f"allowed: a list of {words} with an entry for each of {count} layers",
        )
    for flag in stated:
        if isinstance(flag, bool) or flag not in known:
            raise InputError(f"model.{name}", shown(flag), f"allowed: a list of {words}, one per layer")


def _pattern(name: str, stated: list[Any], experts: set[int], count: int) -> dict[str, Any]:
    """The pair (leading dense layers, every n-th) with the same number of expert layers, evenly spaced; if
    there is none, the leading dense layers and a list of 0 and 1."""
    ordered = sorted(layer for layer in experts if 0 <= layer < count)
    if not ordered:
        allowed = f"allowed: at least one of the {count} layers with experts, because num_experts is given"
        raise InputError(f"model.{name}", shown(stated), allowed)
    every = ordered[1] - ordered[0] if len(ordered) > 1 else max(count, 1)
    first = ordered[0]
    leading = first if first >= every else 0
    spaced = ordered == list(range(first, count, every))
    if spaced and len(ordered) == count // every - leading // every:
        return {"first_k_dense_replace": leading, "moe_layer_freq": every}
    flags = tuple(int(layer in experts) for layer in range(count))
    return {"first_k_dense_replace": first, "moe_layer_freq": flags}


def window_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The window, and one windowed layer among how many (1 = all, 2 = alternating, 1.2 = five of six)."""
    kinds = fields.get("layer_types")
    for kind in kinds if isinstance(kinds, list) else []:
        if not isinstance(kind, str) or kind not in _ATTENTION:
            raise InputError("model.layer_types", shown(kind), f"allowed: {', '.join(sorted(_ATTENTION))}")
    window = _window_tokens(fields)
    if not window or fields.get("sliding_window_every") is not None:
        return {"sliding_window": window}
    every = _every(fields, kinds)
    return {"sliding_window": window if every else 0, "sliding_window_every": every or 1.0}


def _window_tokens(fields: dict[str, Any]) -> object:
    """Chunked attention (Llama 4) counts as a window of one chunk: an upper bound of what a token sees."""
    window, used = fields.get("sliding_window"), fields.get("use_sliding_window")
    if window is None:
        window = fields.get("attention_chunk_size")
    if used is None:
        used = fields.get("model_type") not in words.NO_WINDOW_BY_DEFAULT_TYPES
    return window if window is not None and used is True else 0


def _every(fields: dict[str, Any], kinds: object) -> float:
    if isinstance(kinds, list):
        windowed = sum(kind in _WINDOWED for kind in kinds)
        return len(kinds) / windowed if windowed else 0.0
    pattern, model_type = usable_count(fields.get("sliding_window_pattern")), fields.get("model_type")
    if model_type in words.CHUNKED_TYPES:
        pattern = words.CHUNKED_PATTERN
    if pattern:  # one full layer closes every `pattern` layers
        return pattern / (pattern - 1) if pattern > 1 else 0.0
    return 2.0 if model_type in words.EVERY_SECOND_WINDOW_TYPES else 1.0
