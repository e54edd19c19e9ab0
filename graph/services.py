"""The services of one run of a node: questions, tools, trials and incidents, each use emitted as an event."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import asdict, dataclass, field, replace
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from graph.answers import OUR_FAULTS, A, KeptCall, Question, ReasonerError, Tools, UnexpectedError
from graph.context import Context
from graph.events import (
    EventLog,
    IncidentReported,
    Reasoned,
    ReplyStreamed,
    ToolCalled,
    TrialWaiting,
    brief,
    duration,
    plain,
)
from graph.report import Incident, TrialPrediction
from graph.rules import Rules
from graph.state import GivenAnswer, KeptReply, SessionSearch, State, Turn, added
from tools.errors import InputError
from tools.recommend.report import Diagnosis, ScoredPlan, Verification
from tools.trials.order import TrialOrder, TrialProgress, TrialResult

PIECE_CHARACTERS = 400
MAX_REASONS = 3
P = ParamSpec("P")
R = TypeVar("R")
Kept = Any
"""A whole reply, or the outcome of one of its requests."""


@dataclass
class NodeServices:
    """One per run of a node; `done` returns what was spent and what went wrong."""

    context: Context
    log: EventLog
    spent: Mapping[str, float]
    """Tokens and money that earlier nodes of the session used."""
    given: Mapping[str, GivenAnswer] = field(default_factory=dict)
    """Answers of the person who forked the session."""
    usage: dict[str, float] = field(default_factory=dict)
    incidents: list[Incident] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Which claims of a model do not hold, and why."""
    last_author: str = Rules.name
    """Who gave the last answer."""
    keep: Callable[[Callable[[], Kept]], Kept] = lambda made: made()
    """Keeps what a function returns: a node that runs again, after a crash, is given it without a call."""
    _questions: int = field(default=0, init=False)

    @property
    def has_model(self) -> bool:
        return not isinstance(self.context.reasoner, Rules)

    def is_open(self, question: str) -> bool:
        """Whether somebody other than the rules may answer it: a model, or the person who forked."""
        return self.has_model or question in self.given

    def run(self, tool: Callable[Concatenate[Context, P], R], *args: P.args, **arguments: P.kwargs) -> R:
        """Runs a tool that works with the context."""
        return self.compute(wraps(tool)(partial(tool, self.context)), *args, **arguments)

    def compute(self, function: Callable[P, R], *args: P.args, **arguments: P.kwargs) -> R:
        """Calls a function and emits its name, arguments, result and duration."""
        start = time.perf_counter()
        result = function(*args, **arguments)
        seconds = time.perf_counter() - start
        self.log.emit(
            ToolCalled(
                tool=function.__name__,
                arguments=brief(plain(arguments)),
                result=brief(plain(result)),
                outcome=outcome_of(result),
                seconds=seconds,
            )
        )
        self._spend(tool_calls=1, tool_s=seconds)
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
                    told = f"{unexpected}; the model is told"
                    self.report_incident(unexpected.kind, told, error=unexpected, tool=tool.__name__)
                    raise unexpected from error

            return lookup

        return {name: emitted(tool) for name, tool in tools.items()}

    def ask(self, question: Question[A]) -> A:
        """The reasoner's answer, or the rules' if it has none; one that was kept is not asked for again."""
        if question.name in self.given:
            return self._take_given(question)
        self._questions += 1
        was_asked = False

        def ask_now() -> KeptReply:
            nonlocal was_asked
            was_asked = True
            return self._ask_now(question)

        kept = self.keep(ask_now) if self.has_model else ask_now()
        if not was_asked:
            self._spend(**kept.usage)
            self.incidents += kept.incidents
            self.log.count = kept.events
        if kept.by == Rules.name:  # they say the same again
            self.last_author = kept.by
            return Rules().ask(question).answer
        return self._accept(question, question.answer.model_validate(kept.answer), kept.by)

    def _take_given(self, question: Question[A]) -> A:
        """A person's answer, once: asked again, the question is the reasoner's."""
        given = self.given[question.name]
        self.given = {name: other for name, other in self.given.items() if name != question.name}
        self.log.emit(Reasoned(question=question.name, by=given.by, answer=brief(given.answer)))
        return self._accept(question, question.answer.model_validate(given.answer), given.by)

    def _accept(self, question: Question[A], answer: A, by: str) -> A:
        self.last_author = by
        stated = answer.model_dump(mode="json", exclude_none=True)
        self.turns.append(Turn(agent=self.log.node, question=question.name, answer=stated))
        return answer

    def _ask_now(self, question: Question[A]) -> KeptReply:
        """The reasoner's reply, or the rules' if the budget is spent or it cannot answer; with its cost."""
        start, before, incidents = time.perf_counter(), dict(self.usage), len(self.incidents)
        stream, limits = _StreamedReply(f"{self._questions}", question.name, self.log), self.context.limits
        try:
            for name, most in (("tokens", limits.tokens), ("cost", limits.cost)):
                if self.has_model and self.spent.get(name, 0) + self.usage.get(name, 0) >= most:
                    raise ReasonerError("budget", f"the session's budget of {most:g} {name} is spent")
            # A model's agent runs in a context of its own: its requests are tasks of this node all the same.
            here = copy_context()

            def keep(call: Callable[[], KeptCall]) -> KeptCall:
                return cast("KeptCall", here.run(self.keep, call))

            reply = self.context.reasoner.ask(replace(question, listen=stream.feed, keep=keep))
            self._spend(answered=1)
        except ReasonerError as error:
            self._spend(tokens=error.tokens, cost=error.cost, fell_back=1)
            self.report_incident(error.kind, str(error), error=error, question=question.name, fell_back=True)
            reply = Rules().ask(question)
        stream.flush()
        self._spend(tokens=reply.tokens, cost=reply.cost)
        spent = {name: amount - before.get(name, 0) for name, amount in self.usage.items()}
        self.log.emit(
            Reasoned(
                question=question.name,
                by=reply.by,
                answer=brief(reply.answer.model_dump(mode="json", exclude_none=True)),
                prompt=reply.prompt,
                tokens=spent["tokens"],
                seconds=time.perf_counter() - start,
            )
        )
        return KeptReply(
            answer={} if reply.by == Rules.name else reply.answer.model_dump(mode="json"),
            by=reply.by,
            usage=spent,
            incidents=self.incidents[incidents:],
            events=self.log.count,
        )

    def refuse(self, question: str, reasons: Sequence[str]) -> None:
        """Notes which claims of a model do not hold and are left out."""
        self.refused += [f"{question}.{reason}" for reason in reasons]
        if reasons:
            self.report_incident("claim refused", "; ".join(reasons[:MAX_REASONS]), question=question)

    def measure(self, order: TrialOrder) -> TrialResult:
        """Runs a trial and emits its progress."""
        if self.context.trials is None:
            raise InputError(
                "mode", "tune", "this installation has no launch templates for trials; use advise"
            )
        start = time.perf_counter()
        result = self.context.trials.run(order, _TrialListener(self.context, self.log))
        self._spend(trials=1, trial_s=time.perf_counter() - start)
        return result

    def report_incident(
        self,
        kind: str,
        message: str,
        *,
        error: ReasonerError | None = None,
        question: str | None = None,
        tool: str | None = None,
        fell_back: bool = False,
    ) -> None:
        incident = Incident(
            node=self.log.node,
            kind=kind,
            message=message,
            questions=[question] if question else [],
            tool=tool,
            fell_back=fell_back,
            error=error.error if error else None,
            place=error.place if error else None,
        )
        self.incidents.append(incident)
        self.log.emit(IncidentReported.of(incident))

    def done(self, **update: object) -> State:
        """The node's update of the state, with what it spent and the given answers that are left."""
        grown = {"incidents": self.incidents, "usage": self.usage, "turns": self.turns, "given": self.given}
        return cast("State", {**update, **grown})

    def _spend(self, **amounts: float) -> None:
        self.usage = added(self.usage, amounts)


def outcome_of(result: object) -> str:
    """What a tool returned, in a few words; empty if there is nothing short to say."""
    match result:
        case SessionSearch():
            return f"{result.searched.plans:,} legal plans searched"
        case ScoredPlan() | TrialPrediction():
            pace = "" if result.step_time_s is None else f": {duration(result.step_time_s)}"
            return f"{result.summary}{pace}"
        case Verification():
            return f"{result.checked} numbers, {len(result.faults)} differ"
        case list():
            return f"{len(result)} found" if result else "nothing found"
    diagnosis = result if isinstance(result, Diagnosis) else getattr(result, "diagnosis", None)
    return f"limited by {diagnosis.bottleneck}" if diagnosis else ""


@dataclass(frozen=True)
class _TrialListener:
    """Emits the progress of a trial by name, not by counter: a rerun may see more or fewer phases."""

    context: Context
    log: EventLog

    def emit(self, progress: TrialProgress) -> None:
        # A listener would end a cancelled session at once; the job must be ended first.
        if not self.must_cancel():
            self.log.emit(TrialWaiting.model_validate(asdict(progress)), f"{progress.phase} {progress.job}")

    def must_cancel(self) -> bool:
        return self.context.must_cancel()


@dataclass
class _StreamedReply:
    """Emits a model's reply in pieces as it streams, by name: a rerun may stream others."""

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
            self.log.emit(ReplyStreamed(question=self.question, text=self._buffer), name)
            self._buffer = ""
