"""When a playbook applies."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kb.samples import playbook
from tools.errors import InputError
from tools.kb.conditions import applies, parse_conditions
from tools.kb.seed import parse_playbook

NUMBERS = st.integers(-(10**6), 10**6) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.none() | st.booleans() | NUMBERS | st.text(max_size=5)


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
