"""The expert rules: the reasoner that needs no model. Deterministic, from playbooks and tools alone."""

from collections.abc import Callable, Mapping
from typing import Any

from graph.reasoner.answers import (
    Answer,
    Choice,
    Prose,
    Reading,
    SuggestedPlan,
    Suggestion,
    Suggestions,
    Weighing,
)
from graph.reasoner.question import A, Question, Reply
from graph.reasoner.rules_prose import write

NAME = "expert-rules"
MOST_SUGGESTIONS = 8
Payload = Mapping[str, Any]


class Rules:
    """Answers every question; the only reasoner that never fails."""

    name = NAME

    def ask(self, question: Question[A]) -> Reply[A]:
        answer = ANSWERS[question.name](question.payload)
        if not isinstance(answer, question.answer):
            raise TypeError(f"the rules answer {question.name} with {type(answer).__name__}")
        return Reply(answer, NAME)


def read_notes(payload: Payload) -> Reading:
    """Free text is not read by rules: a wrong guess would restrict the search without anybody's wish."""
    return Reading(statements=[])


def choose_step(payload: Payload) -> Choice:
    """The workflow's own rule, which stands first."""
    first = payload["options"][0]
    return Choice(step=first["step"], reason=first["reason"])


def weigh_diagnoses(payload: Payload) -> Weighing:
    """A measured cause outranks a computed one; among computed ones the largest share counts."""
    first = payload["competing"][0]
    source = (
        "measured, which outranks any prediction" if first["source"] == "profile" else "the largest share"
    )
    return Weighing(bottleneck=first["bottleneck"], reason=f"{first['says']}: {source}")


def suggest_plans(payload: Payload) -> Suggestions:
    """The moves of every playbook whose conditions hold; what was refused once is not asked again."""
    if payload["refused"]:
        return Suggestions(suggestions=[])
    found = [
        Suggestion(plan=SuggestedPlan.model_validate(fields), origin=book["id"], reason=book["why"])
        for book in payload["playbooks"]
        for fields in book["resolved_moves"]
    ]
    return Suggestions(suggestions=found[:MOST_SUGGESTIONS])


def explain(payload: Payload) -> Prose:
    return write(payload)


ANSWERS: Mapping[str, Callable[[Payload], Answer]] = {
    function.__name__: function
    for function in (read_notes, choose_step, weigh_diagnoses, suggest_plans, explain)
}
