"""JSON schemas in the subset that endpoints agree on.

References are written out and titles, defaults and lengths left away: strict endpoints refuse them, and
those that build a grammar from a schema get slow by them. The pydantic type checks lengths afterwards.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

Schema = dict[str, Any]
_LEFT_AWAY = ("title", "default", "maxLength", "minLength", "$defs")


def strict_schema(model: type[BaseModel]) -> Schema:
    """Every field required, none besides: what structured output in strict mode asks for."""
    whole: Schema = _all_required(lax_schema(model))
    return whole


def lax_schema(model: type[BaseModel]) -> Schema:
    """Optional fields may be left out."""
    whole = model.model_json_schema()
    plain: Schema = _written_out(whole, whole.get("$defs", {}))
    return plain


def arguments_model(name: str, function: Callable[..., object]) -> type[BaseModel]:
    """The arguments of a typed function, as a type that checks them."""
    fields: dict[str, Any] = {
        one.name: (one.annotation, ... if one.default is one.empty else one.default)
        for one in inspect.signature(function, eval_str=True).parameters.values()
    }
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _written_out(part: Any, definitions: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(part, list):
        return [_written_out(one, definitions) for one in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _written_out(definitions[part["$ref"].rpartition("/")[2]], definitions)
    kept = {name: one for name, one in part.items() if name not in _LEFT_AWAY}
    if "properties" in kept:  # their names are the data's own: a field may be called title
        inner = {name: _written_out(one, definitions) for name, one in kept.pop("properties").items()}
        return {**{name: _written_out(one, definitions) for name, one in kept.items()}, "properties": inner}
    return {name: _written_out(one, definitions) for name, one in kept.items()}


def _all_required(part: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(part, list):
        return [_all_required(one) for one in part]
    if not isinstance(part, dict):
        return part
    whole = {name: _all_required(one) for name, one in part.items()}
    if part.get("type") == "object" and "properties" in part:
        whole |= {"required": list(part["properties"]), "additionalProperties": False}
    return whole
