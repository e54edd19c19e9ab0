"""An engineer's notes: read by the deterministic reader, which needs no model.

A model's statement counts if that reader says the same, or if a second, independent question about the quote
alone is answered yes, and its opposite no.
"""

import json
from contextlib import suppress

from pydantic import JsonValue

from graph.answers import Confirmation, Question, Reading, ReadStatement
from graph.context import Context
from graph.questions import ConfirmReading, ReadNotes
from graph.rules import Rules
from graph.services import NodeServices
from graph.state import State
from tools.errors import InfeasibleError
from tools.recommend.notes import KINDS, SecondAnswer, apply_notes, judge, second_question, without_impossible
from tools.recommend.notes_reader import passage
from tools.recommend.optimize import best_plans
from tools.recommend.report import Notes, PersonQuestion, Statement
from tools.scenario import Plan, Scenario

CHOICE_VALUES = frozenset(("none", "selective", "full", "1f1b", "interleaved", "zero_bubble", "gpipe"))
RULES_ONLY = "read by the expert rules: what they do not understand changes nothing"


def read_notes(state: State, services: NodeServices) -> State:
    """The request with what its notes say applied; what is unclear becomes a question to the person."""
    request = state["request"]
    if not request.notes:
        return State(scenario=request, notes=Notes(accepted=[], refused=[], message=None))
    statements: list[Statement] = []
    answers: dict[int, tuple[SecondAnswer, SecondAnswer]] = {}
    if services.has_model:
        asked = ReadNotes(notes=request.notes, scenario=request.model_copy(update={"notes": None}))
        for read_statement in services.ask(Question(asked, Reading)).statements:
            statement = _stated(read_statement, request.notes)
            if not _is_plain(statement.value):
                continue  # no word of a model's own goes on, not even as the value that is refused
            verdict = judge(request.notes, statement, request).verdict
            if verdict == "counts":  # the deterministic reader says it too: that needs no second voice
                continue
            statements.append(statement)
            if verdict == "ask again":
                # Each in a conversation of its own, with the quote, or the sentence that reports it, alone.
                quote = passage(request.notes, statement.quote)
                claim, control = (
                    services.ask(
                        Question(ConfirmReading(quote=quote, statement=claimed), Confirmation)
                    ).verdict
                    for claimed in second_question(statement)
                )
                answers[len(statements) - 1] = claim, control
    read = services.compute(
        apply_notes, notes=request.notes, statements=statements, scenario=request, answers=answers
    )
    if read.accepted:
        read = without_impossible(read, request, lambda held: services.run(why_infeasible, scenario=held))
    notes = Notes(
        accepted=read.accepted,
        refused=[entry for entry in read.refused if _is_about(entry, request.notes)],
        message=None if services.has_model else RULES_ONLY,
        questions=read.questions,
        facts=read.facts,
    )
    questions = [PersonQuestion(**dict(entry), by=Rules.name) for entry in read.questions]
    return State(scenario=read.scenario, notes=notes, facts=read.facts, questions=questions)


def _stated(read: ReadStatement, notes: str) -> Statement:
    """A model writes the fields of a plan as the text of an object: strict schemas have no open objects."""
    unit = read.unit if read.unit and read.unit in notes else None
    statement = Statement.model_validate({**read.model_dump(), "unit": unit})
    if read.field in ("plan", "run") and isinstance(read.value, str):
        with suppress(ValueError):
            return statement.model_copy(update={"value": json.loads(read.value)})
    return statement


def _is_plain(value: JsonValue) -> bool:
    """A number, a choice, a list of them, or fields of a plan with them."""
    if isinstance(value, dict):
        return {*value} <= {*Plan.model_fields, "step_time_s"} and _is_plain([*value.values()])
    if isinstance(value, list):
        return all(not isinstance(part, dict | list) and _is_plain(part) for part in value)
    return not isinstance(value, str) or value in CHOICE_VALUES


def why_infeasible(context: Context, scenario: Scenario) -> str | None:
    """Why no plan satisfies a scenario; None if some do."""
    try:
        best_plans(context.workload(scenario), context.progress)
    except InfeasibleError as error:
        return str(error)
    return None


def _is_about(statement: Statement, notes: str) -> bool:
    """Whether a refused statement is worth showing: words of the notes, a known field, a plain value."""
    is_plain = _is_plain(statement.value) and not isinstance(statement.value, dict)
    return (
        statement.field in KINDS and is_plain and bool(statement.quote.strip()) and statement.quote in notes
    )
