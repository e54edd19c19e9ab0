"""What an engineer's notes change: constraints, corrected figures of the cluster, measured facts.

Statements come from the deterministic reader, or from a language model. If the reader understands the words,
it decides whether a statement of the model counts; otherwise a second, independent question does, asked
together with its opposite. Statements that contradict each other, an explicit constraint or the catalogue are
never applied: they become questions to the person.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import JsonValue

from tools.errors import InputError
from tools.recommend.notes_reader import is_hypothetical, read_notes
from tools.recommend.notes_values import (
    FIGURES,
    Doubt,
    Restriction,
    figure_of,
    nominal_of,
    restriction_in,
    restriction_of,
)
from tools.recommend.report import Fact, NoteQuestion, Statement
from tools.recommend.words import numbers_in
from tools.scenario import SEARCHED_FIELDS, Scenario, parse_scenario
from tools.search.constraints import parse_constraints

CONSTRAINTS = (*SEARCHED_FIELDS, "max_memory_fraction", "max_changes", "keep_checkpoint_layout", "plan")
OVERRIDES = ("inter_node_gbps_per_device", "intra_node_gbytes_per_s_per_device", "memory_gib")
TOPOLOGY = ("oversubscription", "nvlink_domain_size")
FACTS = ("measured_step_time_s",)
KINDS = {
    **dict.fromkeys(CONSTRAINTS, "constraint"),
    **dict.fromkeys(OVERRIDES, "override"),
    **dict.fromkeys(TOPOLOGY, "topology"),
    **dict.fromkeys(FACTS, "fact"),
}
"""What notes may set, and what it changes. `plan` is a combination of fields to avoid."""


class AppliedNotes(NamedTuple):
    accepted: list[Statement]
    refused: list[Statement]
    """Each with its reason."""
    scenario: Scenario
    """With the accepted statements applied."""
    questions: list[NoteQuestion]
    facts: list[Fact]
    """What the accepted statements make known, with the words that say so."""


def apply_statements(statements: Sequence[Statement], scenario: Scenario) -> AppliedNotes:
    """Field by field: all statements about it together, against the request's own constraints and figures."""
    accepted: list[Statement] = []
    refused: list[Statement] = []
    questions: list[NoteQuestion] = []
    facts: list[Fact] = []
    current = scenario
    for name in dict.fromkeys(statement.field for statement in statements):
        group = [
            statement.model_copy(update={"kind": KINDS.get(name, ""), "reason": None})
            for statement in statements
            if statement.field == name
        ]
        try:
            if name not in KINDS:
                raise Doubt(f"{name} is not a field that notes may set")
            current, value = _with_group(name, group, current, scenario)
        except (Doubt, InputError) as error:
            refused += [statement.model_copy(update={"reason": str(error)}) for statement in group]
            questions.append(_question(name, group, str(error)))
            continue
        accepted += group
        facts.append(
            Fact(
                name=name,
                value=value,
                source="notes",
                reference="; ".join(dict.fromkeys(statement.quote for statement in group)),
            )
        )
    return AppliedNotes(accepted, refused, current, questions, facts)


def without_impossible(
    applied: AppliedNotes, request: Scenario, why_infeasible: Callable[[Scenario], str | None]
) -> AppliedNotes:
    """Without the statements that leave no plan: each becomes a question, and the others hold.

    `why_infeasible` says why nothing satisfies a scenario. A request that is infeasible without its notes
    is not their fault.
    """
    if why_infeasible(applied.scenario) is None or why_infeasible(request) is not None:
        return applied
    kept: list[Statement] = []
    refused, questions = list(applied.refused), list(applied.questions)
    for name in dict.fromkeys(statement.field for statement in applied.accepted):
        group = [statement for statement in applied.accepted if statement.field == name]
        reason = why_infeasible(apply_statements([*kept, *group], request).scenario)
        if reason is None:
            kept += group
            continue
        refused += [statement.model_copy(update={"reason": reason}) for statement in group]
        questions.append(_question(name, group, reason))
    rest = apply_statements(kept, request)
    return rest._replace(refused=refused, questions=questions)


def _question(name: str, group: Sequence[Statement], reason: str) -> NoteQuestion:
    quotes = list(dict.fromkeys(statement.quote for statement in group))
    words = " and ".join(f'"{quote}"' for quote in quotes)
    return NoteQuestion(field=name, quotes=quotes, text=f"{words}: {reason}. What holds?")


def _with_group(
    name: str, group: Sequence[Statement], current: Scenario, request: Scenario
) -> tuple[Scenario, JsonValue]:
    """The scenario with one field's statements, and the value they come to."""
    if name == "plan":
        return _avoid_plans(group, current)
    if name == "keep_checkpoint_layout":
        return _add_constraint(current, name, True), True
    if name in SEARCHED_FIELDS:
        value = _combine_restrictions(name, group, request)
        return _add_constraint(current, name, value), value
    figures = {figure_of(statement, request) for statement in group}
    if name in ("max_memory_fraction", "max_changes"):
        explicit = request.constraints.get(name)
        figure = min([*figures, *([float(explicit)] if isinstance(explicit, int | float) else [])])
        value = int(figure) if name == "max_changes" else figure
        return _add_constraint(current, name, value), value
    if len(figures) > 1:
        raise Doubt(
            f"these contradict each other: {' and '.join(f'{figure:g}' for figure in sorted(figures))}"
        )
    figure = figures.pop()
    if name in FACTS:
        return current, figure
    return _with_figure(name, figure, current, request), figure


def _combine_restrictions(name: str, group: Sequence[Statement], request: Scenario) -> JsonValue:
    whole = Restriction()
    for statement in group:
        whole = whole.both(restriction_of(statement))
    if not whole.is_possible(name):
        raise Doubt("these contradict each other")
    explicit = request.constraints.get(name)
    if explicit is not None:
        whole = whole.both(restriction_in(explicit))
        if not whole.is_possible(name):
            raise Doubt(f"this conflicts with the constraint {name} = {explicit}")
    return whole.as_constraint()


def _avoid_plans(group: Sequence[Statement], current: Scenario) -> tuple[Scenario, JsonValue]:
    before = current.constraints.get("avoid")
    plans: list[JsonValue] = list(before) if isinstance(before, list) else []
    plans += [statement.value for statement in group if statement.value not in plans]
    return _add_constraint(current, "avoid", plans), plans


def _with_figure(name: str, figure: float, current: Scenario, request: Scenario) -> Scenario:
    changed = current.model_dump(mode="json", exclude_defaults=True)
    cluster = request.cluster
    if name in OVERRIDES:
        stated = cluster.overrides.get(name)
        changed["cluster"].setdefault("overrides", {})[name] = figure
    else:
        stated = (
            getattr(cluster.topology, name)
            if cluster.topology and name in cluster.topology.model_fields_set
            else None
        )
        changed["cluster"].setdefault("topology", {})[name] = figure
    if isinstance(stated, int | float) and not math.isclose(stated, figure):
        raise Doubt(f"this conflicts with {name} = {stated:g} of the scenario")
    if stated is None and math.isclose(figure, nominal_of(name, request)):
        return current
    return parse_scenario(changed, need_plan=False)


def _add_constraint(scenario: Scenario, name: str, value: JsonValue) -> Scenario:
    """Raises InputError if the constraints cannot be so."""
    constraints = {**scenario.constraints, name: value}
    parse_constraints(constraints, scenario.plan)
    return scenario.model_copy(update={"constraints": constraints})


def apply_notes(notes: str, scenario: Scenario, judged: Iterable[Statement] = ()) -> AppliedNotes:
    """What the deterministic reader finds, with what was judged to count of a model's statements."""
    reading = read_notes(notes, scenario)
    known = [statement.without_quote for statement in reading.statements]
    statements = [
        *reading.statements,
        *(statement for statement in judged if statement.without_quote not in known),
    ]
    applied = apply_statements(statements, scenario)
    return applied._replace(questions=[*reading.questions, *applied.questions])


SecondAnswer = Literal["yes", "no", "unclear"]
Verdict = Literal["counts", "refused", "ask again"]


class Judgement(NamedTuple):
    verdict: Verdict
    reason: str


class SecondQuestion(NamedTuple):
    """Asked of the quote alone, without the notes around it; a yes to both shows no understanding."""

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
