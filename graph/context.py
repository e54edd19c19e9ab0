"""What the nodes work with: the context that the service builds (reasoner, knowledge base, trials, limits),
the events they emit, each with a key that survives a rerun, and the services of one run of a node, every
use of which is emitted as an event.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from graph.answers import (
    OUR_FAULTS,
    Answer,
    Question,
    Reasoner,
    ReasonerError,
    Reply,
    Tools,
    UnexpectedError,
)
from graph.report import Incident
from graph.rules import Rules
from graph.state import Analysis, KeptReply, State, Turn, plain
from tools.calibrate.runs import Run
from tools.cost.calibration import Calibration
from tools.errors import InputError
from tools.kb import KnowledgeBase, open_seed
from tools.kb.recipes import Recipe
from tools.recommend.words import fill, objections
from tools.recommend.workload import Workload
from tools.scenario import Scenario
from tools.search.ranked import Ranked
from tools.trials.order import TrialObserver, TrialOrder, TrialResult

BUDGETS = ("session_s", "tokens", "cost", "device_hours", "trials")
"""What a request may have less of than the installation allows."""


@dataclass(frozen=True)
class Limits:
    """What one session may spend."""

    session_s: float = 900.0
    steps: int = 60
    tokens: int = 200_000
    cost: float = 5.0
    rounds: int = 2
    """How often the proposal agent may be sent back to work."""
    device_hours: float = 8.0
    """What all trials of a session may take of the cluster: ranks times hours."""
    trials: int = 8
    """Plans that a session may measure, the baseline among them."""

    def within(self, budget: Mapping[str, Any] | None) -> "Limits":
        """These, or what of the budget is smaller."""
        wanted = {
            name: value for name, value in (budget or {}).items() if name in BUDGETS and value is not None
        }
        return replace(self, **{name: min(value, getattr(self, name)) for name, value in wanted.items()})


class TrialRunner(Protocol):
    """Measures plans on the user's cluster; the same key never launches twice."""

    def check(self, scenario: Scenario, template: str | None = None) -> None:
        """Raises InputError for a scenario that cannot be measured here."""
        ...

    def run(self, order: TrialOrder, observer: TrialObserver) -> TrialResult: ...


@dataclass(frozen=True)
class Context:
    """Every part has a default: LangGraph's own tools make one without arguments."""

    knowledge: KnowledgeBase = field(default_factory=open_seed)
    reasoner: Reasoner = field(default_factory=Rules)
    saves_cases: bool = False
    """Whether outcomes are kept in the knowledge base."""
    calibration: Calibration | None = None
    """The installation's; None is the one that comes with the package."""
    runs: tuple[Run, ...] = ()
    """The cluster's own, that `calibration` was learned from; trials of a session join them."""
    session_calibration: Calibration | None = None
    """What a session's own trials made of it."""
    recipes: Sequence[Recipe] | None = None
    """Published plans; None are those that come with the package."""
    trials: TrialRunner | None = None
    must_cancel: Callable[[], bool] = lambda: False
    """Called while a trial runs: True ends its job; raises if another worker has the session now."""
    limits: Limits = Limits()
    clock: Callable[[], float] = time.time
    progress: Callable[[float], None] | None = None
    """Receives the progress of the search, if somebody watches."""
    keep_plans: Callable[[Ranked], None] | None = None
    """Receives every plan that the session's search timed, if they are kept."""
    workloads: list[Workload] | None = None
    """Of one session, so that what a node has predicted is not predicted again."""

    def check(self) -> None:
        """For work without progress to report: raises if the session must stop."""
        if self.progress is not None:
            self.progress(0.0)


Event = dict[str, Any]
MAX_CHARACTERS = 4000
MAX_ITEMS = 5


@dataclass
class EventLog:
    """Writes the events of one run of one node."""

    node: str
    step: int
    write: Callable[[Event], None]
    clock: Callable[[], float] = time.time
    count: int = field(default=0, init=False)
    """The number of the last event: a rerun gives an event the number that it had before."""

    def emit(self, kind: str, **content: object) -> None:
        self.count += 1
        self._write(str(self.count), kind, content)

    def emit_named(self, name: str, kind: str, **content: object) -> None:
        """For what a rerun of the node may not repeat: the name takes the place of the counter."""
        self._write(name, kind, content)

    def _write(self, name: str, kind: str, content: dict[str, object]) -> None:
        key = f"{self.step}/{self.node}/{name}"
        self.write({**content, "key": key, "at": self.clock(), "node": self.node, "kind": kind})


def brief(value: object) -> object:
    """The value itself, or a shortened one if it would make an event long."""
    return value if _length(value) <= MAX_CHARACTERS else _shortened(value, depth=4)


def _length(value: object) -> int:
    return len(json.dumps(value, default=str))


def _shortened(value: object, depth: int) -> object:
    if isinstance(value, dict):
        if depth == 0:
            return f"{len(value)} fields"
        return {str(name): _shortened(part, depth - 1) for name, part in value.items()}
    if isinstance(value, list | tuple):
        if depth == 0:
            return f"{len(value)} items"
        shown = [_shortened(part, depth - 1) for part in value[:MAX_ITEMS]]
        return [*shown, f"and {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else shown
    if isinstance(value, str) and len(value) > MAX_CHARACTERS // 4:
        return value[: MAX_CHARACTERS // 4] + "…"
    return value


PIECE_CHARACTERS = 400
INSTEAD = "; the expert rules answered instead"


def describe_situation(analysis: Analysis) -> str:
    """The diagnosis as a text to search the knowledge base with: what limits, on what, under which plan."""
    facts, diagnosis = analysis.facts, analysis.diagnosis
    fields = ("tp", "pp", "cp", "ep", "zero_stage", "recompute")
    plan = ", ".join(f"{name} {facts[name]}" for name in fields if name in facts)
    evidence = ". ".join(item.says for item in diagnosis.evidence)
    return (
        f"Bottleneck {diagnosis.bottleneck}. {evidence}. {facts['architecture']} model of "
        f"{facts['parameters_b']:.0f}B parameters on {facts['num_devices']} {facts['device']}, "
        f"{facts['framework']}, sequence {facts['seq_len']}, {plan}, micro-batch {facts['micro_batch_size']}"
    )


def facets_of(analysis: Analysis) -> dict[str, str | int]:
    facts = analysis.facts
    return {
        "device": str(facts["device"]),
        "vendor": str(facts["vendor"]),
        "architecture": str(facts["architecture"]),
        "bottleneck": analysis.diagnosis.bottleneck,
        "num_devices": int(facts["num_devices"] or 0),
    }


A = TypeVar("A", bound=Answer)
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class _TrialProgress:
    """Progress of a trial. Keys are names, not counters: a rerun may report a different number of phases."""

    context: Context
    log: EventLog

    def emit(self, phase: str, **content: object) -> None:
        # A listener would end a cancelled session at once; the job must be ended first.
        if not self.must_cancel():
            self.log.emit_named(phase, "waiting", phase=phase, **content)

    def must_cancel(self) -> bool:
        return self.context.must_cancel()


@dataclass
class _StreamedReply:
    """A model's reply as it streams, in pieces. Keys are names, not counters: a rerun may stream others."""

    name: str
    question: str
    log: EventLog
    _buffer: str = ""
    _pieces: int = 0

    def feed(self, text: str) -> None:
        self._buffer += text
        if len(self._buffer) >= PIECE_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        if self._buffer:
            self._pieces += 1
            name = f"words {self.name}.{self._pieces}"
            self.log.emit_named(name, "words", question=self.question, text=self._buffer)
            self._buffer = ""


@dataclass
class NodeServices:
    """One per run of a node; `done` returns what was spent and what went wrong."""

    context: Context
    log: EventLog
    spent: dict[str, float]
    """Tokens and money that earlier nodes of the session used."""
    usage: Counter[str] = field(default_factory=Counter)
    incidents: list[Incident] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Texts that were not accepted, with the reason."""
    last_author: str = Rules.name
    """Who gave the last answer."""
    keep: Callable[[Callable[[], KeptReply]], KeptReply] = lambda reply: reply()
    """Keeps what a function returns: a node that runs again, after a crash, is given it without a call."""
    _questions: int = field(default=0, init=False)

    def run(self, tool: Callable[Concatenate[Context, P], R], *args: P.args, **arguments: P.kwargs) -> R:
        """Runs a tool that works with the context."""
        return self.compute(wraps(tool)(partial(tool, self.context)), *args, **arguments)

    def compute(self, function: Callable[P, R], *args: P.args, **arguments: P.kwargs) -> R:
        """Calls a function and emits its name, arguments, result and duration."""
        start = time.perf_counter()
        result = function(*args, **arguments)
        seconds = time.perf_counter() - start
        self.log.emit(
            "tool",
            tool=function.__name__,
            arguments=brief(plain(arguments)),
            result=brief(plain(result)),
            seconds=seconds,
        )
        self.usage.update(tool_calls=1, tool_s=seconds)  # type: ignore[call-overload]
        return result

    def ask(self, question: Question[A]) -> A:
        """The reasoner's answer, or the rules' if it has none; one that was kept is not asked for again."""
        self._questions += 1
        was_asked = False

        def ask_now() -> KeptReply:
            nonlocal was_asked
            was_asked = True
            return self._ask_now(question)

        kept = self.keep(ask_now) if self.has_model else ask_now()
        if not was_asked:
            self.usage.update(kept.usage)
            self.incidents += kept.incidents
            self.log.count = kept.events
        self.last_author = kept.by
        if kept.by == Rules.name:  # they say the same again
            return Rules().ask(question).answer
        answer = question.answer.model_validate(kept.answer)
        stated = answer.model_dump(mode="json", exclude_none=True)
        self.turns.append(Turn(agent=self.log.node, question=question.name, answer=stated))
        return answer

    def _ask_now(self, question: Question[A]) -> KeptReply:
        """The reply, with what it cost and what went wrong."""
        start, usage, incidents = time.perf_counter(), Counter(self.usage), len(self.incidents)
        stream = _StreamedReply(f"{self._questions}", question.name, self.log)
        reply = self._reply(replace(question, listen=stream.feed))
        stream.flush()
        self.usage.update(tokens=reply.tokens, cost=reply.cost)  # type: ignore[call-overload]
        spent = {name: self.usage[name] - usage[name] for name in self.usage}
        self.log.emit(
            "reasoned",
            question=question.name,
            by=reply.by,
            answer=brief(reply.answer.model_dump(exclude_none=True)),
            prompt=reply.prompt,
            tokens=spent["tokens"],
            seconds=time.perf_counter() - start,
        )
        return KeptReply(
            answer={} if reply.by == Rules.name else reply.answer.model_dump(mode="json"),
            by=reply.by,
            usage=spent,
            incidents=self.incidents[incidents:],
            events=self.log.count,
        )

    def measure(self, order: TrialOrder) -> TrialResult:
        """Runs a trial and emits its progress."""
        if self.context.trials is None:
            raise InputError(
                "mode", "tune", "this installation has no launch templates for trials; use advise"
            )
        start = time.perf_counter()
        result = self.context.trials.run(order, _TrialProgress(self.context, self.log))
        self.usage.update(trials=1, trial_s=time.perf_counter() - start)  # type: ignore[call-overload]
        return result

    def lookups(self, tools: Tools) -> Tools:
        """What a language model may call while it thinks; each call is emitted like any other."""

        def emitted(tool: Callable[..., object]) -> Callable[..., object]:
            @wraps(tool)
            def lookup(**arguments: object) -> object:
                try:
                    return plain(self.compute(tool, **arguments))
                except OUR_FAULTS as error:
                    unexpected = UnexpectedError(error, tool.__name__)
                    says = f"{tool.__name__}: {unexpected}; the model is told"
                    self.report_incident(unexpected.kind, says, unexpected.error, unexpected.place)
                    raise unexpected from error

            return lookup

        return {name: emitted(tool) for name, tool in tools.items()}

    def accept_text(self, text: str, slots: Mapping[str, str], where: str) -> str | None:
        """A model's words, figures written by code; None, and an incident, if they state too much."""
        refused = objections(text, slots)
        if not refused:
            return fill(text, slots)
        self.refused.append(f"{where}: {refused[0]}")
        self.report_incident("text refused", f"{where}: {'; '.join(refused[:3])}")
        return None

    def report_incident(
        self, kind: str, says: str, error: str | None = None, place: str | None = None
    ) -> None:
        self.incidents.append(Incident(node=self.log.node, kind=kind, says=says, error=error, place=place))
        self.log.emit("incident", says=says, incident=kind, error=error, place=place)

    def done(self, **update: object) -> State:
        """The node's update of the state, with what it spent."""
        grown = {"incidents": self.incidents, "usage": dict(self.usage), "turns": self.turns}
        return cast("State", {**update, **grown})

    @property
    def has_model(self) -> bool:
        return not isinstance(self.context.reasoner, Rules)

    def _reply(self, question: Question[A]) -> Reply[A]:
        try:
            self._check_budget()
            reply = self.context.reasoner.ask(question)
        except ReasonerError as error:
            self.usage.update(tokens=error.tokens, cost=error.cost, fell_back=1)  # type: ignore[call-overload]
            says = f"{question.name}: {error}{INSTEAD}"
            self.report_incident(error.kind, says, error.error, error.place)
            return Rules().ask(question)
        self.usage.update(answered=1)
        return reply

    def _check_budget(self) -> None:
        if not self.has_model:
            return
        for name, most in (("tokens", self.context.limits.tokens), ("cost", self.context.limits.cost)):
            if self.spent.get(name, 0) + self.usage[name] >= most:
                raise ReasonerError("budget", f"the session's budget of {most:g} {name} is spent")
