"""What an engineer's notes change: constraints, corrected figures of the cluster, measured facts.

Statements come from the deterministic reader, or from a language model whose statements are judged first.
Statements that contradict each other, an explicit constraint or the catalogue are never applied: they become
questions to the person.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from tools.errors import InputError
from tools.recommend.notes_reader import read_notes
from tools.recommend.notes_values import (
    Doubt,
    Restriction,
    figure_of,
    nominal_of,
    restriction_in,
    restriction_of,
)
from tools.recommend.report import Fact, NoteQuestion, Statement
from tools.scenario import SEARCHED_FIELDS, Scenario, parse_scenario
from tools.search.constraints import parse_constraints

CONSTRAINTS = (*SEARCHED_FIELDS, "max_memory_fraction", "max_changes", "keep_checkpoint_layout", "plan")
OVERRIDES = ("inter_node_gbps_per_device", "intra_node_gbytes_per_s_per_device", "memory_gib")
TOPOLOGY = ("oversubscription", "nvlink_domain_size")
FACTS = ("measured_step_time_s",)
NOTE_FIELDS = (*CONSTRAINTS, *OVERRIDES, *TOPOLOGY, *FACTS)
"""What notes may set. `plan` is a combination of fields to avoid."""
KINDS = {
    **dict.fromkeys(CONSTRAINTS, "constraint"),
    **dict.fromkeys(OVERRIDES, "override"),
    **dict.fromkeys(TOPOLOGY, "topology"),
    **dict.fromkeys(FACTS, "fact"),
}


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


def _question(name: str, group: Sequence[Statement], reason: str) -> NoteQuestion:
    quotes = list(dict.fromkeys(statement.quote for statement in group))
    words = " and ".join(f'"{quote}"' for quote in quotes)
    return NoteQuestion(field=name, quotes=quotes, text=f"{words}: {reason}. What holds?")


def _with_group(
    name: str, group: Sequence[Statement], current: Scenario, request: Scenario
) -> tuple[Scenario, JsonValue]:
    """The scenario with one field's statements, and the value they come to."""
    if name == "plan":
        return _avoiding(group, current)
    if name == "keep_checkpoint_layout":
        return _constrained(current, name, True), True
    if name in SEARCHED_FIELDS:
        value = _combined(name, group, request)
        return _constrained(current, name, value), value
    figures = {figure_of(statement, request) for statement in group}
    if name in ("max_memory_fraction", "max_changes"):
        explicit = request.constraints.get(name)
        figure = min([*figures, *([float(explicit)] if isinstance(explicit, int | float) else [])])
        value = int(figure) if name == "max_changes" else figure
        return _constrained(current, name, value), value
    if len(figures) > 1:
        raise Doubt(
            f"these contradict each other: {' and '.join(f'{figure:g}' for figure in sorted(figures))}"
        )
    figure = figures.pop()
    if name in FACTS:
        return current, figure
    return _with_figure(name, figure, current, request), figure


def _combined(name: str, group: Sequence[Statement], request: Scenario) -> JsonValue:
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


def _avoiding(group: Sequence[Statement], current: Scenario) -> tuple[Scenario, JsonValue]:
    before = current.constraints.get("avoid")
    plans: list[JsonValue] = list(before) if isinstance(before, list) else []
    plans += [statement.value for statement in group if statement.value not in plans]
    return _constrained(current, "avoid", plans), plans


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


def _constrained(scenario: Scenario, name: str, value: JsonValue) -> Scenario:
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
