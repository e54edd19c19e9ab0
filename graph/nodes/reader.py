"""The reader: what the engineer's notes state, in the words that say so.

The deterministic reader comes first and needs no model. A model's statement counts if that reader says the
same, or if a second, independent question about the quote alone is answered yes, and its opposite no.
"""

from graph import tools
from graph.answers import Confirmation, Question, Reading
from graph.report import PersonQuestion
from graph.rules import Rules
from graph.services import NodeServices
from graph.state import State, plain
from tools.recommend.notes import KINDS
from tools.recommend.notes_judge import SecondAnswer, judge, second_question
from tools.recommend.report import Notes, Statement

CHOICE_VALUES = frozenset(("none", "selective", "full", "1f1b", "interleaved", "zero_bubble", "gpipe"))
RULES_ONLY = "read by the expert rules: what they do not understand changes nothing"


def read_notes(state: State, services: NodeServices) -> State:
    """The request with what its notes say applied; what is unclear becomes a question to the person."""
    request = state["request"]
    if not request.notes:
        return State(scenario=request, notes=Notes(accepted=[], refused=[], says=None))
    statements: list[Statement] = []
    answers: dict[int, tuple[SecondAnswer, SecondAnswer]] = {}
    if services.has_model:
        described = plain(request.model_copy(update={"notes": None}))
        question = Question("read_notes", {"notes": request.notes, "scenario": described}, Reading)
        statements = [
            Statement.model_validate(entry.model_dump()) for entry in services.ask(question).statements
        ]
        # What the deterministic reader says too needs no second voice.
        judged = [(entry, judge(request.notes, entry, request).verdict) for entry in statements]
        judged = [(entry, verdict) for entry, verdict in judged if verdict != "counts"]
        statements = [entry for entry, _ in judged]
        answers = {
            place: _second_answers(entry, services)
            for place, (entry, verdict) in enumerate(judged)
            if verdict == "ask again"
        }
    read = services.run(
        tools.read_statements, notes=request.notes, statements=statements, scenario=request, answers=answers
    )
    notes = Notes(
        accepted=read.accepted,
        refused=[entry for entry in read.refused if _is_about(entry, request.notes)],
        says=None if services.has_model else RULES_ONLY,
        questions=read.questions,
        facts=read.facts,
    )
    asked = [
        PersonQuestion(field=entry.field, text=entry.text, quotes=entry.quotes, by=Rules.name)
        for entry in read.questions
    ]
    return State(scenario=read.scenario, notes=notes, facts=read.facts, questions=asked)


def _is_about(statement: Statement, notes: str) -> bool:
    """Whether a refused statement is worth showing: words of the notes, a known field, a plain value."""
    values = statement.value if isinstance(statement.value, list) else [statement.value]
    is_plain = all(not isinstance(value, str | dict | list) or value in CHOICE_VALUES for value in values)
    return (
        statement.field in KINDS and is_plain and bool(statement.quote.strip()) and statement.quote in notes
    )


def _second_answers(statement: Statement, services: NodeServices) -> tuple[SecondAnswer, SecondAnswer]:
    """Each in a conversation of its own, with the quote and nothing around it."""
    asked = second_question(statement)

    def answer(claim: str) -> SecondAnswer:
        payload = {"quote": statement.quote, "statement": claim}
        return services.ask(Question("confirm_reading", payload, Confirmation)).verdict

    return answer(asked.claim), answer(asked.control)
