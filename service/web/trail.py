"""/sessions/{id}/trail: the events of a session as runs of graph nodes, drawn as a graph and a timeline."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from pydantic import JsonValue

from service.api.deps import AppDep, Id, Reader
from service.db.models import TERMINAL, EventRow
from service.db.sessions import MAX_EVENTS, events_after, get_session
from service.errors import NotFoundError
from service.render.text import counted, humanize, seconds
from service.render.view import find_view
from service.web.rendering import PageRoute, page
from service.web.session_view import SessionPage

Content = Mapping[str, JsonValue]
"""Of an event, as it was stored."""
_CUT = re.compile(r"and (\d{1,9}) more")


def outcome(result: object) -> str:
    """What a tool returned, in a few words; empty if there is nothing short to say."""
    if isinstance(result, list):
        return _count(result)
    if not isinstance(result, dict):
        return ""
    return next((text for describe in _OUTCOMES if (text := describe(result))), "")


def _count(items: list[object]) -> str:
    """A list that was shortened ends with `and 12 more`."""
    cut = _CUT.fullmatch(str(items[-1])) if items else None
    more = int(cut[1]) - 1 if cut else 0
    return f"{len(items) + more} found" if items else "nothing found"


def _score(result: Content) -> str:
    summary, step_s = result.get("summary"), result.get("step_time_s")
    if not summary:
        return ""
    return f"{summary}: {seconds(step_s)}" if isinstance(step_s, float) else str(summary)


def _search(result: Content) -> str:
    searched = result.get("searched")
    plans = searched.get("plans") if isinstance(searched, dict) else None
    return f"{plans:,} legal plans searched" if isinstance(plans, int) else ""


def _check(result: Content) -> str:
    checked, faults = result.get("checked"), result.get("faults")
    if not isinstance(checked, int) or not isinstance(faults, list):
        return ""
    return f"{checked} numbers, {len(faults)} differ"


def _limit(result: Content) -> str:
    inner = result.get("diagnosis")
    bottleneck = (inner if isinstance(inner, dict) else result).get("bottleneck")
    return f"limited by {bottleneck}" if bottleneck else ""


_OUTCOMES = (_score, _search, _check, _limit)


SESSION = "session"
COORDINATOR = "coordinator"
TOOL, REASONED, ROUTED = "tool", "reasoned", "routed"


@dataclass(frozen=True)
class Step:
    """One thing that a node did."""

    seq: int
    kind: str
    title: str
    says: str = ""
    seconds: str = ""
    tokens: int = 0
    has_more: bool = False
    """Arguments, results or prompts, shown on a page of their own."""


@dataclass
class Run:
    """One run of a node, or one change of the session's state."""

    node: str
    seq: int
    at_s: float
    reason: str = ""
    """Why the coordinator chose it."""
    took_s: float | None = None
    """None while it runs."""
    steps: list[Step] = field(default_factory=list)
    state: str | None = None

    @property
    def took(self) -> str:
        return "" if self.took_s is None else seconds(self.took_s)

    @property
    def is_state_change(self) -> bool:
        return self.state is not None


@dataclass(frozen=True)
class Trail:
    runs: Sequence[Run]
    last_seq: int
    start_s: float
    end_s: float

    @property
    def current(self) -> str | None:
        """The running node; None if the session has ended, waits or is queued."""
        last = self.runs[-1] if self.runs else None
        return last.node if last and not last.is_state_change and last.took_s is None else None

    @property
    def nodes(self) -> list[Run]:
        """Without the coordinator's runs and the changes of state."""
        return [run for run in self.runs if not run.is_state_change and run.node != COORDINATOR]

    @property
    def visits(self) -> Counter[str]:
        return Counter(run.node for run in self.runs if not run.is_state_change)

    @property
    def tokens(self) -> int:
        return sum(step.tokens for run in self.runs for step in run.steps)

    @property
    def tool_calls(self) -> int:
        return sum(step.kind == TOOL for run in self.runs for step in run.steps)


def trail_of(events: Sequence[EventRow]) -> Trail:
    runs: list[Run] = []
    open_runs: dict[str, Run] = {}
    reason = ""
    for event in events:
        if event.kind == "state":
            runs.append(_state_change(event))
            open_runs.clear()
            continue
        key = event.key.rpartition("/")[0]
        if key not in open_runs:
            open_runs[key] = Run(event.node, event.seq, event.at, reason if event.node != COORDINATOR else "")
            runs.append(open_runs[key])
        _take(open_runs[key], event)
        reason = str(event.content.get("reason", "")) if event.kind == ROUTED else reason
    times = [event.at for event in events] or [0.0]
    return Trail(runs, events[-1].seq if events else 0, times[0], times[-1])


def _state_change(event: EventRow) -> Run:
    state = str(event.content.get("state", ""))
    error = event.content.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    reason = str(message or event.content.get("verdict") or "")
    return Run(SESSION, event.seq, event.at, reason, 0.0, state=state)


def _take(run: Run, event: EventRow) -> None:
    if event.kind == "finished":
        run.took_s = _number(event.content.get("seconds"))
    elif event.kind != "started":
        run.steps.append(_step(event))


def _number(value: JsonValue) -> float:
    return value if isinstance(value, int | float) else 0.0


def _step(event: EventRow) -> Step:
    content = event.content
    title, says = _TITLES[event.kind](content) if event.kind in _TITLES else _other(event.kind, content)
    took = content.get("seconds")
    return Step(
        seq=event.seq,
        kind=event.kind,
        title=title,
        says=says,
        seconds="" if took is None else seconds(_number(took)),
        tokens=int(_number(content.get("tokens"))),
        has_more=event.kind in (TOOL, REASONED),
    )


def _tool(content: Content) -> tuple[str, str]:
    return humanize(str(content.get("tool", ""))), outcome(content.get("result"))


def _reasoned(content: Content) -> tuple[str, str]:
    return humanize(str(content.get("question", ""))), f"answered by {content.get('by', '')}"


def _routed(content: Content) -> tuple[str, str]:
    return f"next: {content.get('step', '')}", str(content.get("reason", ""))


def _decided(content: Content) -> tuple[str, str]:
    return (
        f"{content.get('by') or 'unknown'} decided",
        f"{content.get('action')} proposal {content.get('proposal')}",
    )


def _incident(content: Content) -> tuple[str, str]:
    return str(content.get("incident", "incident")), str(content.get("says", ""))


def _other(kind: str, content: Content) -> tuple[str, str]:
    return humanize(kind), ", ".join(f"{humanize(name)} {value}" for name, value in content.items())


def _trial(content: Content) -> tuple[str, str]:
    return f"{content.get('role') or 'trial'}: {content.get('summary', '')}", str(content.get("says", ""))


def _waiting(content: Content) -> tuple[str, str]:
    rest = ", ".join(
        f"{humanize(name)} {_listed(value)}" for name, value in content.items() if name != "phase"
    )
    phase = str(content.get("phase", "waiting")).removesuffix(f" {content.get('job')}")
    return humanize(phase), rest


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


_TITLES = {
    TOOL: _tool,
    REASONED: _reasoned,
    ROUTED: _routed,
    "decided": _decided,
    "incident": _incident,
    "trial": _trial,
    "waiting": _waiting,
}


WORKERS = ("analyzer", "proposal", "verify", "approve", "trial", "learn")
REPORT = "report"
BOX_WIDTH, BOX_HEIGHT = 118, 30
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
    REPORT: "writes the report",
}


@dataclass(frozen=True)
class Node:
    name: str
    x: int
    y: int
    visits: int
    is_current: bool

    @property
    def middle(self) -> tuple[int, int]:
        return self.x + BOX_WIDTH // 2, self.y + BOX_HEIGHT // 2

    @property
    def says(self) -> str:
        return f"{self.name}: {PURPOSES[self.name]}; ran {counted(self.visits, 'time')}" + (
            ", running now" if self.is_current else ""
        )


@dataclass(frozen=True)
class Stretch:
    """A run on the strip, in percent of its width."""

    run: Run
    x: float
    width: float
    row: int


def nodes_of(trail: Trail) -> list[Node]:
    """The coordinator in the middle, the workers above and below, the report beside it."""
    places = {COORDINATOR: (151, 85), REPORT: (292, 85)}
    for index, name in enumerate(WORKERS):
        places[name] = (10 + 141 * (index % 3), 15 + 140 * (index // 3))
    visits, current = trail.visits, trail.current
    return [Node(name, x, y, visits[name], name == current) for name, (x, y) in places.items()]


def strip_of(trail: Trail) -> tuple[list[str], list[Stretch]]:
    """The nodes that ran, in order, and when each did; waiting time is left out."""
    runs = [run for run in trail.runs if not run.is_state_change]
    lanes = list(dict.fromkeys(run.node for run in runs))
    lengths_s = [trail.end_s - run.at_s if run.took_s is None else run.took_s for run in runs]
    whole_s = sum(lengths_s)
    if whole_s <= 0:
        return lanes, []
    ends_s = list(accumulate(lengths_s))
    return lanes, [
        _stretch(run, 100 * (end_s - length_s) / whole_s, 100 * length_s / whole_s, lanes)
        for run, length_s, end_s in zip(runs, lengths_s, ends_s, strict=True)
    ]


def _stretch(run: Run, x: float, width: float, lanes: Sequence[str]) -> Stretch:
    wide = max(width, MIN_PERCENT)
    return Stretch(run, max(0.0, min(x, 100 - wide)), wide, lanes.index(run.node))


MAX_SEQ = 2**31 - 1

router = APIRouter(prefix="/sessions/{id}/trail", route_class=PageRoute)

Seq = Annotated[int, Path(ge=1, le=MAX_SEQ)]


@router.get("")
def show(id: Id, request: Request, app: AppDep, caller: Reader) -> Response:
    with app.database.read() as conn:
        row = get_session(conn, caller.tenant, id)
        events = events_after(conn, id, 0, MAX_EVENTS)
    trail = trail_of(events)
    lanes, strip = strip_of(trail)
    return page(
        request,
        "trail",
        caller,
        session=SessionPage(row, find_view(row)),
        tab="trail",
        trail=trail,
        nodes=nodes_of(trail),
        lanes=lanes,
        strip=strip,
        is_live=row.state not in TERMINAL,
        is_cut=len(events) == MAX_EVENTS,
    )


@router.get("/{seq}")
def show_event(id: Id, seq: Seq, request: Request, app: AppDep, caller: Reader) -> Response:
    """The arguments and the result of a step."""
    with app.database.read() as conn:
        row = get_session(conn, caller.tenant, id)
        events = events_after(conn, id, seq - 1, 1)
    if not events or events[0].seq != seq:
        raise NotFoundError("event", str(seq))
    return page(request, "event", caller, row=row, event=events[0])
