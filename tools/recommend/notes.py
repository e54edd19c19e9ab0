"""What an engineer's notes change: constraints, corrected figures of the cluster, measured facts.

Statements come from the deterministic reader, or from a language model. If the reader understands the words,
it decides whether a statement of the model counts; otherwise a second, independent question does, asked
together with its opposite. Statements that contradict each other, an explicit constraint or the catalogue are
never applied: they become questions to the person.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import JsonValue

from tools.errors import InputError
from tools.recommend.notes_reader import NODE, is_hypothetical, numbers_in, plain, read_notes
from tools.recommend.notes_values import BANDWIDTHS, Doubt, combined, figure_of, form_of, nominal_of
from tools.recommend.report import Fact, NoteQuestion, Statement
from tools.scenario import SEARCHED_FIELDS, Scenario, parse_scenario
from tools.search.constraints import parse_constraints

LIMITS = ("max_memory_fraction", "max_changes")
KINDS = {
    **dict.fromkeys((*SEARCHED_FIELDS, *LIMITS, "keep_checkpoint_layout", "plan"), "constraint"),
    **dict.fromkeys((*BANDWIDTHS, "memory_gib"), "override"),
    **dict.fromkeys(("oversubscription", "nvlink_domain_size"), "topology"),
    **dict.fromkeys(("measured_step_time_s", "run"), "fact"),
}
"""What notes may set, and what it changes. `plan` is a combination of fields to avoid, `run` the fields of
another plan with its `step_time_s`."""
RELATIONS = {
    "=": ("must be", "must not be"),
    "in": ("must be one of", "must be none of"),
    "not": ("must not be", "must be"),
    "<=": ("must be at most", "must be more than"),
    ">=": ("must be at least", "must be less than"),
    "keep": ("must stay", "must change from"),
}
"""How a statement's operator reads, and its opposite."""
SecondAnswer = Literal["yes", "no", "unclear"]
SecondAnswers = tuple[SecondAnswer, SecondAnswer]


class AppliedNotes(NamedTuple):
    accepted: list[Statement]
    refused: list[Statement]
    """Each with its reason."""
    scenario: Scenario
    """With the accepted statements applied."""
    questions: list[NoteQuestion]
    facts: list[Fact]
    """What the accepted statements make known, with the words that state it."""

    def refuse(self, name: str, group: Sequence[Statement], reason: str) -> None:
        """Adds the statements to those refused, and asks what holds."""
        quotes = list(dict.fromkeys(statement.quote for statement in group))
        words = " and ".join(f'"{quote}"' for quote in quotes)
        self.refused.extend(statement.model_copy(update={"reason": reason}) for statement in group)
        question = NoteQuestion(field=name, quotes=quotes, text=f"{words}: {reason}. What holds?")
        self.questions.append(question)


class Judgement(NamedTuple):
    verdict: Literal["counts", "refused", "ask again"]
    reason: str


def apply_notes(
    notes: str,
    scenario: Scenario,
    statements: Sequence[Statement] = (),
    answers: Mapping[int, SecondAnswers] | None = None,
) -> AppliedNotes:
    """What the deterministic reader finds, with those of a model's statements that count.

    `answers` are those to the statements' second questions, by the statement's place.
    """
    reading = read_notes(notes, scenario)
    counting, refused = list(reading.statements), []
    for place, statement in enumerate(statements):
        judgement = judge(notes, statement, scenario, (answers or {}).get(place))
        if judgement.verdict == "counts":
            counting.append(statement)
        else:
            refused.append(statement.model_copy(update={"reason": judgement.reason}))
    applied = apply_statements(counting, scenario)
    questions = [*reading.questions, *applied.questions]
    return applied._replace(refused=[*applied.refused, *refused], questions=questions)


def apply_statements(statements: Sequence[Statement], scenario: Scenario) -> AppliedNotes:
    """All statements about a field together, against the request's constraints and figures."""
    applied = AppliedNotes([], [], scenario, [], [])
    groups: dict[str, list[Statement]] = {}
    for statement in statements:
        group = groups.setdefault(statement.field, [])
        if not any(_has_same_effect(statement, other, scenario) for other in group):
            kind = KINDS.get(statement.field, "")
            group.append(statement.model_copy(update={"kind": kind, "reason": None}))
    for name, group in groups.items():
        try:
            changed, value = _with_group(name, group, applied.scenario, scenario)
        except (Doubt, InputError) as error:
            applied.refuse(name, group, str(error))
            continue
        words = "; ".join(dict.fromkeys(statement.quote for statement in group))
        applied.accepted.extend(group)
        applied.facts.append(Fact(name=name, value=value, source="notes", reference=words))
        applied = applied._replace(scenario=changed)
    return applied


def without_impossible(
    applied: AppliedNotes, request: Scenario, why_infeasible: Callable[[Scenario], str | None]
) -> AppliedNotes:
    """Without the statements that leave no plan: each becomes a question, and the others hold.

    `why_infeasible` tells why nothing satisfies a scenario. A request that is infeasible without its notes
    is not their fault.
    """
    if why_infeasible(applied.scenario) is None or why_infeasible(request) is not None:
        return applied
    possible: list[Statement] = []
    out = applied._replace(refused=[*applied.refused], questions=[*applied.questions])
    for name in dict.fromkeys(statement.field for statement in applied.accepted):
        group = [statement for statement in applied.accepted if statement.field == name]
        reason = why_infeasible(apply_statements([*possible, *group], request).scenario)
        if reason is None:
            possible += group
        else:
            out.refuse(name, group, reason)
    return apply_statements(possible, request)._replace(refused=out.refused, questions=out.questions)


def _with_group(
    name: str, group: Sequence[Statement], current: Scenario, request: Scenario
) -> tuple[Scenario, JsonValue]:
    """The scenario with one field's statements, and the value they come to; raises Doubt or InputError."""
    if name not in KINDS:
        raise Doubt(f"{name} is not a field that notes may set")
    explicit, key = request.constraints.get(name), name
    value: JsonValue = True
    if name == "plan":
        avoided, key = current.constraints.get("avoid"), "avoid"
        plans: list[JsonValue] = list(avoided) if isinstance(avoided, list) else []
        value = [*plans, *(statement.value for statement in group if statement.value not in plans)]
    elif name == "run":
        if not all(isinstance(statement.value, dict) for statement in group):
            raise Doubt("this names no plan and its step time")
        return current, [statement.value for statement in group]
    elif name in SEARCHED_FIELDS:
        forms = [form_of(statement) for statement in group]
        value = combined(name, forms)
        if value is None:
            raise Doubt("these contradict each other")
        if explicit is not None:
            value = combined(name, [*forms, explicit])
            if value is None:
                raise Doubt(f"this conflicts with the constraint {name} = {explicit}")
    elif name != "keep_checkpoint_layout":
        figures = sorted({figure_of(statement, request) for statement in group})
        value = figures[0]
        if name in LIMITS and isinstance(explicit, int | float):
            value = min(value, explicit)
        elif name not in LIMITS and len(figures) > 1:
            raise Doubt(f"these contradict each other: {' and '.join(f'{figure:g}' for figure in figures)}")
        if KINDS[name] == "fact":
            return current, value
        if KINDS[name] != "constraint":
            return _with_figure(name, figures[0], current, request), value
    constraints = {**current.constraints, key: value}
    parse_constraints(constraints, current.plan)
    return current.model_copy(update={"constraints": constraints}), value


def _with_figure(name: str, figure: float, current: Scenario, request: Scenario) -> Scenario:
    part = "overrides" if KINDS[name] == "override" else "topology"
    stated = (request.cluster.model_dump(exclude_unset=True).get(part) or {}).get(name)
    if stated is not None and not math.isclose(stated, figure):
        raise Doubt(f"this conflicts with {name} = {stated:g} of the scenario")
    if stated is None and math.isclose(figure, nominal_of(name, request)):
        return current
    changed = current.model_dump(mode="json", exclude_defaults=True)
    changed["cluster"].setdefault(part, {})[name] = figure
    return parse_scenario(changed, need_plan=False)


def judge(
    notes: str, statement: Statement, scenario: Scenario, answers: SecondAnswers | None = None
) -> Judgement:
    """Whether a model's statement counts; `answers` are those to `second_question`'s claim and control.

    It counts if the deterministic reader says the same, or if the claim is answered yes and its opposite no.
    It never counts if its words are not in the notes, if its numbers are not in its words, if the words are a
    question or a supposition, or if the reader understands them otherwise.
    """
    quote, field = plain(statement.quote), statement.field
    if field not in KINDS:
        return Judgement("refused", f"{field} is not a field that notes may set")
    if not quote or quote not in plain(notes):
        return Judgement("refused", "these words are not in the notes")
    read = read_notes(notes, scenario).statements
    if any(_has_same_effect(statement, other, scenario) for other in read):
        return Judgement("counts", "the deterministic reader says the same")
    today = getattr(scenario.plan, field, None)
    if statement.operator == "keep":
        if today not in (statement.value, None):
            return Judgement("refused", f"today's {field} is {today}")
    elif statement.unit != NODE:
        stated = numbers_in(statement.quote)
        possible = [1.0, 0.0, *stated, *(n / 100 for n in stated), *(1 - n / 100 for n in stated)]
        for figure in map(float, re.findall(r"\d+(?:\.\d+)?", json.dumps(statement.value))):
            if not any(math.isclose(figure, number, rel_tol=1e-6) for number in possible):
                return Judgement("refused", f"these words do not contain {figure:g}")
    if is_hypothetical(notes, statement.quote):
        return Judgement("refused", "these words ask or suppose; they state nothing")
    for other in read:
        if other.field == field and (plain(other.quote) in quote or quote in plain(other.quote)):
            return Judgement("refused", f"these words say {describe(other)}")
    if answers is None:
        return Judgement("ask again", "the deterministic reader does not see this in the words")
    if answers == ("yes", "no"):
        return Judgement("counts", "confirmed by a second, independent question")
    answered = f"answered {answers[0]} (its opposite: {answers[1]})"
    return Judgement("refused", f"a second, independent question was {answered}")


def _has_same_effect(statement: Statement, other: Statement, scenario: Scenario) -> bool:
    if statement.field != other.field:
        return False
    try:
        if statement.field in SEARCHED_FIELDS:
            own, others = form_of(statement), form_of(other)
            return combined(statement.field, [own]) == combined(statement.field, [others])
        if statement.field in KINDS and statement.field not in ("plan", "run", "keep_checkpoint_layout"):
            return math.isclose(figure_of(statement, scenario), figure_of(other, scenario), rel_tol=1e-6)
    except Doubt:
        pass
    return statement.without_quote == other.without_quote


def describe(statement: Statement, opposite: bool = False) -> str:
    value = statement.value
    if isinstance(value, dict):
        shown = " and ".join(f"{name} {part}" for name, part in value.items())
    else:
        shown = " or ".join(map(str, value)) if isinstance(value, list) else str(value)
    subjects = {"plan": "the combination of fields", "run": "what ran"}
    subject = subjects.get(statement.field, statement.field)
    return f"{subject} {RELATIONS[statement.operator][opposite]} {shown} {statement.unit or ''}".rstrip()


def second_question(statement: Statement) -> tuple[str, str]:
    """A claim and its opposite, asked about the quote alone; a yes to both shows no understanding."""
    if isinstance(statement.value, dict):
        statement = statement.model_copy(update={"value": json.dumps(statement.value)})
    return describe(statement), describe(statement, opposite=True)
