"""A playbook's plan changes, which are data, applied to a real plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from tools.scenario import Plan, Scenario

Move = Mapping[str, Any]


def resolve_moves(moves: Sequence[Move], plan: Plan, scenario: Scenario) -> list[dict[str, object]]:
    """Values such as "x2" or "devices_per_node" become figures of this plan; odd halves are left out."""
    resolved = [
        {name: _value(value, getattr(plan, name), plan, scenario) for name, value in move.items()}
        for move in moves
    ]
    return [fields for fields in resolved if None not in fields.values()]


def _value(value: object, now: object, plan: Plan, scenario: Scenario) -> object:
    words = {
        "devices_per_node": scenario.cluster.devices_per_node,
        "num_devices": scenario.cluster.num_devices,
        "all_data_ranks": plan.dp * plan.cp,
    }
    if not isinstance(value, str):
        return value
    if value in words:
        return words[value]
    if isinstance(now, int) and value.startswith(("x", "/")) and value[1:].isdigit():
        factor = int(value[1:])
        return now * factor if value[0] == "x" else now // factor if now % factor == 0 else None
    return value


def agrees(fields: Mapping[str, object], before: Plan, after: Mapping[str, object]) -> bool:
    """Whether a proposal goes where the move points: each field of the move changes in its direction."""
    return bool(fields) and all(
        _same_direction(getattr(before, name), wanted, after[name]) for name, wanted in fields.items()
    )


def _same_direction(before: object, wanted: object, after: object) -> bool:
    if after == wanted:
        return before != wanted
    numbers = [v for v in (before, wanted, after) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < 3:
        return False
    start, goal, end = numbers
    return (goal - start) * (end - start) > 0


def supporting(
    playbooks: Sequence[Mapping[str, Any]], before: Plan, after: Mapping[str, object], scenario: Scenario
) -> list[dict[str, str]]:
    """Evidence for a proposal: the playbooks whose moves it makes."""
    return [
        {"kind": "knowledge", "ref": book["id"], "says": f"{book['title']}: {book['effect']}"}
        for book in playbooks
        if any(
            agrees(fields, before, after) for fields in resolve_moves(book.get("moves", []), before, scenario)
        )
    ]
