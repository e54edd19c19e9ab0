"""Fields of what is parsed: the number types they use, and errors that name the field and what it takes.

Integral floats are accepted as integers because published rows write `3.0`.
"""

import math
import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, JsonValue, ValidationError
from pydantic.fields import FieldInfo

from tools.errors import InputError
from tools.names import did_you_mean, nearest

JsonObject = dict[str, JsonValue]
"""What a JSON or TOML file holds before it is parsed into types."""


def whole_number(value: object) -> object:
    """An integral float as an integer; anything else as it is."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return value


def usable_count(value: object) -> int:
    """A positive whole number, or 0 for anything else: what is wrong is reported by its typed field."""
    whole = whole_number(value)
    return whole if isinstance(whole, int) and not isinstance(whole, bool) and 0 < whole < 10**12 else 0


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Integer = Annotated[int, BeforeValidator(whole_number)]
FromList = BeforeValidator(_as_tuple)
"""For a tuple field: JSON has arrays only."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Metadata of a field: what it takes, in words, if its type does not say enough."""

    text: str


ModelT = TypeVar("ModelT", bound=BaseModel)


class _Described:
    """Stands in a message for what is better described than printed."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


NOTHING = _Described("nothing")


def shown(value: object) -> object:
    """What a message shows of a value: containers and very large integers by their kind only."""
    if isinstance(value, dict):
        return _Described(f"an object of {len(value)} fields")
    if isinstance(value, list | tuple | set | frozenset):
        return _Described(f"an array of {len(value)} values")
    if isinstance(value, int) and abs(value) >= 10**100:
        return _Described("an integer of over 100 digits")
    return value


def get_object(value: object, field: str) -> JsonObject:
    """The value as a JSON object, or an InputError."""
    if not isinstance(value, dict):
        raise InputError(field, NOTHING if value is None else shown(value), "allowed: a JSON object")
    return value


def refuse_unknown(fields: Mapping[str, object], known: Collection[str], prefix: str) -> None:
    """Unknown keys are spelling mistakes: name the nearest known ones."""
    for key in fields:
        if key not in known:
            says = f"unknown field, {did_you_mean(key, known)}"
            raise InputError(f"{prefix}{key}", shown(fields[key]), says)


def build(cls: type[ModelT], fields: Mapping[str, object], prefix: str) -> ModelT:
    """An instance of the class, or an InputError about the first wrong field."""
    try:
        return cls.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    missing = first["type"] == "missing" or (first["input"] is None and fields.get(name) is None)
    value = NOTHING if missing else shown(first["input"])
    raise InputError(f"{prefix}{name}", value, allowed_text(cls.model_fields[name], first["input"]))


def allowed_text(field: FieldInfo, value: object) -> str:
    """What a field takes: in its own words, or from its type and bounds."""
    for item in field.metadata:
        if isinstance(item, Allowed):
            return f"allowed: {item.text}"
    parts = [part for part in _union_parts(field.annotation) if part is not type(None)]
    if parts and get_origin(parts[0]) is Literal:
        choices = [str(choice) for choice in get_args(parts[0])]
        close = nearest(value, choices) if isinstance(value, str) else []
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        return f"allowed: {', '.join(choices)}{hint}"
    return f"allowed: {_kind_text(parts)}{_bounds_text(field)}"


def _union_parts(annotation: object) -> list[object]:
    """The alternatives of a type, however unions and annotations are nested."""
    if get_origin(annotation) is Annotated:
        return _union_parts(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [part for alternative in get_args(annotation) for part in _union_parts(alternative)]
    return [annotation]


_KINDS: dict[object, str] = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}


def _kind_text(parts: list[object]) -> str:
    return " or ".join(
        _KINDS.get(part, "a JSON object" if get_origin(part) is dict else "an array") for part in parts
    )


def _bounds_text(field: FieldInfo) -> str:
    names = ("ge", "le", "max_length")
    bounds = {key: getattr(item, key) for item in field.metadata for key in names if hasattr(item, key)}
    if "max_length" in bounds:
        return f" of at most {bounds['max_length']} characters"
    return f" from {bounds['ge']} to {bounds['le']:,}" if "ge" in bounds and "le" in bounds else ""
