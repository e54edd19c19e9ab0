"""What a node works with: tools, reasoner and event log, with every use of them emitted as an event."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

from graph.answers import Answer, Question, ReasonerError, Reply, Tools
from graph.context import Context, EventLog, brief
from graph.report import Incident
from graph.rules import Rules
from graph.state import Analysis, State, Turn, plain
from graph.toolbox import Toolbox
from tools.errors import InputError
from tools.recommend.words import fill, objections
from tools.trials.order import TrialOrder, TrialResult

PIECE_CHARACTERS = 400
INSTEAD = "; the expert rules answered instead"


def describe_situation(analysis: Analysis) -> str:
    """The words of a diagnosis report: what limits, on what, under which plan."""
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
class _Words:
    """What a model says while it says it: in pieces, named and not counted, for a rerun may hear others."""

    name: str
    question: str
    log: EventLog
    _heard: str = ""
    _pieces: int = 0

    def hear(self, text: str) -> None:
        self._heard += text
        if len(self._heard) >= PIECE_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        if self._heard:
            self._pieces += 1
            name = f"words {self.name}.{self._pieces}"
            self.log.emit_named(name, "words", question=self.question, text=self._heard)
            self._heard = ""


@dataclass
class NodeServices:
    """One for each run of a node; what was spent and what went wrong is handed in by `done`."""

    context: Context
    log: EventLog
    spent: dict[str, float]
    """Tokens and money that earlier nodes of the session used."""
    usage: Counter[str] = field(default_factory=Counter)
    incidents: list[Incident] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Texts that were not taken, with the reason."""
    last_author: str = Rules.name
    """Who gave the last answer."""
    _questions: int = field(default=0, init=False)

    def run(self, tool: Callable[Concatenate[Context, P], R], *args: P.args, **arguments: P.kwargs) -> R:
        """Runs a tool that works with the context."""
        return self.compute(wraps(tool)(partial(tool, self.context)), *args, **arguments)

    def compute(self, function: Callable[P, R], *args: P.args, **arguments: P.kwargs) -> R:
        """Calls a function and emits its name, what it was given, what it returned and how long it took."""
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
        """The reasoner's answer, or the rules' where it has none."""
        start = time.perf_counter()
        self._questions += 1
        words = _Words(f"{self._questions}", question.name, self.log)
        reply = self._reply(replace(question, listen=words.hear))
        words.flush()
        self.usage.update(tokens=reply.tokens, cost=reply.cost)  # type: ignore[call-overload]
        self.log.emit(
            "reasoned",
            question=question.name,
            by=reply.by,
            answer=brief(reply.answer.model_dump(exclude_none=True)),
            prompt=reply.prompt,
            tokens=reply.tokens,
            seconds=time.perf_counter() - start,
        )
        self.last_author = reply.by
        if reply.by != Rules.name:
            answer = reply.answer.model_dump(mode="json", exclude_none=True)
            self.turns.append(Turn(agent=self.log.node, question=question.name, answer=answer))
        return reply.answer

    def measure(self, order: TrialOrder) -> TrialResult:
        """Runs a trial, and tells how it goes while somebody waits for it."""
        if self.context.trials is None:
            raise InputError(
                "mode", "tune", "this installation has no launch templates for trials; use advise"
            )
        start = time.perf_counter()
        result = self.context.trials.run(order, _TrialProgress(self.context, self.log))
        self.usage.update(trials=1, trial_s=time.perf_counter() - start)  # type: ignore[call-overload]
        return result

    def lookups(self, box: Toolbox, names: Sequence[str]) -> Tools:
        """What a language model may call while it thinks; each call is emitted like any other."""

        def told(tool: Callable[..., object]) -> Callable[..., object]:
            @wraps(tool)
            def lookup(**arguments: object) -> object:
                return plain(self.compute(tool, **arguments))

            return lookup

        return {name: told(tool) for name, tool in box.named(names).items()}

    def accept_text(self, text: str, slots: Mapping[str, str], where: str) -> str | None:
        """A model's words, figures written by code; None, and an incident, if they state too much."""
        refused = objections(text, slots)
        if not refused:
            return fill(text, slots)
        self.refused.append(f"{where}: {refused[0]}")
        self.report_incident("text refused", f"{where}: {'; '.join(refused[:3])}")
        return None

    def report_incident(self, kind: str, says: str) -> None:
        self.incidents.append(Incident(node=self.log.node, kind=kind, says=says))
        self.log.emit("incident", says=says, incident=kind)

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
            self.report_incident(error.kind, f"{question.name}: {error}{INSTEAD}")
            return Rules().ask(question)
        self.usage.update(answered=1)
        return reply

    def _check_budget(self) -> None:
        if not self.has_model:
            return
        for name, most in (("tokens", self.context.limits.tokens), ("cost", self.context.limits.cost)):
            if self.spent.get(name, 0) + self.usage[name] >= most:
                raise ReasonerError("budget", f"the session's budget of {most:g} {name} is spent")
