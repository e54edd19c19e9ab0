"""A node that is cut off between two questions and runs again: the first reply is kept, as all it changed."""

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph.answers import A, Question, Reply
from graph.context import Context
from graph.events import SessionEvent
from graph.rules import Rules
from graph.state import state_serializer
from tests.unit.graph.cases import data_of, run, small

NOTES = "Pretty please: the width of a tensor shall never again be more than 4."
ANSWERS = {
    "read_notes": {
        "statements": [{"quote": "never again be more than 4", "field": "tp", "operator": "<=", "value": 4}]
    },
    "propose_plans": {"suggestions": []},
}


class CutOffError(BaseException):
    """As a kill: nobody catches it."""


class Model:
    """Reads the notes, looks something up first where it can, and dies once, in the question it is told."""

    name = "kept-model"

    def __init__(self, dies_in: str | None = None) -> None:
        self.dies_in, self.asked = dies_in, list[str]()
        self._verdicts = iter(("yes", "no"))  # of the claim, and of its opposite

    def ask(self, question: Question[A]) -> Reply[A]:
        self.asked.append(question.name)
        if question.name == self.dies_in and self.asked.count(question.name) == 1:
            raise CutOffError
        if "find_knowledge" in question.tools:
            question.tools["find_knowledge"](query="host overhead")
        if question.name in ANSWERS:
            answer = question.answer.model_validate(ANSWERS[question.name])
        elif question.name == "confirm_reading":
            answer = question.answer.model_validate({"verdict": next(self._verdicts)})
        else:
            answer = Rules().ask(question).answer
        return Reply(answer, self.name, tokens=10, cost=0.5)


def outline(events: list[SessionEvent]) -> list[tuple[str, str, Any]]:
    """What was told, without times."""
    told = {event.key: event for event in events}
    return [(key, event.kind, event.title) for key, event in told.items()]


def test_a_rerun_asks_again_only_what_was_not_answered_and_tells_the_same() -> None:
    """Of other questions tests/acceptance/test_killed_in_a_question.py proves it, in the service."""
    dies_in = "explain"
    whole = Model()
    expected, events = run(small(notes=NOTES), Context(reasoner=whole))
    mortal, store = Model(dies_in), InMemorySaver(serde=state_serializer())
    told: list[SessionEvent] = []
    with pytest.raises(CutOffError):
        run(small(notes=NOTES), Context(reasoner=mortal), store, events=told)
    outcome, _ = run(small(notes=NOTES), Context(reasoner=mortal), store, events=told)
    assert mortal.asked.count(dies_in) == whole.asked.count(dies_in) + 1
    assert [name for name in whole.asked if name != dies_in] == [
        name for name in mortal.asked if name != dies_in
    ]
    assert outline(told) == outline(events)
    report, reference = data_of(outcome), data_of(expected)
    assert report["usage"] == reference["usage"]
    assert report["notes"] == reference["notes"]
    assert report["proposals"] == reference["proposals"]
