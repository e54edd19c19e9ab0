"""What a session emits while it runs: a typed class per kind, with a title and a summary for people.

`EventLog` stamps an event with its key, which survives a rerun, its time and its node. The store keeps the
JSON, and `parse_event` reads it back: also that of version 0.2, and as `OtherEvent` what it does not know.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from pydantic_core import to_jsonable_python

from graph.report import Incident, IncidentDetails
from tools.scenario import Scenario

MAX_CHARACTERS = 4000
MAX_ITEMS = 5
_CUT_0_2 = re.compile(r"and (\d{1,9}) more")
_MESSAGE = AliasChoices("message", "says")
"""Version 0.2 called it `says`."""


class SessionEvent(BaseModel):
    """Something that happened: `title` names it, `summary` tells in one line what came of it."""

    model_config = ConfigDict(frozen=True, extra="ignore", validate_by_name=True)
    TITLE: ClassVar[str] = "{kind}"
    SUMMARY: ClassVar[str] = ""

    kind: str
    key: str = ""
    """The same if the node runs again: an event is stored once."""
    at: float = 0.0
    node: str = ""
    """The agent, or `session` for a change of its state."""

    @property
    def title(self) -> str:
        return self.TITLE.format_map(dict(self)).replace("_", " ")

    @property
    def summary(self) -> str:
        return self.SUMMARY.format_map(dict(self))

    @property
    def line(self) -> str:
        return f"{self.title}: {self.summary}" if self.summary else self.title

    @property
    def content(self) -> dict[str, JsonValue]:
        """What this kind of event has beyond the stamp."""
        return self.model_dump(mode="json", exclude=set(SessionEvent.model_fields))


class NodeStarted(SessionEvent):
    kind: Literal["started"] = "started"


class NodeFinished(SessionEvent):
    kind: Literal["finished"] = "finished"
    seconds: float = 0.0
    changed: list[str] = Field(default_factory=list)
    """Names of the state's fields that it wrote."""


class ToolCalled(SessionEvent):
    """A function that a node or a model ran; long arguments and results are shortened."""

    TITLE, SUMMARY = "{tool}", "{outcome}"
    kind: Literal["tool"] = "tool"
    tool: str = ""
    arguments: JsonValue = None
    result: JsonValue = None
    outcome: str = ""
    """The result in a few words; empty if there is nothing short to say."""
    seconds: float = 0.0

    @model_validator(mode="before")
    @classmethod
    def _with_outcome(cls, stored: object) -> object:
        if not isinstance(stored, dict) or "outcome" in stored:
            return stored
        return {**stored, "outcome": _outcome_in_0_2(stored.get("result"))}


class Reasoned(SessionEvent):
    """A question that was answered, by the model or by the expert rules."""

    TITLE, SUMMARY = "{question}", "answered by {by}"
    kind: Literal["reasoned"] = "reasoned"
    question: str = ""
    by: str = ""
    answer: JsonValue = None
    prompt: str = ""
    tokens: float = 0
    seconds: float = 0.0


class ReplyStreamed(SessionEvent):
    """A piece of a model's reply while it streams."""

    SUMMARY = "{text}"
    kind: Literal["words"] = "words"
    question: str = ""
    text: str = ""


class Routed(SessionEvent):
    """The step that the coordinator chose."""

    TITLE, SUMMARY = "next: {step}", "{reason}"
    kind: Literal["routed"] = "routed"
    step: str = ""
    reason: str = ""


class Decided(SessionEvent):
    """What a person, or a policy, decided about a proposal."""

    SUMMARY = "{action} proposal {proposal}"
    kind: Literal["decided"] = "decided"
    action: str = ""
    by: str | None = None
    proposal: int | None = None

    @property
    def title(self) -> str:
        return f"{self.by or 'unknown'} decided"


class TrialWaiting(SessionEvent):
    """Progress of a trial's job: launched, queued, running."""

    TITLE = "{phase}"
    kind: Literal["waiting"] = "waiting"
    phase: str = "waiting"
    job: str = ""
    launcher: str | None = None
    template: str | None = None
    nodes: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _without_job(cls, stored: object) -> object:
        """Phases of version 0.2 end in the job's name."""
        if not isinstance(stored, dict):
            return stored
        phase = str(stored.get("phase", "waiting")).removesuffix(f" {stored.get('job')}")
        return {**stored, "phase": phase}

    @property
    def summary(self) -> str:
        nodes = ", ".join(self.nodes)
        parts = {"job": self.job, "launcher": self.launcher, "template": self.template, "nodes": nodes}
        return ", ".join(f"{name} {part}" for name, part in parts.items() if part)


class TrialEnded(SessionEvent):
    """A plan was measured, or could not be."""

    kind: Literal["trial"] = "trial"
    role: str = "trial"
    plan: str = Field("", validation_alias=AliasChoices("plan", "summary"))
    """In short; version 0.2 called it `summary`."""
    status: str = ""
    predicted_s: float | None = None
    step_time_s: float | None = None
    interval_s: tuple[float, float] | None = None
    speedup: float | None = None
    message: str = Field("", validation_alias=_MESSAGE)

    @property
    def title(self) -> str:
        return f"{self.role}: {self.plan}"

    @property
    def summary(self) -> str:
        return self.message or self.status


class IncidentReported(IncidentDetails, SessionEvent):
    TITLE = "{incident}"
    kind: Literal["incident"] = "incident"
    message: str = Field("", validation_alias=_MESSAGE)
    incident: str = "incident"
    """Its own kind: timeout, text refused, unexpected error, ..."""

    @classmethod
    def of(cls, incident: Incident) -> "IncidentReported":
        return cls.model_validate({**dict(incident), "kind": "incident", "incident": incident.kind})


class SessionFailure(BaseModel):
    """Why a session ended without a result."""

    kind: str = ""
    message: str = ""
    field: str | None = None


class StateChanged(SessionEvent):
    """The session is queued, runs, waits or has ended."""

    TITLE = "{state}"
    kind: Literal["state"] = "state"
    state: str = ""
    reason: str | None = None
    error: SessionFailure | None = None
    bottleneck: str | None = None
    verdict: str | None = None
    speedup: float | None = None

    @property
    def summary(self) -> str:
        return (self.error.message if self.error else None) or self.reason or self.verdict or ""


class Forked(SessionEvent):
    """Another session goes on from a step of this one, or this one from a step of another: both are told."""

    kind: Literal["forked"] = "forked"
    parent: str = ""
    child: str = ""
    step: int = 0
    """The event of the parent."""
    agent: str = ""
    changed: list[str] = Field(default_factory=list)

    @property
    def summary(self) -> str:
        otherwise = f", with other {' and '.join(self.changed)}" if self.changed else ""
        return f"{self.child} goes on from event {self.step} of {self.parent} ({self.agent}){otherwise}"


class OtherEvent(SessionEvent):
    """A kind that this version does not know."""

    model_config = ConfigDict(extra="allow")

    @property
    def summary(self) -> str:
        extra = self.model_extra or {}
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in extra.items())


def parse_event(
    kind: str, content: Mapping[str, JsonValue], key: str = "", at: float = 0.0, node: str = ""
) -> SessionEvent:
    """The event that was stored so."""
    stored = {**content, "kind": kind, "key": key, "at": at, "node": node}
    classes = {event.model_fields["kind"].default: event for event in SessionEvent.__subclasses__()}
    try:
        return classes.get(kind, OtherEvent).model_validate(stored)
    except ValidationError:  # of another version's shape
        return OtherEvent.model_validate(stored)


@dataclass
class EventLog:
    """Writes the events of one run of one node."""

    node: str
    step: int
    write: Callable[[SessionEvent], None]
    clock: Callable[[], float] = time.time
    count: int = field(default=0, init=False)
    """The number of the last event: a rerun gives an event the number that it had before."""

    def emit(self, event: SessionEvent, name: str | None = None) -> None:
        """A name takes the place of the counter where a rerun of the node may emit more or fewer."""
        if name is None:
            self.count += 1
            name = str(self.count)
        stamp = {"key": f"{self.step}/{self.node}/{name}", "at": self.clock(), "node": self.node}
        self.write(event.model_copy(update=stamp))


def plain(value: object) -> Any:  # noqa: ANN401 - JSON of whatever a tool takes or returns
    """As JSON, for events and prompts."""
    if isinstance(value, Scenario):
        return value.model_dump(mode="json", exclude_defaults=True)
    if hasattr(value, "_asdict"):  # a NamedTuple
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return to_jsonable_python(value, serialize_unknown=True)


def brief(value: JsonValue) -> JsonValue:
    """The value itself, or a shortened one if it would make an event long."""
    return value if len(json.dumps(value, default=str)) <= MAX_CHARACTERS else _shortened(value, depth=4)


def _shortened(value: JsonValue, depth: int) -> JsonValue:
    if isinstance(value, dict):
        if depth == 0:
            return f"{len(value)} fields"
        return {name: _shortened(part, depth - 1) for name, part in value.items()}
    if isinstance(value, list):
        if depth == 0:
            return f"{len(value)} items"
        shown = [_shortened(part, depth - 1) for part in value[:MAX_ITEMS]]
        return [*shown, f"and {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else shown
    if isinstance(value, str) and len(value) > MAX_CHARACTERS // 4:
        return value[: MAX_CHARACTERS // 4] + "…"
    return value


def duration(seconds: float) -> str:
    """Three digits, in seconds or milliseconds."""
    return f"{seconds:#.3g} s" if seconds >= 1 else f"{1000 * seconds:#.3g} ms"


def _outcome_in_0_2(result: JsonValue) -> str:
    """Version 0.2 stored no outcome: it is read from the shapes that its tools returned."""
    match result:
        case []:
            return "nothing found"
        case [*items, last]:
            cut = _CUT_0_2.fullmatch(str(last))
            return f"{len(items) + (int(cut[1]) if cut else 1)} found"
        case {"summary": str(plan), "step_time_s": float(step_s)}:
            return f"{plan}: {duration(step_s)}"
        case {"summary": str(plan)} if plan:
            return plan
        case {"searched": {"plans": int(plans)}}:
            return f"{plans:,} legal plans searched"
        case {"checked": int(checked), "faults": list(faults)}:
            return f"{checked} numbers, {len(faults)} differ"
        case {"diagnosis": {"bottleneck": str(bottleneck)}} | {"bottleneck": str(bottleneck)}:
            return f"limited by {bottleneck}"
    return ""
