"""The API's responses as frozen dataclasses, checked while they are built from JSON.

The server describes the same shapes in its OpenAPI document; a test compares the two.
"""

from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

State = Literal["queued", "running", "waiting_approval", "completed", "failed", "cancelled"]
TERMINAL: tuple[State, ...] = ("completed", "failed", "cancelled")
JsonObject = dict[str, Any]
R = TypeVar("R", bound="Record")


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of every response."""

    raw: JsonObject = field(default_factory=dict, repr=False, compare=False)
    """The JSON object as it was received, with fields that a newer server may have added."""

    @classmethod
    def from_json(cls: type[R], data: object) -> R:
        """Raises ValueError if a field is missing or has another type."""
        if not isinstance(data, dict):
            raise ValueError(f"{cls.__name__}: must be a JSON object")
        values = {}
        for name, (kind, required) in _fields(cls).items():
            if name in data:
                values[name] = _convert(data[name], kind, f"{cls.__name__}.{name}")
            elif required:
                raise ValueError(f"{cls.__name__}.{name}: missing")
        return cls(raw=data, **values)


@dataclass(frozen=True, kw_only=True)
class Session(Record):
    id: str
    state: State
    mode: str
    approval: str
    priority: int
    labels: dict[str, str]
    owner: str
    """Name of the key or token that submitted it."""
    attempt: int
    """1, and one more for each retry."""
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime
    model: str | None
    device: str | None
    num_devices: int | None
    bottleneck: str | None
    """Of today's plan, if known."""
    verdict: str | None
    """The outcome in one sentence."""
    speedup: float | None
    """Predicted, of the first proposal over today's plan."""
    measured_speedup: float | None
    """From a trial, if there was one."""
    error: JsonObject | None
    links: dict[str, str]

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL


@dataclass(frozen=True, kw_only=True)
class SessionWithRequest(Session):
    request: JsonObject | None
    """The scenario as submitted."""


@dataclass(frozen=True, kw_only=True)
class SessionPage(Record):
    items: list[Session]
    next_cursor: str | None


@dataclass(frozen=True, kw_only=True)
class Event(Record):
    seq: int
    """1, 2, 3, ... without gaps; the stream's `id:`."""
    at: datetime
    node: str
    """The agent, or `session` for a change of its state."""
    kind: str
    """state, tool, reasoned, incident, ..."""
    content: JsonObject


@dataclass(frozen=True, kw_only=True)
class Export(Record):
    format: str
    file_name: str
    text: str
    notes: list[str]
    """What the file alone does not decide."""


@dataclass(frozen=True, kw_only=True)
class Trace(Record):
    id: str
    name: str
    owner: str
    state: Literal["open", "complete"]
    """open: files may be uploaded."""
    created_at: datetime
    completed_at: datetime | None
    expires_at: datetime
    """When it will be deleted."""
    reference: str
    """The value for a session's `traces`."""


@dataclass(frozen=True, kw_only=True)
class TraceFile(Record):
    name: str
    received_bytes: int
    """The offset at which an upload resumes."""
    sha256: str | None = None
    """Once the upload is complete."""


@dataclass(frozen=True, kw_only=True)
class TraceWithFiles(Trace):
    files: list[TraceFile]
    analysis: JsonObject | None
    error: JsonObject | None


@dataclass(frozen=True, kw_only=True)
class TracePage(Record):
    items: list[Trace]
    next_cursor: str | None


@dataclass(frozen=True, kw_only=True)
class Entry(Record):
    """Advice with conditions (a playbook), or a measured case."""

    id: str
    kind: Literal["playbook", "case"]
    title: str
    status: Literal["confirmed", "hypothesis", "refuted"]
    facets: dict[str, list[str]]
    is_own: bool
    """Visible to this tenant only."""
    body: JsonObject
    """All of it; for a case with its history."""


@dataclass(frozen=True, kw_only=True)
class Hit(Record):
    entry: Entry
    score: float
    """Comparable within one search only."""
    matched: list[str]
    """lexical, vector, facets: the methods that found it."""
    warning: bool
    """A measurement contradicts it."""


@dataclass(frozen=True, kw_only=True)
class Hits(Record):
    items: list[Hit]
    methods: list[str]
    limitation: str | None
    """Why the search is not semantic, if it is not."""


def _fields(kind: type[Record]) -> dict[str, tuple[Any, bool]]:
    """Type of each field, and whether it is required."""
    types: dict[str, Any] = _types(kind)  # type: ignore[arg-type]  # mypy: a class is no Hashable
    own = [item for item in fields(kind) if item.name != "raw"]
    return {item.name: (types[item.name], item.default is MISSING) for item in own}


_types = cache(get_type_hints)


def _convert(value: Any, kind: Any, name: str) -> Any:  # noqa: ANN401 - any JSON and any type of a field
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is UnionType:  # only `X | None` is used here
        return None if value is None else _convert(value, arguments[0], name)
    if origin is list and isinstance(value, list):
        return [_convert(item, arguments[0], name) for item in value]
    if origin is dict and isinstance(value, dict):
        return {key: _convert(item, arguments[1], name) for key, item in value.items()}
    if origin is Literal:
        if value in arguments:
            return value
    elif isinstance(kind, type):
        return _convert_plain(value, kind, name)
    raise ValueError(f"{name}: got {value!r:.80}")


def _convert_plain(value: object, kind: type, name: str) -> object:
    if issubclass(kind, Record):
        return kind.from_json(value)
    if kind is datetime and isinstance(value, str):
        return datetime.fromisoformat(value.replace("Z", "+00:00"))  # Python 3.10 does not accept Z
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:  # not isinstance: true is no number
        raise ValueError(f"{name}: got {value!r:.80}")
    return value
