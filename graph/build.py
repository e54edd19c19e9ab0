"""The graph as a table of contents: nodes, edges and the coordinator's rules."""

import time
from collections.abc import Callable
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.func import task
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, RetryPolicy

from graph.answers import Confirmation, Question
from graph.context import Context
from graph.events import EventLog, NodeFinished, NodeStarted
from graph.nodes.analyzer import analyzer
from graph.nodes.coordinator import Step, coordinator
from graph.nodes.learn import learn
from graph.nodes.proposal import proposal
from graph.nodes.report import report
from graph.nodes.trial import approve, trial
from graph.nodes.verify import verify
from graph.questions import ConfirmReading
from graph.request import parse_request
from graph.services import Kept, NodeServices
from graph.state import State, first_state
from tools.model.calibration import Calibration

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
    if studio is None:
        graph.add_edge(START, "coordinator")
    else:
        clock = studio.clock

        def open_request(state: State, config: RunnableConfig) -> State:
            """The first state of a session whose request was passed to the graph as it is."""
            id = str(config.get("configurable", {}).get("thread_id", "studio"))
            return first_state(parse_request(cast("Any", state["request"])), id, clock())

        graph.add_node("open", open_request)
        graph.add_edge(START, "open")
        graph.add_edge("open", "coordinator")
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

        asked = ConfirmReading(quote="keep tp at 8", statement="tp stays 8")
        services.ask(Question(asked, Confirmation, services.lookups({"today": today})))
        return services.done()

    graph = StateGraph(State, context_schema=Context)
    graph.add_node("check", _with_services("check", check, None))
    graph.add_edge(START, "check")
    graph.add_edge("check", END)
    return graph


def _with_services(
    name: str, work: Callable[[State, NodeServices], State | Command[Step]], studio: Context | None
) -> Callable[..., Any]:
    """Passes services to a node and emits an event when it starts and when it ends.

    LangGraph would read places to go from a `Command` in the annotation: the graph names them itself.
    """

    def node(state: State, config: RunnableConfig, runtime: Runtime[Context]) -> object:
        context = runtime.context if studio is None else studio
        if calibration := state.get("calibration"):
            context = context.resumed(Calibration.from_data(calibration))
        # The caller receives each event before the node goes on, and so before it is checkpointed.
        # LangGraph's stream would deliver it after the checkpoint: a process that dies in between loses it.
        write = config.get("configurable", {}).get(ON_EVENT) or get_stream_writer()
        log = EventLog(name, int(config["metadata"]["langgraph_step"]), write, context.clock)
        start = time.perf_counter()
        log.emit(NodeStarted())
        usage = state.get("usage", {})
        services = NodeServices(
            context, log, usage, state.get("given", {}), keep=lambda made: _kept(made).result()
        )
        result = work(state, services)
        update = result.update if isinstance(result, Command) else result
        log.emit(NodeFinished(seconds=time.perf_counter() - start, changed=sorted(update or ())))
        return result

    node.__name__ = name
    return node


@task
def _kept(made: Callable[[], Kept]) -> Kept:
    """A task of LangGraph's: the checkpointer has its result while the node still runs."""
    return made()
