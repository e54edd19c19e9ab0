"""The shapes of the API's answers, shared with the server. Fields that a newer server adds are kept."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

State = Literal["queued", "running", "waiting_approval", "completed", "failed", "cancelled"]
TERMINAL: tuple[State, ...] = ("completed", "failed", "cancelled")
Data = dict[str, Any]


class Record(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class SessionFacts(Record):
    id: str
    state: State
    mode: str
    approval: str
    priority: int
    labels: dict[str, str]
    owner: str = Field(description="the name of the key or token that submitted it")
    attempt: int = Field(description="1, and one more for each retry")
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime
    model: str | None
    device: str | None
    num_devices: int | None
    bottleneck: str | None = Field(description="of today's plan, when known")
    verdict: str | None = Field(description="the outcome in one sentence")
    speedup: float | None = Field(description="predicted, of the first proposal against today's plan")
    measured_speedup: float | None = Field(description="by a trial, where there was one")


class Session(SessionFacts):
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
    seq: int = Field(description="1, 2, 3, ... without a gap; the stream's `id:`")
    at: datetime
    node: str = Field(description="the agent, or `session` for a change of its state")
    kind: str = Field(description="state, tool, reasoned, incident, ...")
    content: Data


class Export(Record):
    format: str
    file_name: str
    text: str
    notes: list[str] = Field(description="what the file alone does not decide")


class Trace(Record):
    id: str
    name: str
    owner: str
    state: Literal["open", "complete"] = Field(description="open: files may be uploaded")
    created_at: datetime
    completed_at: datetime | None
    expires_at: datetime = Field(description="then it is deleted")
    reference: str = Field(description="what a session's `traces` may say")


class TraceFile(Record):
    name: str
    received_bytes: int = Field(description="go on from this offset")
    sha256: str | None = Field(None, description="when the upload is complete")


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
    is_own: bool = Field(description="seen by this tenant only")
    body: Data = Field(description="all that was written, of a case with its history")


class Hit(Record):
    entry: Entry
    score: float = Field(description="comparable within one search only")
    matched: list[str] = Field(description="lexical, vector, facets: which ways found it")
    warning: bool = Field(description="a measurement spoke against it")


class Hits(Record):
    items: list[Hit]
    methods: list[str]
    limitation: str | None
