"""A scenario that is right, for tests that change one thing in it."""

import copy
from typing import Any

import pytest

from tools.errors import InputError
from tools.scenario import Plan, Scenario, parse_scenario
from tools.scenario.parse import EXAMPLE

Changes = dict[str, Any]
ABSENT = object()


def example(changes: Changes | None = None) -> dict[str, Any]:
    """With these fields changed, each named by its path (`plan.tp`), or left out if ABSENT."""
    scenario: dict[str, Any] = copy.deepcopy(EXAMPLE)
    for path, value in (changes or {}).items():
        *parents, name = path.split(".")
        part = scenario
        for parent in parents:
            part = part.setdefault(parent, {})
        part[name] = value
        if value is ABSENT:
            del part[name]
    return scenario


def parsed(changes: Changes | None = None) -> Scenario:
    return parse_scenario(example(changes))


def parsed_plan(changes: Changes | None = None) -> Plan:
    plan = parsed(changes).plan
    assert plan is not None
    return plan


def refusal(changes: Changes | None = None) -> InputError:
    """The error, which is one line whatever was stated."""
    with pytest.raises(InputError) as caught:
        parsed(changes)
    assert "\n" not in str(caught.value)
    return caught.value
