"""Types of the fields of an entry: printable text of bounded length, ids, plain JSON and partial plans; and
which field of an invalid entry is at fault.
"""

import math
import re
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, ValidationError
from pydantic import create_model as _create_model
from pydantic_core import PydanticCustomError

from tools.errors import InputError
from tools.kb.conditions import PLAN_COUNTS
from tools.scenario.fields import NOTHING, JsonObject, shown
from tools.scenario.model import Record
from tools.scenario.spec import Plan

MOVE_WORDS = ("x2", "/2", "devices_per_node", "num_devices", "all_data_ranks")
"""Values of a move that depend on the plan it is applied to; all_data_ranks is dp * cp."""

PlanValues = dict[str, int | bool | str | None]

MAX_CASE_BYTES = 64 * 2**10
"""A case is read by people and by models: what is longer belongs in a file that the case names."""
MAX_TEXT_CHARACTERS = 4000
MAX_LINE_CHARACTERS = 200
MAX_DEPTH = 8
_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
# Escape sequences, lone surrogates (not valid in UTF-8) and marks that reverse the direction of text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


class KnowledgeRecord(Record):
    """Base of the knowledge base's records: built on first use, because a search of the seed needs none."""

    model_config = ConfigDict(defer_build=True)


def text_fault(
    value: object, max_characters: int = MAX_TEXT_CHARACTERS, *, empty: bool = False
) -> str | None:
    """What is wrong with a text, or None."""
    if not isinstance(value, str) or not (empty or value.strip()):
        return "must be a text"
    if len(value) > max_characters:
        return f"has {len(value)} characters; at most {max_characters} are allowed"
    if match := _UNPRINTABLE.search(value):
        return f"must not contain the control character {match.group()!a}"
    return None


def slug_fault(value: object) -> str | None:
    if isinstance(value, str) and _SLUG.fullmatch(value):
        return None
    return "must be up to 100 of a-z, 0-9, '.', '_' and '-', and start with a-z or 0-9"


def _refuse(reason: str | None, path: str = "") -> None:
    """Raises for a value inside the validated field; `path` leads from the field to it."""
    if reason:
        raise PydanticCustomError("entry", "{reason}", {"reason": reason, "path": path})


def bounded_text(max_characters: int = MAX_TEXT_CHARACTERS) -> AfterValidator:
    def check(value: str) -> str:
        _refuse(text_fault(value, max_characters))
        return value

    return AfterValidator(check)


def _slug(value: str) -> str:
    _refuse(slug_fault(value))
    return value


def check_json(value: object, path: str = "", depth: int = 0) -> None:
    """Refuses what is not JSON, nested too deeply, or text that cannot be printed."""
    if isinstance(value, str):
        _refuse(text_fault(value, empty=True), path)
    elif isinstance(value, float):
        _refuse(None if math.isfinite(value) else "must be a finite number", path)
    elif isinstance(value, dict | list):
        _refuse(f"must not be nested deeper than {MAX_DEPTH}" if depth >= MAX_DEPTH else None, path)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(value, dict):
                _refuse(text_fault(key, MAX_LINE_CHARACTERS), path)
            check_json(item, f"{path}.{key}", depth + 1)
    elif value is not None and not isinstance(value, int):
        _refuse("must be plain JSON", path)


def check_json_object(value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise PydanticCustomError("entry", "{reason}", {"reason": "must be a table"})
    check_json(value)
    return value


def checked_fields(model: type[BaseModel], value: object) -> dict[str, Any]:
    """The fields that are stated, as the model checks them."""
    try:
        return model.model_validate(value).model_dump(exclude_unset=True)
    except ValidationError as error:
        field, given, reason = find_fault(error, value)
    raise PydanticCustomError(
        "entry", "{reason}", {"reason": reason, "path": f".{field}" if field else "", "given": given}
    )


@cache
def _partial_plan() -> type[BaseModel]:
    """Fields of a plan, each of which may be absent or null."""
    fields: dict[str, Any] = {}
    for field, info in Plan.model_fields.items():
        own: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
        fields[field] = (own | None, None)
    return _create_model("PartialPlan", __base__=KnowledgeRecord, **fields)


Slug = Annotated[str, AfterValidator(_slug)]
Line = Annotated[str, bounded_text(MAX_LINE_CHARACTERS)]
Prose = Annotated[str, bounded_text()]
JsonTable = Annotated[JsonObject, PlainValidator(check_json_object)]


def _check_plan(value: object) -> PlanValues:
    return checked_fields(_partial_plan(), value)


def _check_move(value: object) -> PlanValues:
    """A partial plan, except that a degree may be a word."""
    if not isinstance(value, dict) or not value:
        raise PydanticCustomError("entry", "{reason}", {"reason": "must be a table that changes a field"})
    if "dp" in value:
        _refuse("follows from the device count and the other degrees", ".dp")
    words = {name: item for name, item in value.items() if name in PLAN_COUNTS and item in MOVE_WORDS}
    return _check_plan({name: item for name, item in value.items() if name not in words}) | words


PartialPlan = Annotated[PlanValues, PlainValidator(_check_plan)]
Move = Annotated[PlanValues, PlainValidator(_check_move)]


Model = TypeVar("Model", bound=BaseModel)


def parse_as(model: type[Model], data: object) -> Model:
    """The record that the data describes; an InputError names the first wrong field."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        field, given, reason = find_fault(error, data)
    raise InputError(field or "the entry", given, reason)


def find_fault(error: ValidationError, data: object) -> tuple[str, object, str]:
    """The field at fault, its value and the reason, of the first error."""
    first = error.errors(include_url=False)[0]
    context = first.get("ctx", {})
    path = ""
    for part in first["loc"]:
        # Behind the field pydantic names the members of a union, which are not part of the data.
        if isinstance(data, dict) and isinstance(part, str):
            path, data = f"{path}.{part}", data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            path, data = f"{path}[{part}]", data[part]
    path += context.get("path", "")
    if first["type"] == "missing":
        return path.lstrip("."), NOTHING, "is missing"
    reason = context.get("reason") or first["msg"][0].lower() + first["msg"][1:]
    return path.lstrip("."), shown(context.get("given", first["input"])), str(reason)
