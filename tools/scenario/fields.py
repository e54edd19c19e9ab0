"""Fields of what is parsed: their types, and the one place that turns pydantic's errors into ours.

Integral floats are accepted as integers because published rows write `3.0`.
"""

import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from tools.errors import InputError
from tools.names import did_you_mean, nearest

JsonObject = dict[str, JsonValue]
"""What a JSON or TOML file holds before it is parsed into types."""
ModelT = TypeVar("ModelT", bound=BaseModel)

WHOLE = BeforeValidator(
    lambda value: int(value) if isinstance(value, float) and value.is_integer() else value
)
"""Stands behind the bounds of an integer: in front of them pydantic leaves them out of the JSON schema."""
Integer = Annotated[int, WHOLE]
FromList = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
"""For a tuple field: JSON has arrays only."""
_KINDS: dict[object, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a text",
    bytes: "a text",
    dict: "a JSON object",
    Mapping: "a JSON object",
    **dict.fromkeys((list, tuple, set, frozenset, Sequence, Collection), "an array"),
}
_LABELS = ("str", "int", "float", "bool", "none", "constrained-str", "constrained-int")
_SAID_BY_MESSAGE = (
    *("value_error", "assertion_error", "string_pattern_mismatch", "json_invalid", "too_short", "too_long"),
)
"""Errors about more than the type and bounds of a field: the validator's own sentence is the rule."""


def usable_count(value: object) -> int:
    """A positive whole number, or 0 for anything else: what is wrong is reported by its typed field."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**12:
        return 0
    return int(value) if value == int(value) else 0


class StrictModel(BaseModel):
    """Base of all parts of a scenario: immutable, strictly typed, finite, closed to unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Allowed:
    """Metadata of a field: what it takes, in words, if its type does not say enough."""

    text: str


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
            raise InputError(
                f"{prefix}{key}", shown(fields[key]), f"unknown field, {did_you_mean(key, known)}"
            )


def build(cls: type[ModelT], fields: object, prefix: str = "") -> ModelT:
    """An instance of the class, or an InputError about the first wrong field."""
    try:
        return cls.model_validate(fields)
    except ValidationError as error:
        raise input_error(error, cls, prefix.removesuffix(".")) from None


def input_error(
    error: ValidationError | Sequence[ErrorDetails], shape: object = None, path: str = ""
) -> InputError:
    """What is wrong first, by its path in what the caller wrote, and what its field takes.

    `shape` is the type that was validated, if it is at hand: its fields say what is allowed and which name a
    misspelt one is close to, and tell the members of unions, which pydantic names in its places, from fields.
    """
    errors = error.errors(include_url=False) if isinstance(error, ValidationError) else error
    places = [_Place(path, shape).reach(each["loc"]) for each in errors]
    # A misspelt field is also missing under its right name; of a union, the member that came furthest counts.
    unknown = [
        n for n, each in enumerate(errors) if each["type"] == "extra_forbidden" and not places[n].union_path
    ]
    chosen = unknown[0] if unknown else 0
    if union := places[chosen].union_path:
        rivals = [n for n, place in enumerate(places) if place.union_path == union]
        chosen = max(rivals, key=lambda n: len(places[n].path))
    fault, place = errors[chosen], places[chosen]
    context = fault.get("ctx", {})
    given = context.get("given", fault["input"])
    is_absent = fault["type"] == "missing" or given is None
    return InputError(
        (place.path + context.get("path", "")).lstrip(".") or "the input",
        NOTHING if is_absent else shown(given),
        _rule(fault, place),
    )


@dataclass(frozen=True)
class _Place:
    """Where in the caller's input an error is: its path, and the type of what stands there."""

    path: str
    annotation: object = None
    metadata: tuple[object, ...] = ()
    siblings: tuple[str, ...] = ()
    """The names that a field beside it may have."""
    union_path: str | None = None
    """The outermost field on the way that takes several types."""
    member: tuple[object, ...] = ()
    """The type of a union's that pydantic tried."""

    def reach(self, loc: tuple[int | str, ...]) -> "_Place":
        place = self
        for part in loc:
            if _own_words(place.annotation, place.metadata):
                break  # the field says what it takes as a whole
            place = place._step(part)
        return place

    def _step(self, part: int | str) -> "_Place":
        members = self.member or [
            member for member in _members(self.annotation) if _bare(member) is not type(None)
        ]
        if len(members) > 1:
            member = tuple(member for member in members if _is_called(member, str(part)))
            return replace(self, member=member[:1], union_path=self.union_path or self.path)
        annotation = _bare(members[0]) if members else None
        if isinstance(part, int):
            inner = (*get_args(annotation), None)[0]
            return _Place(f"{self.path}[{part}]", inner, union_path=self.union_path)
        path = f"{self.path}.{part}" if self.path else part
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            fields = {field.alias or name: field for name, field in annotation.model_fields.items()}
            field = fields.get(part, annotation.model_fields.get(part))
            metadata = tuple(field.metadata) if field else ()
            kind = field.annotation if field else None
            return _Place(path, kind, metadata, tuple(fields), self.union_path)
        # Without its type: pydantic's name for a member of a union, which is no field of the caller's.
        is_label = "[" in part or part[:1].isupper() or part in _LABELS
        if get_origin(annotation) is None and is_label:
            return replace(self, annotation=None, union_path=self.union_path or self.path)
        inner = get_args(annotation)[1] if len(get_args(annotation)) == 2 else None
        return _Place(path, inner, union_path=self.union_path)


def _rule(fault: ErrorDetails, place: _Place) -> str:
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        name = place.path.rpartition(".")[2]
        return f"unknown field, {did_you_mean(name, place.siblings)}" if place.siblings else "unknown field"
    if "reason" in context:
        return str(context["reason"])
    said = allowed_text(place.annotation, place.metadata, fault["input"])
    if kind in _SAID_BY_MESSAGE and not _own_words(place.annotation, place.metadata):
        said = ""
    if said or kind == "missing":
        return said or "is required"
    message = str(context["error"]) if kind in ("value_error", "assertion_error") else fault["msg"]
    return message[:1].lower() + message[1:]


def allowed_text(annotation: object, metadata: Sequence[object] = (), value: object = None) -> str:
    """What a field takes: in its own words, or from its type and bounds; "" if neither says it."""
    if words := _own_words(annotation, metadata):
        return f"allowed: {words}"
    members = [member for member in _members(annotation) if _bare(member) is not type(None)]
    bare = [_bare(member) for member in members]
    choices = [str(choice) for member in bare if get_origin(member) is Literal for choice in get_args(member)]
    if choices and len(bare) == 1:
        close = nearest(value, choices) if isinstance(value, str) else []
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        return f"allowed: {', '.join(choices)}{hint}"
    kinds = [_kind_text(member, metadata) for member in members]
    return f"allowed: {' or '.join(dict.fromkeys(kinds))}" if kinds and all(kinds) else ""


def _own_words(annotation: object, metadata: Sequence[object]) -> str:
    if words := [item.text for item in metadata if isinstance(item, Allowed)]:
        return words[0]
    if get_origin(annotation) is Annotated:
        return _own_words(_bare(annotation), get_args(annotation)[1:])
    alternatives = [part for part in get_args(annotation) if part is not type(None)]
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return _own_words(alternatives[0], ()) if is_union and len(alternatives) == 1 else ""


def _kind_text(member: object, metadata: Sequence[object]) -> str:
    bare = _bare(member)
    if get_origin(bare) is Literal:
        return " or ".join(map(str, get_args(bare)))
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        return _KINDS[dict]
    inner = get_args(member)[1:] if get_origin(member) is Annotated else ()
    flat = [part for item in (*inner, *metadata) for part in getattr(item, "metadata", (item,))]
    return (text := _KINDS.get(get_origin(bare) or bare, "")) and text + _bounds_text(flat)


def _bounds_text(metadata: Sequence[object]) -> str:
    names = ("ge", "gt", "le", "lt", "max_length")
    bounds = {key: getattr(item, key) for item in metadata for key in names if hasattr(item, key)}
    if "max_length" in bounds:
        return f" of at most {bounds['max_length']:,} characters"
    if "ge" in bounds and "le" in bounds:
        return f" from {bounds['ge']} to {bounds['le']:,}"
    words = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    said = [f"{word} {bounds[key]:,}" for key, word in words.items() if key in bounds]
    return f" {' and '.join(said)}" if said else ""


def _bare(annotation: object) -> object:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _members(annotation: object) -> list[object]:
    """The alternatives of a type, however unions and annotations are nested."""
    bare = _bare(annotation)
    if get_origin(bare) in (Union, types.UnionType):
        return [part for alternative in get_args(bare) for part in _members(alternative)]
    return [] if annotation is None else [annotation]


def _is_called(member: object, label: str) -> bool:
    """Whether pydantic's label of a union's member means this one."""
    bare = _bare(member)
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        tags = {value for field in bare.model_fields.values() for value in get_args(field.annotation)}
        return label == bare.__name__ or label in tags
    return label.startswith(getattr(get_origin(bare) or bare, "__name__", "?"))
