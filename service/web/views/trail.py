"""The events of a session as its trail: one run of a node after the other, with what it called and asked."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.report.text import seconds
from service.store.rows import Data, EventRow
from service.web.views.outcomes import outcome
from service.web.views.units import words

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
    """Arguments, results, prompts: worth a look of their own."""


@dataclass
class Run:
    """One run of a node, or one move of the session."""

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
    def is_move(self) -> bool:
        return self.state is not None


@dataclass(frozen=True)
class Trail:
    runs: Sequence[Run]
    last_seq: int
    start_s: float
    end_s: float

    @property
    def current(self) -> str | None:
        """The node at work; none where the session has ended, waits or is queued."""
        last = self.runs[-1] if self.runs else None
        return last.node if last and not last.is_move and last.took_s is None else None

    @property
    def nodes(self) -> list[Run]:
        """Without the coordinator's runs and the session's moves."""
        return [run for run in self.runs if not run.is_move and run.node != COORDINATOR]

    @property
    def visits(self) -> Counter[str]:
        return Counter(run.node for run in self.runs if not run.is_move)

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
            runs.append(_move(event))
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


def _move(event: EventRow) -> Run:
    state = str(event.content.get("state", ""))
    told = event.content.get("error") or {}
    reason = str(told.get("message") or event.content.get("verdict") or "")
    return Run(SESSION, event.seq, event.at, reason, 0.0, state=state)


def _take(run: Run, event: EventRow) -> None:
    if event.kind == "finished":
        run.took_s = float(event.content.get("seconds", 0.0))
    elif event.kind != "started":
        run.steps.append(_step(event))


def _step(event: EventRow) -> Step:
    told = event.content
    title, says = _TITLES[event.kind](told) if event.kind in _TITLES else _other(event.kind, told)
    took = told.get("seconds")
    return Step(
        seq=event.seq,
        kind=event.kind,
        title=title,
        says=says,
        seconds="" if took is None else seconds(float(took)),
        tokens=int(told.get("tokens") or 0),
        has_more=event.kind in (TOOL, REASONED),
    )


def _tool(told: Data) -> tuple[str, str]:
    return words(str(told.get("tool", ""))), outcome(told.get("result"))


def _reasoned(told: Data) -> tuple[str, str]:
    return words(str(told.get("question", ""))), f"answered by {told.get('by', '')}"


def _routed(told: Data) -> tuple[str, str]:
    return f"next: {told.get('step', '')}", str(told.get("reason", ""))


def _decided(told: Data) -> tuple[str, str]:
    return f"{told.get('by') or 'somebody'} decided", f"{told.get('action')} proposal {told.get('proposal')}"


def _incident(told: Data) -> tuple[str, str]:
    return str(told.get("incident", "incident")), str(told.get("says", ""))


def _other(kind: str, told: Data) -> tuple[str, str]:
    return words(kind), ", ".join(f"{words(name)} {value}" for name, value in told.items())


def _trial(told: Data) -> tuple[str, str]:
    return f"{told.get('role') or 'trial'}: {told.get('summary', '')}", str(told.get("says", ""))


def _waiting(told: Data) -> tuple[str, str]:
    rest = ", ".join(f"{words(name)} {_listed(value)}" for name, value in told.items() if name != "phase")
    phase = str(told.get("phase", "waiting")).removesuffix(f" {told.get('job')}")
    return words(phase), rest


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
