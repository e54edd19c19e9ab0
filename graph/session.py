"""One session: started, resumed after a crash, continued after a decision."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command
from pydantic import JsonValue

from graph.build import ON_EVENT, build, build_check
from graph.context import Context, Event
from graph.report import Decision, Incident, Report
from graph.request import Request, parse_decision
from graph.state import State, state_serializer

INTERRUPT = "__interrupt__"
STEPS_PER_TRIAL = 12
"""Trial, learn, analyzer, proposal, verify and approve, each with the coordinator's turn."""


@dataclass(frozen=True)
class Outcome:
    """Where a run ended: with a report, or waiting for a person."""

    report: Report | None
    waiting_for: dict[str, Any] | None = None
    """The question as JSON: it is stored and shown as it is."""


@cache
def _compiled() -> CompiledStateGraph[State, Context, State, State]:
    return build().compile()


class Session:
    """At most one per id at a time: the caller ensures that."""

    def __init__(
        self, id: str, context: Context, checkpointer: BaseCheckpointSaver[Any] | None = None
    ) -> None:
        self.id, self.context = id, replace(context, workloads=[])
        self._graph = _compiled().copy({"checkpointer": checkpointer})
        self._keeps = checkpointer is not None
        self._config: RunnableConfig = {
            "configurable": {"thread_id": id},
            "recursion_limit": context.limits.steps + STEPS_PER_TRIAL * context.limits.trials,
        }

    def run(
        self,
        request: Request,
        on_event: Callable[[Event], None] | None = None,
        decision: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Begins, or goes on from the last checkpoint; a decision delivered twice changes nothing."""
        parsed = parse_decision(decision) if decision else None
        known, waiting, going = self._where()
        start: State | Command[Any] | None
        if not known:
            start = request.first_state(self.id, self.context.clock())
        elif parsed and not _is_known(known, parsed):
            start = Command(resume=parsed.model_dump()) if waiting else State(decisions=[parsed])
        elif going and not waiting:
            start = None
        else:
            return Outcome(known.get("report"), waiting)
        return self._stream(start, on_event)

    def _where(self) -> tuple[State, dict[str, JsonValue] | None, bool]:
        """What is known, what a person is asked, and whether a node is still to run."""
        if not self._keeps:
            return State(), None, False
        snapshot = self._graph.get_state(self._config)
        asked = snapshot.interrupts[0].value if snapshot.interrupts else None
        # A node may have ended without its checkpoint: then there is a task, though nothing is `next`.
        return cast("State", dict(snapshot.values)), asked, bool(snapshot.tasks)

    def _stream(self, start: Any, on_event: Callable[[Event], None] | None) -> Outcome:  # noqa: ANN401 - see run
        last = _run(self._graph, start, self._config, self.context, on_event)
        asked = last.get(INTERRUPT)
        return Outcome(None if asked else last.get("report"), asked[0].value if asked else None)


def check_model(context: Context) -> list[Incident]:
    """What goes wrong when the model is asked one question; run, kept and answered as a session's are."""
    graph = build_check().compile(checkpointer=InMemorySaver(serde=state_serializer()))
    config: RunnableConfig = {"configurable": {"thread_id": "check"}}
    last = _run(graph, State(usage={}), config, context, None)
    return list(last["incidents"])


def _run(
    graph: CompiledStateGraph[State, Context, State, State],
    start: State | Command[Any] | None,
    config: RunnableConfig,
    context: Context,
    on_event: Callable[[Event], None] | None,
) -> dict[str, Any]:
    """The last state. With a checkpointer, what a node did is kept before the next one begins."""
    last: dict[str, Any] = {}
    durability: Any = "sync" if graph.checkpointer else None
    watched: RunnableConfig = {
        **config,
        "configurable": {**config["configurable"], ON_EVENT: on_event or _ignore},
    }
    for content in graph.stream(start, watched, context=context, stream_mode="values", durability=durability):
        last = content
    return last


def _ignore(_event: Event) -> None:
    """For a run that nobody watches."""


def _is_known(known: State, decision: Decision) -> bool:
    """A decision is identified by its id, so that it may be delivered twice."""
    ids = [earlier.id for earlier in known.get("decisions", [])]
    return decision.id is not None and decision.id in ids
