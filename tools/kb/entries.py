"""Entries of the knowledge base: playbooks and cases as typed records, hits and facets, and the errors.

Facets weigh and never exclude: a case from another device ranks lower but is still found.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, PlainValidator, ValidationError
from pydantic import create_model as _create_model
from pydantic_core import PydanticCustomError

from tools.errors import AsapError, InputError
from tools.hardware import device_names
from tools.hardware.catalogue import VENDORS, find_vendor
from tools.kb.conditions import PLAN_COUNTS, PlaybookCondition
from tools.names import did_you_mean
from tools.scenario.spec import NOTHING, Framework, FromList, Plan, Record, shown


class KnowledgeError(AsapError):
    """The store of cases does not answer, or its answer cannot be used."""


class EmbeddingError(KnowledgeError):
    """Texts could not be turned into vectors."""


Kind = Literal["playbook", "case"]
Status = Literal["confirmed", "hypothesis", "refuted"]
Match = Literal["lexical", "vector", "facets"]
Bottleneck = Literal["compute", "memory", "communication", "pipeline", "host"]
Architecture = Literal["dense", "moe"]

KINDS: tuple[Kind, ...] = get_args(Kind)
STATUSES: tuple[Status, ...] = get_args(Status)
BOTTLENECKS: tuple[str, ...] = get_args(Bottleneck)
ARCHITECTURES: tuple[str, ...] = get_args(Architecture)
MOVE_WORDS = ("x2", "/2", "devices_per_node", "num_devices", "all_data_ranks")
"""Values of a move that depend on the plan it is applied to; all_data_ranks is dp * cp."""

JsonObject = dict[str, JsonValue]
PlanValues = dict[str, int | bool | str | None]

MAX_CASE_BYTES = 64 * 2**10
"""A case is read by people and by models: what is longer belongs in a file that the case names."""
MAX_TEXT_CHARACTERS = 4000
MAX_LINE_CHARACTERS = 200
MAX_DEPTH = 8
_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
# Escape sequences, lone surrogates (not valid in UTF-8) and marks that reverse the direction of text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


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


def _text(max_characters: int = MAX_TEXT_CHARACTERS) -> AfterValidator:
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


def _checked_fields(model: type[BaseModel], value: object) -> dict[str, Any]:
    """The fields that are stated, as the model checks them."""
    try:
        return model.model_validate(value).model_dump(exclude_unset=True)
    except ValidationError as error:
        field, given, reason = find_fault(error, value)
    raise PydanticCustomError(
        "entry", "{reason}", {"reason": reason, "path": f".{field}" if field else "", "given": given}
    )


def _partial_plan() -> type[BaseModel]:
    """Fields of a plan, each of which may be absent or null."""
    fields: dict[str, Any] = {}
    for field, info in Plan.model_fields.items():
        own: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
        fields[field] = (own | None, None)
    return _create_model("PartialPlan", __base__=Record, **fields)


Slug = Annotated[str, AfterValidator(_slug)]
Line = Annotated[str, _text(MAX_LINE_CHARACTERS)]
Prose = Annotated[str, _text()]
JsonTable = Annotated[JsonObject, PlainValidator(check_json_object)]
_PARTIAL_PLAN = _partial_plan()


def _check_plan(value: object) -> PlanValues:
    return _checked_fields(_PARTIAL_PLAN, value)


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


class Source(Record):
    title: Annotated[str, _text(300)]
    where: Annotated[str, _text(500)]


class PlaybookFacets(Record):
    """What a playbook is about; an absent facet means any."""

    bottleneck: Annotated[tuple[Bottleneck, ...], FromList, Field(min_length=1)] | None = None
    architecture: Annotated[tuple[Architecture, ...], FromList, Field(min_length=1)] | None = None
    vendor: Annotated[tuple[Literal[VENDORS], ...], FromList, Field(min_length=1)] | None = None  # type: ignore[valid-type]


class Playbook(Record):
    """Advice, and the conditions under which it holds."""

    id: Slug
    title: Line
    when: Annotated[tuple[PlaybookCondition, ...], FromList]
    symptoms: Prose
    do: Prose
    why: Prose
    effect: Prose
    risks: Annotated[tuple[Prose, ...], FromList, Field(min_length=1, max_length=64)]
    sources: Annotated[tuple[Source, ...], FromList, Field(min_length=1, max_length=64)]
    moves: Annotated[tuple[Move, ...], FromList, Field(min_length=1, max_length=64)] = ()
    facets: PlaybookFacets = PlaybookFacets()


Number = int | float


class Measured(Record):
    """What a shipped case measured, in the unit that `metric` names."""

    metric: Line
    before: Number | None = None
    after: Number | None = None
    speedup: Number | None = None
    note: Prose | None = None


class Case(Record):
    """What once happened: a change of a plan, and what came of it."""

    # Built on first use: most runs of `asap optimize` read the seed only.
    model_config = ConfigDict(defer_build=True)

    id: Slug
    title: Line
    story: Prose
    status: Status = "hypothesis"
    model: Line | None = None
    architecture: Architecture | None = None
    device: Slug | None = None
    num_devices: int | None = Field(None, ge=1, le=10**9)
    framework: Framework | None = None
    bottleneck: Bottleneck | None = None
    before: PartialPlan | None = None
    after: PartialPlan | None = None
    scenario: JsonTable | None = None
    predicted: JsonTable | None = None
    measured: JsonTable | None = None
    lesson: Prose | None = None
    sources: Annotated[tuple[Source, ...], FromList, Field(max_length=64)] = ()


class SeedCase(Case):
    """A case that comes with ASAP: complete, and with its sources."""

    model_config = ConfigDict(defer_build=False)

    status: Literal["confirmed", "refuted"]
    model: Line
    architecture: Architecture
    device: Slug
    num_devices: int = Field(ge=1, le=10**9)
    framework: Framework
    bottleneck: Bottleneck
    before: PartialPlan
    after: PartialPlan
    measured: Annotated[JsonObject, PlainValidator(lambda value: _checked_fields(Measured, value))]
    lesson: Prose
    sources: Annotated[tuple[Source, ...], FromList, Field(min_length=1, max_length=64)]


class Change(Record):
    """One line of a case's history: who gave it which status, when and why."""

    model_config = ConfigDict(defer_build=True)

    at: str
    by: str
    from_: Status | None = Field(alias="from")
    to: Status
    reason: str
    measured: JsonTable | None = None


Facets = Mapping[str, tuple[str, ...]]
"""What an entry is about: facet name to the values it is restricted to. An absent name means any."""


@dataclass(frozen=True)
class Entry:
    """A playbook (advice with conditions) or a case (what once happened), ready to be searched."""

    id: str
    kind: Kind
    title: str
    text: str
    """What a search reads, besides the title."""
    facets: Facets
    status: Status
    tenant: str | None
    """The only tenant who may see it; None if everybody may."""
    body: Playbook | Case
    history: tuple[Change, ...] = ()
    """Of a case that was added or marked, oldest first."""
    is_seed: bool = False
    """Comes with ASAP, so it is in no store."""

    @property
    def key(self) -> str:
        """Its name among the entries of all tenants."""
        return f"seed:{self.id}" if self.is_seed else f"case:{self.tenant or ''}/{self.id}"

    def json_body(self) -> JsonObject:
        """What was written, as JSON; of a case with its present status and its history."""
        body: JsonObject = self.body.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if self.history:
            body["status"] = self.status
            body["history"] = [
                change.model_dump(mode="json", by_alias=True, exclude_unset=True) for change in self.history
            ]
        return body


@dataclass(frozen=True)
class Hit:
    """One entry that a search found."""

    entry: Entry
    score: float
    """Comparable within one search only."""
    matched: tuple[Match, ...]
    """Which methods found it."""

    @property
    def warning(self) -> bool:
        """A measurement contradicts it: to be shown as a warning, not as advice."""
        return self.entry.status == "refuted"


Model = TypeVar("Model", bound=BaseModel)


def parse_as(model: type[Model], data: object) -> Model:
    """The record that the data describes; an InputError names the first wrong field."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        field, given, reason = find_fault(error, data)
    raise InputError(field or "the entry", given, reason)


def parse_case(data: object) -> Case:
    """A case of the user's own, of bounded size."""
    case = parse_as(Case, data)
    check_size("the case", data)
    if case.device is not None:
        check_device(case.device)
    return case


def parse_playbook(topic: str, data: object) -> Entry:
    """The playbook of this plain data; its topic is a facet of it."""
    playbook = parse_as(Playbook, data)
    facets = {name: tuple(values) for name, values in playbook.facets if values}
    return Entry(
        id=playbook.id,
        kind="playbook",
        title=playbook.title,
        text="\n".join((playbook.symptoms, playbook.do, playbook.why, playbook.effect)),
        facets={**facets, "topic": (topic,)},
        status="confirmed",
        tenant=None,
        body=playbook,
        is_seed=True,
    )


def parse_seed_case(data: object) -> Entry:
    """A case that comes with ASAP."""
    case = parse_as(SeedCase, data)
    check_device(case.device)
    return case_entry(case, tenant=None, is_seed=True)


def check_size(field: str, data: object) -> None:
    size_bytes = len(json.dumps(data).encode())
    if size_bytes > MAX_CASE_BYTES:
        raise InputError(field, f"{size_bytes} bytes", f"must have at most {MAX_CASE_BYTES} bytes as JSON")


def check_device(name: str) -> None:
    if find_vendor(name) is None:
        raise InputError("device", name, did_you_mean(name, device_names()))


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


def case_entry(
    case: Case, tenant: str | None, *, history: tuple[Change, ...] = (), is_seed: bool = False
) -> Entry:
    """The entry of a case that was checked when it came in."""
    return Entry(
        id=case.id,
        kind="case",
        title=case.title,
        text="\n".join(_search_texts(case)),
        facets=_case_facets(case),
        status=case.status,
        tenant=tenant,
        body=case,
        history=history,
        is_seed=is_seed,
    )


def _search_texts(case: Case) -> list[str]:
    """What a search reads: the prose, and the facts in the words that a report would use."""
    prose = [text for text in (case.story, case.lesson) if text is not None]
    names = [
        str(name) for name in (case.model, case.device, case.framework, case.bottleneck) if name is not None
    ]
    before, after = case.before or {}, case.after or {}
    changes = [
        f"{field} {before[field]} to {value}" if field in before else f"{field} {value}"
        for field, value in after.items()
        if before.get(field) != value
    ]
    return [*prose, " ".join(names), ", ".join(changes)]


def _case_facets(case: Case) -> Facets:
    values = {
        "device": case.device,
        "architecture": case.architecture,
        "bottleneck": case.bottleneck,
        "framework": case.framework,
        "scale": scale_of(case.num_devices) if case.num_devices else None,
        "vendor": find_vendor(case.device) if case.device else None,
    }
    return {name: (value,) for name, value in values.items() if value is not None}


FACETS = ("device", "architecture", "scale", "bottleneck", "topic", "framework", "vendor")
_ALLOWED = {"architecture": ARCHITECTURES, "bottleneck": BOTTLENECKS, "vendor": VENDORS}
_SCALES = ((8, "8"), (64, "64"), (512, "512"), (4096, "4096"))
_LARGEST_SCALE = "more"


def scale_of(num_devices: int) -> str:
    """The size class of a job by its devices: up to 8, 64, 512, 4096, or more."""
    return next((name for limit, name in _SCALES if num_devices <= limit), _LARGEST_SCALE)


def read_facets(stated: Mapping[str, str | int | Sequence[str]] | None) -> Facets:
    """The facets of a query, checked; `num_devices` may be stated instead of a scale."""
    facets: dict[str, tuple[str, ...]] = {}
    for name, value in (stated or {}).items():
        if name == "num_devices":
            facets["scale"] = (_scale(value),)
        elif name in FACETS:
            facets[name] = _values(name, value)
        else:
            raise InputError(f"facets.{name}", value, f"must be one of {', '.join((*FACETS, 'num_devices'))}")
    if "device" in facets and "vendor" not in facets:
        vendors = [vendor for device in facets["device"] if (vendor := find_vendor(device))]
        facets |= {"vendor": tuple(vendors)} if vendors else {}
    return facets


def agreement(wanted: Facets, entry: Facets) -> float:
    """From -1 (every facet contradicts) over 0 (nothing to compare) to 1 (every facet agrees).

    The mean over the facets that both name: an entry for every device is not behind one for this device.
    """
    judged = [bool(set(values) & set(entry[name])) for name, values in wanted.items() if name in entry]
    return sum(1 if agrees else -1 for agrees in judged) / len(judged) if judged else 0.0


def _scale(value: object) -> str:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError("facets.num_devices", value, "must be a whole number of at least 1")
    return scale_of(value)


def _values(name: str, value: object) -> tuple[str, ...]:
    values = (value,) if isinstance(value, str) else value
    if not isinstance(values, Sequence) or not all(isinstance(item, str) for item in values):
        raise InputError(f"facets.{name}", value, "must be a text or a list of texts")
    allowed = _ALLOWED.get(name)
    for item in values:
        if allowed and item not in allowed:
            raise InputError(f"facets.{name}", item, f"must be one of {', '.join(allowed)}")
    return tuple(values)
