"""A fork begins with another thread's state as the coordinator was to choose the step."""

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph.context import Context
from graph.events import NodeStarted, SessionEvent
from graph.report import Report
from graph.request import parse_request
from graph.session import Session
from graph.state import ForkPoint, GivenAnswer, state_serializer
from tests.unit.graph.cases import run, small
from tools.errors import DataError


def fork(store: InMemorySaver, point: ForkPoint, **changed: Any) -> tuple[Report, list[str]]:  # noqa: ANN401
    """The report, and the agents that ran."""
    events: list[SessionEvent] = []
    session = Session("fork", Context(), store)
    report = session.run(parse_request(small(**changed)), events.append, fork=point).report
    assert report is not None
    return report, [event.node for event in events if isinstance(event, NodeStarted)]


def test_constraints_changed_before_the_search_hold_beside_those_of_the_notes() -> None:
    store = InMemorySaver(serde=state_serializer())
    run(small(notes="pp must be 1"), checkpointer=store)
    before = store.get_tuple({"configurable": {"thread_id": "s1"}})
    report, ran = fork(store, ForkPoint("s1", 4), notes="pp must be 1", constraints={"tp": 2})
    assert ran == ["coordinator", "proposal", *ran[2:]]
    assert "analyzer" not in ran
    assert {(entry.plan.tp, entry.plan.pp) for entry in report.proposals} == {(2, 1)}
    assert store.get_tuple({"configurable": {"thread_id": "s1"}}) == before
    assert report.id is None


def test_a_given_answer_is_used_once_and_judged_as_a_models_is() -> None:
    store = InMemorySaver(serde=state_serializer())
    run(small(), checkpointer=store)
    given = {"find_cause": GivenAnswer(answer={"cause": "out_of_memory", "references": []}, by="ann")}
    report, _ = fork(store, ForkPoint("s1", 2, given))
    [incident] = report.incidents
    assert incident.kind == "impossible diagnosis"
    assert "out_of_memory" in incident.message


def test_checkpoints_that_are_gone_are_an_error_and_not_needed_from_the_first_step() -> None:
    store = InMemorySaver(serde=state_serializer())
    with pytest.raises(DataError, match="fork it from its first step"):
        fork(store, ForkPoint("s1", 4))
    assert fork(store, ForkPoint("s1", 1))[1][0] == "coordinator"
