"""What a node works with: tools, reasoner and event log, with every use of them emitted as an event."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Concatenate, ParamSpec, TypeVar, cast

from graph import tools
from graph.answers import Answer, Question, ReasonerError, Reply, SuggestedPlan, Tools
from graph.context import Context
from graph.events import EventLog, brief
from graph.report import Incident
from graph.rules import Rules
from graph.state import Analysis, SessionSearch, State, plain
from graph.tuning import within_policy
from tools.errors import InputError
from tools.trials.order import TrialOrder, TrialResult

PIECE_CHARACTERS = 400


def describe_situation(analysis: Analysis) -> str:
    """The words of a diagnosis report: what limits, on what, under which plan."""
    facts, diagnosis = analysis.facts, analysis.diagnosis
    fields = ("tp", "pp", "cp", "ep", "zero_stage", "recompute")
    plan = ", ".join(f"{name} {facts[name]}" for name in fields if name in facts)
    evidence = ". ".join(one.says for one in diagnosis.evidence)
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

    def tell(self, phase: str, **content: object) -> None:
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
    _questions: int = field(default=0, init=False)

    def run(self, tool: Callable[Concatenate[Context, P], R], *args: P.args, **arguments: P.kwargs) -> R:
        """Runs a tool and emits its name, what it was given, what it returned and how long it took."""
        start = time.perf_counter()
        result = tool(self.context, *args, **arguments)
        seconds = time.perf_counter() - start
        self.log.emit(
            "tool",
            tool=tool.__name__,
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

    def lookups(self, state: State, search: SessionSearch) -> Tools:
        """What a language model may call while it thinks; each call is emitted like any other."""
        scenario, start, tenant = within_policy(state), state["analysis"].plan, state["session"].tenant

        def explain_plan(plan: SuggestedPlan) -> object:
            """Predict a plan and say what speaks against it: a rule, the memory, or the slower term."""
            fields = plan.model_dump(exclude_none=True)
            best = search.proposals[0]
            return self.run(tools.explain_plan, scenario=scenario, start=start, fields=fields, best=best)

        def find_knowledge(query: str) -> object:
            """Find playbooks and past cases by a description of the situation."""
            return plain(
                self.run(tools.find_knowledge, query=query[:2000], facets={}, tenant=tenant, limit=3)
            )

        return {"explain_plan": explain_plan, "find_knowledge": find_knowledge}

    def report_incident(self, kind: str, says: str) -> None:
        self.incidents.append(Incident(node=self.log.node, kind=kind, says=says))
        self.log.emit("incident", says=says, incident=kind)

    def done(self, **update: object) -> State:
        """The node's update of the state, with what it spent."""
        return cast("State", {**update, "incidents": self.incidents, "usage": dict(self.usage)})

    def _reply(self, question: Question[A]) -> Reply[A]:
        try:
            self._check_budget()
            reply = self.context.reasoner.ask(question)
        except ReasonerError as error:
            self.usage.update(tokens=error.tokens, cost=error.cost, fell_back=1)  # type: ignore[call-overload]
            self.report_incident(error.kind, f"{question.name}: {error}; the expert rules answered instead")
            return Rules().ask(question)
        self.usage.update(answered=1)
        return reply

    def _check_budget(self) -> None:
        if isinstance(self.context.reasoner, Rules):
            return
        for name, most in (("tokens", self.context.limits.tokens), ("cost", self.context.limits.cost)):
            if self.spent.get(name, 0) + self.usage[name] >= most:
                raise ReasonerError("budget", f"the session's budget of {most:g} {name} is spent")
