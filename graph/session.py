"""One session: started, resumed after a crash, continued after a decision, forked from another one's step."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from graph.build import ON_EVENT, build, build_check
from graph.context import Context
from graph.events import SessionEvent
from graph.report import Incident, Report
from graph.request import Decision, Request
from graph.state import ForkPoint, State, first_state, state_serializer
from tools.errors import DataError
from tools.recommend.notes import apply_statements

INTERRUPT = "__interrupt__"
STEPS_PER_TRIAL = 12
"""Trial, learn, analyzer, proposal, verify and approve, each with the coordinator's turn."""
Graph = CompiledStateGraph[State, Context, State, State]
OnEvent = Callable[[SessionEvent], None]


@dataclass(frozen=True)
class SessionOutcome:
    """Where a run ended: with a report, or waiting for a person."""

    report: Report | None
    waiting_for: dict[str, Any] | None = None
    """The question as JSON: it is stored and shown as it is."""


@cache
def _compiled() -> Graph:
    return build().compile()


class Session:
    """At most one per id at a time: the caller ensures that."""

    def __init__(
        self, id: str, context: Context, checkpointer: BaseCheckpointSaver[str] | None = None
    ) -> None:
        self.id, self.context = id, replace(context, workloads=[])
        self._graph = _compiled().copy({"checkpointer": checkpointer})
        self._config: RunnableConfig = {
            "configurable": {"thread_id": id},
            "recursion_limit": context.limits.steps + STEPS_PER_TRIAL * context.limits.trials,
        }

    def run(
        self,
        request: Request,
        on_event: OnEvent | None = None,
        decision: Decision | None = None,
        fork: ForkPoint | None = None,
    ) -> SessionOutcome:
        """Begins, or goes on from the last checkpoint; a decision delivered twice changes nothing."""
        known, waiting, is_going = State(), None, False
        if self._graph.checkpointer is not None:
            snapshot = self._graph.get_state(self._config)
            if fork and fork.step > 1 and not snapshot.values:
                self._copy(fork, request)
                snapshot = self._graph.get_state(self._config)
            known = cast("State", dict(snapshot.values))
            waiting = snapshot.interrupts[0].value if snapshot.interrupts else None
            # A node may have ended without its checkpoint: then there is a task, though nothing is `next`.
            is_going = bool(snapshot.tasks)
        ids = [earlier.id for earlier in known.get("decisions", []) if earlier.id is not None]
        start: State | Command[str] | None
        if not known:
            start = first_state(request, self.id, self.context.clock())
            start["given"] = {**fork.answers} if fork else {}
        elif decision and decision.id not in ids:
            start = Command(resume=decision.model_dump()) if waiting else State(decisions=[decision])
        elif is_going and not waiting:
            start = None
        else:
            return SessionOutcome(known.get("report"), waiting)
        last = _run(self._graph, start, self._config, self.context, on_event)
        if INTERRUPT in last:
            return SessionOutcome(None, cast("Any", last)[INTERRUPT][0].value)
        return SessionOutcome(last.get("report"))

    def _copy(self, fork: ForkPoint, request: Request) -> None:
        """The first checkpoint of this thread: the other one's as the coordinator was to choose that step.

        The constraints are those of the request with what the notes state: they are read from the search on.
        """
        saver = cast("BaseCheckpointSaver[Any]", self._graph.checkpointer)
        turn = self._graph.get_state({"configurable": {"thread_id": fork.thread}})
        while not (turn.next == ("coordinator",) and turn.metadata and turn.metadata["step"] < fork.step):
            if turn.parent_config is None:
                gone = f"the checkpoints of {fork.thread} before step {fork.step} are gone"
                raise DataError(f"{gone}; fork it from its first step")
            turn = self._graph.get_state(turn.parent_config)
        saved = saver.get_tuple(turn.config)
        assert saved is not None
        known = cast("State", turn.values)
        if "scenario" not in known:  # the coordinator's first turn begins with the request
            return
        session = first_state(request, self.id, self.context.clock())["session"]
        told = apply_statements(known["notes"].accepted, request.scenario).scenario.constraints
        changed = State(
            session=session.model_copy(
                update={name: getattr(known["session"], name) for name in ("plan", "plan_is_default")}
            ),
            request=request.scenario,
            scenario=known["scenario"].model_copy(update={"constraints": told}),
            usage={},
            given={**fork.answers},
        )
        checkpoint = saved.checkpoint
        versions = {name: saver.get_next_version(None, None) for name in changed}  # of those it did not have
        checkpoint["channel_versions"] = {**versions, **checkpoint["channel_versions"]}
        checkpoint["channel_values"] = {**checkpoint["channel_values"], **changed}
        here: RunnableConfig = {"configurable": {"thread_id": self.id, "checkpoint_ns": ""}}
        metadata = {**saved.metadata, "source": "fork"}
        saver.put(here, checkpoint, cast("Any", metadata), checkpoint["channel_versions"])


def check_model(context: Context) -> list[Incident]:
    """What goes wrong when the model is asked one question; run, kept and answered as a session's are."""
    graph = build_check().compile(checkpointer=InMemorySaver(serde=state_serializer()))
    config: RunnableConfig = {"configurable": {"thread_id": "check"}}
    return _run(graph, State(usage={}), config, context, None)["incidents"]


def _run(
    graph: Graph,
    start: State | Command[str] | None,
    config: RunnableConfig,
    context: Context,
    on_event: OnEvent | None,
) -> State:
    """The last state. With a checkpointer, what a node did is kept before the next one begins."""
    last: Any = State()
    listened = {**config["configurable"], ON_EVENT: on_event or (lambda _event: None)}
    for content in graph.stream(
        start,
        {**config, "configurable": listened},
        context=context,
        stream_mode="values",
        durability="sync" if graph.checkpointer else None,
    ):
        last = content
    return cast("State", last)
