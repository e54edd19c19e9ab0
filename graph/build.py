"""The graph as a table of contents: nodes, edges and the coordinator's rules."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.func import task
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import RetryPolicy

from graph.answers import Confirmation, Question
from graph.context import Context, Event, EventLog, NodeServices
from graph.nodes.analyzer import analyzer
from graph.nodes.coordinator import coordinator
from graph.nodes.proposal import proposal
from graph.nodes.report import report, verify
from graph.nodes.trial import approve, learn, trial
from graph.request import parse_request
from graph.state import KeptReply, State
from tools.cost.calibration import Calibration

WORKERS: dict[str, Callable[[State, NodeServices], State]] = {
    "analyzer": analyzer,
    "proposal": proposal,
    "verify": verify,
    "approve": approve,
    "trial": trial,
    "learn": learn,
}
TRANSIENT = RetryPolicy(max_attempts=3, initial_interval=0.2, retry_on=OSError)
"""A full disk or a lost connection may pass; anything else would fail again."""
ON_EVENT = "on_event"
"""The key, in a run's configuration, of the function that receives its events."""


def build(studio: Context | None = None) -> StateGraph[State, Context, State, State]:
    """A run brings its context; `studio` is that of LangGraph's own tools, which bring a bare request."""
    graph = StateGraph(State, context_schema=Context)
    places = (*WORKERS, "report")
    graph.add_node("coordinator", _with_services("coordinator", coordinator, studio), destinations=places)
    if studio is not None:
        graph.add_node("open", _opener(studio))
        graph.add_edge("open", "coordinator")
    graph.add_edge(START, "open" if studio is not None else "coordinator")
    for name, work in WORKERS.items():
        graph.add_node(name, _with_services(name, work, studio), retry_policy=TRANSIENT)
        graph.add_edge(name, "coordinator")
    graph.add_node("report", _with_services("report", report, studio))
    graph.add_edge("report", END)
    return graph


def build_check() -> StateGraph[State, Context, State, State]:
    """One node that asks one question, with a lookup: whether a session could."""

    def check(state: State, services: NodeServices) -> State:
        def today() -> object:
            """Show the plan that runs today."""
            return {"tp": 8}

        payload = {"quote": "keep tp at 8", "statement": "tp stays 8"}
        services.ask(Question("confirm_reading", payload, Confirmation, services.lookups({"today": today})))
        return services.done()

    graph = StateGraph(State, context_schema=Context)
    graph.add_node("check", _with_services("check", check, None))
    graph.add_edge(START, "check")
    graph.add_edge("check", END)
    return graph


def _opener(context: Context) -> Callable[..., State]:
    def open_request(state: State, config: RunnableConfig) -> State:
        """The first state of a session whose request was passed to the graph as it is."""
        id = str(config.get("configurable", {}).get("thread_id", "studio"))
        return parse_request(cast("Mapping[str, Any]", state["request"])).first_state(id, context.clock())

    return open_request


def _with_services(
    name: str, work: Callable[[State, NodeServices], Any], studio: Context | None
) -> Callable[..., Any]:
    """Passes services to a node and emits an event when it starts and when it ends."""

    def node(state: State, config: RunnableConfig, runtime: Runtime[Context]) -> Any:  # noqa: ANN401 - or a command
        step = int(config["metadata"]["langgraph_step"])
        context = runtime.context if studio is None else studio
        log = EventLog(name, step, _event_sink(config), context.clock)
        start = time.perf_counter()
        log.emit("started")
        services = NodeServices(
            _with_calibration(context, state),
            log,
            state.get("usage", {}),
            keep=lambda reply: _kept(reply).result(),
        )
        result = work(state, services)
        log.emit("finished", seconds=time.perf_counter() - start)
        return result

    node.__name__ = name
    return node


@task
def _kept(reply: Callable[[], KeptReply]) -> KeptReply:
    """A task of LangGraph's: the checkpointer has its result while the node still runs."""
    return reply()


def _with_calibration(context: Context, state: State) -> Context:
    """Predictions are those of the model as the session's own trials have made it."""
    data = state.get("calibration")
    return replace(context, session_calibration=Calibration.from_data(data)) if data else context


def _event_sink(config: RunnableConfig) -> Callable[[Event], None]:
    """The caller receives each event before the node goes on, and so before it is checkpointed.

    LangGraph's stream would deliver them after the checkpoint: a process that dies in between loses them.
    """
    on_event: Callable[[Event], None] | None = config.get("configurable", {}).get(ON_EVENT)
    return on_event or get_stream_writer()
