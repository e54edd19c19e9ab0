"""Whether a language model's statement about the notes counts.

If the deterministic reader understands the words, it decides; otherwise a second, independent question does,
asked together with its opposite: whoever says yes to both knows nothing.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import JsonValue

from tools.recommend.notes import KINDS, AppliedNotes, apply_notes
from tools.recommend.notes_reader import is_hypothetical, read_notes
from tools.recommend.notes_values import FIGURES, Doubt, figure_of, restriction_of
from tools.recommend.prose_check import numbers_in
from tools.recommend.report import Statement
from tools.scenario import SEARCHED_FIELDS, Scenario

SecondAnswer = Literal["yes", "no", "unclear"]
Verdict = Literal["counts", "refused", "ask again"]


class Judgement(NamedTuple):
    verdict: Verdict
    reason: str


class SecondQuestion(NamedTuple):
    """Asked of the quote alone, without the notes around it. A reader that says yes to both knows nothing."""

    claim: str
    control: str


def judge(
    notes: str,
    statement: Statement,
    scenario: Scenario,
    answers: tuple[SecondAnswer, SecondAnswer] | None = None,
) -> Judgement:
    """Whether a model's statement counts; `answers` are those to `second_question`'s claim and control.

    It counts if the deterministic reader says the same, or if the claim is answered yes and its opposite no.
    It never counts if its words are not in the notes, if its numbers are not in its words, if the words are a
    question or a supposition, or if the reader understands them otherwise.
    """
    if statement.field not in KINDS:
        return Judgement("refused", f"{statement.field} is not a field that notes may set")
    if not statement.quote.strip() or _plain(statement.quote) not in _plain(notes):
        return Judgement("refused", "these words are not in the notes")
    reading = read_notes(notes, scenario)
    if any(_same_effect(statement, read, scenario) for read in reading.statements):
        return Judgement("counts", "the deterministic reader says the same")
    fault = _unfounded(statement, scenario)
    if fault:
        return Judgement("refused", fault)
    if is_hypothetical(notes, statement.quote):
        return Judgement("refused", "these words ask or suppose; they state nothing")
    for read in reading.statements:
        if read.field == statement.field and _overlap(read.quote, statement.quote):
            return Judgement("refused", f"these words say {describe(read)}")
    if answers is None:
        return Judgement("ask again", "the deterministic reader does not see this in the words")
    claim, control = answers
    if claim == "yes" and control == "no":
        return Judgement("counts", "confirmed by a second, independent question")
    return Judgement(
        "refused", f"a second, independent question was answered {claim} (its opposite: {control})"
    )


def apply_judged(
    notes: str,
    statements: Sequence[Statement],
    scenario: Scenario,
    answers: Mapping[int, tuple[SecondAnswer, SecondAnswer]] | None = None,
) -> AppliedNotes:
    """The deterministic reading with those of a model's statements that count; `answers` by their place."""
    counting, refused = [], []
    for place, statement in enumerate(statements):
        judgement = judge(notes, statement, scenario, (answers or {}).get(place))
        if judgement.verdict == "counts":
            counting.append(statement)
        else:
            refused.append(statement.model_copy(update={"reason": judgement.reason}))
    applied = apply_notes(notes, scenario, counting)
    return applied._replace(refused=[*applied.refused, *refused])


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _overlap(quote: str, other: str) -> bool:
    first, second = _plain(quote), _plain(other)
    return bool(first and second) and (first in second or second in first)


def _unfounded(statement: Statement, scenario: Scenario) -> str | None:
    """Why the quote cannot bear the value, by its numbers alone."""
    quote = _plain(statement.quote)
    numbers = numbers_in(statement.quote)
    today = getattr(scenario.plan, statement.field, None) if scenario.plan else None
    if statement.operator == "keep":
        return None if statement.value == today or today is None else f"today's {statement.field} is {today}"
    possible = {
        *numbers,
        *(number / 100 for number in numbers),
        *(1 - number / 100 for number in numbers),
        1.0,
        0.0,
    }
    absent = [
        figure
        for figure in _numbers_of(statement.value)
        if not any(math.isclose(figure, number, rel_tol=1e-6) for number in possible)
    ]
    spelled = bool(set(re.findall(r"[a-z]+", quote)) & SPELLED) or statement.unit == "devices of a node"
    return f"these words do not contain {absent[0]:g}" if absent and not spelled else None


SPELLED = frozenset(
    [
        *("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "sixteen"),
        *("half", "quarter", "third", "fifth", "tenth", "node", "nodes", "twice", "double", "pairs"),
    ]
)
"""Numbers without digits: the second question decides what they say."""


def _numbers_of(value: JsonValue) -> list[float]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, int | float):
        return [float(value)]
    parts = value.values() if isinstance(value, dict) else value
    return [number for part in parts for number in _numbers_of(part)]


def _same_effect(statement: Statement, other: Statement, scenario: Scenario) -> bool:
    if statement.field != other.field:
        return False
    try:
        if statement.field in SEARCHED_FIELDS:
            return restriction_of(statement) == restriction_of(other)
        if statement.field in FIGURES:
            return math.isclose(figure_of(statement, scenario), figure_of(other, scenario), rel_tol=1e-6)
    except Doubt:
        return False
    return statement.value == other.value


_SAYS = {
    "=": "must be",
    "in": "must be one of",
    "not": "must not be",
    "<=": "must be at most",
    ">=": "must be at least",
    "keep": "must stay",
}
_OPPOSITE = {
    "=": "must not be",
    "in": "must be none of",
    "not": "must be",
    "<=": "must be more than",
    ">=": "must be less than",
    "keep": "must change from",
}


def describe(statement: Statement) -> str:
    return _sentence(statement, _SAYS[statement.operator])


def second_question(statement: Statement) -> SecondQuestion:
    """What is asked of the quote alone: does it require this (yes, no, unclear), and its opposite?"""
    return SecondQuestion(describe(statement), _sentence(statement, _OPPOSITE[statement.operator]))


def _sentence(statement: Statement, relation: str) -> str:
    value = statement.value
    shown = (
        " and ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, dict)
        else " or ".join(map(str, value)) if isinstance(value, list) else str(value)
    )  # fmt: skip
    subject = "the combination of fields" if statement.field == "plan" else statement.field
    return f"{subject} {relation} {shown}{f' {statement.unit}' if statement.unit else ''}"
