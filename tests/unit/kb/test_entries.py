"""What may be stored as a case: its fields, and bounds of length, depth and characters."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kb.samples import own_case
from tools.errors import InputError
from tools.kb.entries import parse_case

NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)
DEEP: list[Any] = []
for _ in range(5000):
    DEEP = [DEEP]


@given(JSON)
def test_what_is_accepted_survives_json_and_utf8(value: object) -> None:
    try:
        scenario = parse_case(own_case(scenario={"x": value})).scenario
    except InputError:
        return
    assert scenario == {"x": value}
    assert json.loads(json.dumps(scenario, allow_nan=False).encode("utf-8")) == scenario


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": "../etc"}, "id"),
        ({"id": "x" * 101}, "id"),
        ({"story": None}, "story"),
        ({"story": "x" * 4001}, "story"),
        ({"status": "certain"}, "status"),
        ({"device": "h1000"}, "device"),
        ({"framework": "torchtitain"}, "framework"),
        ({"before": {"tp": "8"}}, "before.tp"),
        ({"after": {"speed": 1}}, "after.speed"),
        ({"scenario": "text"}, "scenario"),
        ({"scenario": {"notes": "x" * 4001}}, "scenario.notes"),
        ({"scenario": {"deep": DEEP}}, "scenario.deep" + ".0" * 7),
        ({"predicted": {"step_time_s": float("nan")}}, "predicted.step_time_s"),
        ({"history": []}, "history"),
        ({"scenario": {str(n): "x" * 3000 for n in range(30)}}, "the case"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_case_names_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_case(own_case(**changes))
    assert caught.value.path == field
    assert len(str(caught.value)) < 5000
