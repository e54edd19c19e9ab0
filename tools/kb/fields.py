"""Types of the fields of an entry: printable text of bounded length, ids, plain JSON and partial plans."""

import math
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError

from tools.kb.conditions import PLAN_COUNTS
from tools.scenario.fields import StrictModel, input_error
from tools.scenario.spec import PlanValue
from tools.scenario.stated import PlanPart

MOVE_WORDS = ("x2", "/2", "devices_per_node", "num_devices", "all_data_ranks")
"""Values of a move that depend on the plan it is applied to; all_data_ranks is dp * cp."""
MAX_CASE_BYTES = 64 * 2**10
"""A case is read by people and by models: what is longer belongs in a file that the case names."""
MAX_TEXT_CHARACTERS = 4000
MAX_LINE_CHARACTERS = 200
MAX_DEPTH = 8
_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
# Escape sequences, lone surrogates (not valid in UTF-8) and marks that reverse the direction of text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


class KnowledgeRecord(StrictModel):
    """Base of the knowledge base's records: built on first use, because a search of the seed needs none."""

    model_config = ConfigDict(defer_build=True)


def text_fault(
    value: object, max_characters: int = MAX_TEXT_CHARACTERS, *, empty: bool = False
) -> str | None:
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


def _check_slug(value: str) -> str:
    _refuse(slug_fault(value))
    return value


def _check_table(value: object) -> object:
    _refuse(None if isinstance(value, dict) else "must be a table")
    _check_json(value)
    return value


def _check_json(value: object, path: str = "", depth: int = 0) -> None:
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
            _check_json(item, f"{path}.{key}", depth + 1)
    elif value is not None and not isinstance(value, int):
        _refuse("must be plain JSON", path)


def checked_fields(model: type[BaseModel], value: object) -> dict[str, PlanValue]:
    """The fields that are stated, as the model checks them."""
    try:
        return model.model_validate(value).model_dump(exclude_unset=True)
    except ValidationError as error:
        fault = input_error(error, model)
    context = {"reason": fault.rule, "path": f".{fault.path}", "given": fault.given}
    raise PydanticCustomError("entry", "{reason}", context)


def _check_move(value: object) -> dict[str, PlanValue]:
    """A partial plan, except that a degree may be a word."""
    if not isinstance(value, dict) or not value:
        raise PydanticCustomError("entry", "{reason}", {"reason": "must be a table that changes a field"})
    if "dp" in value:
        _refuse("follows from the device count and the other degrees", ".dp")
    words = {name: item for name, item in value.items() if name in PLAN_COUNTS and item in MOVE_WORDS}
    plan = {name: item for name, item in value.items() if name not in words}
    return checked_fields(PlanPart, plan) | words


Slug = Annotated[str, AfterValidator(_check_slug)]
Line = Annotated[str, bounded_text(MAX_LINE_CHARACTERS)]
LongText = Annotated[str, bounded_text()]
JsonTable = Annotated[Mapping[str, JsonValue], PlainValidator(_check_table)]
PartialPlan = Annotated[dict[str, PlanValue], PlainValidator(lambda value: checked_fields(PlanPart, value))]
Move = Annotated[dict[str, PlanValue], PlainValidator(_check_move)]
