"""When a playbook applies."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kb.samples import playbook
from tools.errors import InputError
from tools.kb import matching
from tools.kb.conditions import FACTS, OPERATORS, Condition, applies, parse_conditions
from tools.kb.seed import parse_playbook

NUMBERS = st.integers(-(10**6), 10**6) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.none() | st.booleans() | NUMBERS | st.text(max_size=5)


@pytest.mark.parametrize(
    ("comparison", "fact", "expected"),
    [
        ({"is": True}, True, True),
        ({"is": True}, False, False),
        ({"is": 1}, True, False),  # true is no number, whatever Python says
        ({"is": True}, 1, False),
        ({"is": "moe"}, "moe", True),
        ({"is": 8}, 8.0, True),
        ({"one_of": ["none", "selective"]}, "selective", True),
        ({"one_of": [1, 2]}, True, False),
        ({"at_least": 8}, 8, True),
        ({"above": 8}, 8, False),
        ({"at_most": 8}, 8, True),
        ({"below": 8}, 8, False),
        ({"above": 1, "below": 8}, 4, True),
        ({"above": 1, "below": 8}, 8, False),
        ({"at_least": 0}, "many", False),
        ({"at_least": 0}, True, False),
        ({"at_least": 0}, math.nan, False),
    ],
)
def test_a_comparison_says_what_it_reads_like(
    comparison: dict[str, Any], fact: object, expected: bool
) -> None:
    assert Condition.model_validate({"fact": "x", **comparison}).holds({"x": fact}) is expected


@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_not_known_does_not_hold(name: str) -> None:
    condition = Condition.model_validate({"fact": "tp", name: [8] if name == "one_of" else 8})
    assert not condition.holds({})
    assert not condition.holds({"tp": None})


@given(NUMBERS, NUMBERS)
def test_comparisons_of_numbers_exclude_or_include_each_other(fact: float, bound: float) -> None:
    held = {
        name: Condition.model_validate({"fact": "tp", name: bound}).holds({"tp": fact})
        for name in OPERATORS
        if name != "one_of"
    }
    assert held["at_least"] != held["below"]
    assert held["at_most"] != held["above"]
    assert held["is"] == (held["at_least"] and held["at_most"])


@given(st.dictionaries(st.sampled_from(["tp", "pp", "fits"]), VALUES), st.lists(st.sampled_from([
    {"fact": "tp", "at_least": 2}, {"fact": "pp", "below": 8}, {"fact": "fits", "is": True},
]), max_size=3))  # fmt: skip
def test_more_conditions_never_make_more_hold(
    facts: dict[str, Any], conditions: list[dict[str, Any]]
) -> None:
    parsed = parse_conditions(conditions)
    assert applies([], facts)
    for length in range(len(parsed)):
        assert applies(parsed[:length], facts) >= applies(parsed[: length + 1], facts)


def test_matching_keeps_the_order_and_only_what_applies() -> None:
    books = [
        parse_playbook("tp", playbook(id=name, when=when))
        for name, when in (
            ("b", [{"fact": "tp", "above": 8}]),
            ("a", []),
            ("c", [{"fact": "tp", "above": 64}]),
            ("d", [{"fact": "tp", "above": 8}, {"fact": "architecture", "is": "moe"}]),
        )
    ]
    assert [entry.id for entry in matching({"tp": 16, "architecture": "dense"}, books)] == ["b", "a"]


@pytest.mark.parametrize(
    "wrong",
    [
        "tp > 8",
        {"above": 8},
        {"fact": "tensor_parallel", "above": 8},
        {"fact": "tp"},
        {"fact": "tp", "over": 8},
        {"fact": "tp", "is": 8, "above": 4},
        {"fact": "tp", "above": "8"},
        {"fact": "tp", "above": True},
        {"fact": "tp", "above": math.inf},
        {"fact": "architecture", "above": 8},
        {"fact": "architecture", "is": 8},
        {"fact": "fits", "is": "yes"},
        {"fact": "recompute", "one_of": []},
        {"fact": "recompute", "one_of": "none"},
        {"fact": "tp", "one_of": [2, "4"]},
        {"fact": "tp", "is": [2, 4]},
        {"fact": "fits", "is": [True]},
    ],
)
def test_a_condition_that_could_never_hold_is_refused(wrong: object) -> None:
    with pytest.raises(InputError, match=r"when\[0\]"):
        parse_playbook("tp", playbook(when=[wrong]))


@given(st.sampled_from(sorted(FACTS)))
def test_every_fact_can_be_asked_for(fact: str) -> None:
    accepted = []
    for value in (True, 8, "x"):
        try:
            parse_playbook("tp", playbook(when=[{"fact": fact, "is": value}]))
        except InputError:
            continue
        accepted.append(value)
    assert len(accepted) == 1
