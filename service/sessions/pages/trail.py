"""/sessions/{id}/trail: the agents of a session as a graph: what each saw, did and changed, what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Path, Response

from graph.events import (
    NodeFinished,
    NodeStarted,
    Reasoned,
    Routed,
    SessionEvent,
    StateChanged,
    ToolCalled,
    parse_event,
)
from service.errors import NotFoundError
from service.http.deps import Id
from service.render.text import counted, seconds
from service.sessions.event_store import MAX_EVENTS, events_after
from service.sessions.model import EventRow
from service.sessions.pages.view import follow_session
from service.sessions.store import get_session
from service.web.errors import PageRoute
from service.web.rendering import ReaderPage

SESSION, COORDINATOR = "session", "coordinator"
MIN_PERCENT = 0.4
"""Shorter runs are drawn this wide, or they could not be seen."""
PURPOSES = {
    COORDINATOR: "chooses the next step",
    "analyzer": "finds what limits a plan",
    "proposal": "searches for plans",
    "verify": "recomputes every number",
    "approve": "asks a person",
    "trial": "measures a plan",
    "learn": "saves the outcome",
    "report": "writes the report",
}
"""The agents, as the graph has them."""
MAX_SEQ = 2**31 - 1

router = APIRouter(prefix="/sessions/{id}/trail", route_class=PageRoute)


@router.get("")
def show(id: Id, page: ReaderPage) -> Response:
    session, events = follow_session(page, id)
    return page(
        "trail",
        session=session,
        tab="trail",
        trail=trail_of(events),
        purposes=PURPOSES,
        is_cut=len(events) == MAX_EVENTS,
    )


@router.get("/{seq}")
def show_event(id: Id, seq: Annotated[int, Path(ge=1, le=MAX_SEQ)], page: ReaderPage) -> Response:
    with page.app.database.read() as conn:
        row = get_session(conn, page.caller.tenant, id)
        events = events_after(conn, id, seq - 1, 1)
    if not events or events[0].seq != seq:
        raise NotFoundError("event", str(seq))
    return page("event", row=row, event=events[0])


class TrailStep(NamedTuple):
    """One thing that an agent did."""

    seq: int
    event: SessionEvent
    seconds: float
    tokens: int

    @property
    def has_more(self) -> bool:
        """Arguments, results or prompts, shown on a page of their own."""
        return isinstance(self.event, ToolCalled | Reasoned)


@dataclass
class NodeRun:
    """One run of an agent, from its start to what it changed."""

    node: str
    seq: int
    reason: str = ""
    """Why the coordinator chose it."""
    took_s: float | None = None
    """None while it runs."""
    steps: list[TrailStep] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Fields of the session's state."""

    @property
    def folded(self) -> list[list[TrailStep]]:
        """What it did, the same thing once however often it was done."""
        alike: dict[tuple[str, str], list[TrailStep]] = {}
        for step in self.steps:
            once = "" if step.has_more else str(step.seq)
            alike.setdefault((step.event.title, once), []).append(step)
        return list(alike.values())


class Stretch(NamedTuple):
    """A run on the strip of time, in percent of its width; when nobody works is left out."""

    run: NodeRun
    x: float
    width: float


@dataclass(frozen=True)
class Agent:
    """One row of the trail: all that an agent did in the session."""

    name: str
    stretches: list[Stretch]

    @property
    def runs(self) -> list[NodeRun]:
        return [stretch.run for stretch in self.stretches]

    @property
    def steps(self) -> list[TrailStep]:
        return [step for run in self.runs for step in run.steps]

    @property
    def outcome(self) -> str:
        """What it came to, in its last words."""
        return next((step.event.line for step in reversed(self.steps) if step.event.summary), "")

    @property
    def cost(self) -> str:
        """Seconds, calls and tokens, without what it had none of."""
        calls = sum(isinstance(step.event, ToolCalled) for step in self.steps)
        tokens = sum(step.tokens for step in self.steps)
        parts = [counted(calls, "call")] if calls else []
        parts += [f"{tokens:,} tokens"] if tokens else []
        took_s = sum(run.took_s or 0.0 for run in self.runs)
        return ", ".join([*parts, seconds(took_s)] if took_s else parts)


@dataclass(frozen=True)
class Trail:
    runs: Sequence[NodeRun]
    moves: Sequence[EventRow]
    """Changes of the session's own state."""
    others: Sequence[SessionEvent]
    """What else happened to the session, as a fork of it."""
    last_seq: int
    current: str | None
    """The running agent; None if the session has ended, waits or is queued."""

    @property
    def nodes(self) -> list[NodeRun]:
        """Without the coordinator's runs."""
        return [run for run in self.runs if run.node != COORDINATOR]

    @property
    def agents(self) -> dict[str, Agent]:
        """A row for each in the order of their first runs, which stand after one another on one strip."""
        rows: dict[str, Agent] = {}
        whole_s = sum(run.took_s or 0.0 for run in self.runs) or 1.0
        start_s = 0.0
        for run in self.runs:
            width = max(100 * (run.took_s or 0.0) / whole_s, MIN_PERCENT)
            stretch = Stretch(run, max(0.0, min(100 * start_s / whole_s, 100 - width)), width)
            rows.setdefault(run.node, Agent(run.node, [])).stretches.append(stretch)
            start_s += run.took_s or 0.0
        return rows


def trail_of(events: Sequence[EventRow]) -> Trail:
    runs: list[NodeRun] = []
    open_runs: dict[str, NodeRun] = {}
    moves: list[EventRow] = []
    others: list[SessionEvent] = []
    reason = ""
    for row in events:
        event = parse_event(row.kind, row.content, row.key, row.at, row.node)
        if isinstance(event, StateChanged):
            moves.append(row)
            open_runs.clear()
            continue
        if row.node == SESSION:
            others.append(event)
            continue
        key = row.key.rpartition("/")[0]
        if key not in open_runs:
            open_runs[key] = NodeRun(row.node, row.seq, reason if row.node != COORDINATOR else "")
            runs.append(open_runs[key])
        run = open_runs[key]
        if isinstance(event, NodeFinished):
            run.took_s, run.changed = event.seconds, event.changed
        elif not isinstance(event, NodeStarted):
            took_s = event.seconds if isinstance(event, ToolCalled | Reasoned) else 0.0
            tokens = int(event.tokens) if isinstance(event, Reasoned) else 0
            run.steps.append(TrailStep(row.seq, event, took_s, tokens))
        if isinstance(event, Routed):
            reason = event.reason
    is_open = bool(runs) and runs[-1].took_s is None and open_runs
    return Trail(runs, moves, others, events[-1].seq if events else 0, runs[-1].node if is_open else None)
