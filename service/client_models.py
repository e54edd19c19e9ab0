"""What the client gives back. Fields that a newer server adds are kept; tests hold these against OpenAPI."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

State = Literal["queued", "running", "waiting_approval", "completed", "failed", "cancelled"]
TERMINAL: tuple[State, ...] = ("completed", "failed", "cancelled")
Data = dict[str, Any]


class Record(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class Session(Record):
    id: str
    state: State
    mode: str
    approval: str
    priority: int
    labels: dict[str, str]
    owner: str
    attempt: int
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime
    model: str | None
    device: str | None
    num_devices: int | None
    bottleneck: str | None
    verdict: str | None
    speedup: float | None
    measured_speedup: float | None
    error: Data | None
    links: dict[str, str]

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL


class SessionWithRequest(Session):
    request: Data | None


class SessionPage(Record):
    items: list[Session]
    next_cursor: str | None


class Event(Record):
    seq: int
    at: datetime
    node: str
    kind: str
    content: Data


class Export(Record):
    format: str
    file_name: str
    text: str
    notes: list[str]


class Trace(Record):
    id: str
    name: str
    owner: str
    state: Literal["open", "complete"]
    created_at: datetime
    completed_at: datetime | None
    expires_at: datetime
    reference: str


class TraceFile(Record):
    name: str
    received_bytes: int
    sha256: str | None = None


class TraceWithFiles(Trace):
    files: list[TraceFile]
    analysis: Data | None
    error: Data | None


class TracePage(Record):
    items: list[Trace]
    next_cursor: str | None


class Entry(Record):
    id: str
    kind: Literal["playbook", "case"]
    title: str
    status: Literal["confirmed", "hypothesis", "refuted"]
    facets: dict[str, list[str]]
    is_own: bool
    body: Data


class Hit(Record):
    entry: Entry
    score: float
    matched: list[str]
    warning: bool


class Hits(Record):
    items: list[Hit]
    methods: list[str]
    limitation: str | None
