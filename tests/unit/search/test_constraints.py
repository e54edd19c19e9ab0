"""What users may forbid, and the error for a constraint that makes no sense."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from tests.unit.search.scenes import scenario
from tools.errors import InputError
from tools.scenario import Plan
from tools.search.constraints import DEFAULT_MEMORY_FRACTION, parse_constraints

TODAY = {
    "tp": 2, "pp": 2, "cp": 1, "ep": 1, "dp": 3, "dp_shard": 3, "zero_stage": 1, "micro_batch_size": 1,
}  # fmt: skip


def today() -> Plan:
    plan = scenario("megatron-core", moe=False, plan=TODAY).plan
    assert plan is not None
    return plan


def test_nothing_given_forbids_nothing() -> None:
    found = parse_constraints({}, None)
    assert (dict(found.allowed), found.max_changes) == ({}, None)
    assert found.max_memory_fraction == DEFAULT_MEMORY_FRACTION


def test_a_value_and_a_list_of_values_are_read_alike() -> None:
    found = parse_constraints({"tp": [4, 8], "pp": 2, "recompute": "none", "cp": 2.0, "ep": None}, None)
    assert dict(found.allowed) == {"tp": (4, 8), "pp": (2,), "recompute": ("none",), "cp": (2,)}


@pytest.mark.parametrize(
    ("stated", "permitted", "text"),
    [
        ({"not": [2, 8]}, [1, 4, 16], "not 2 or 8"),
        ({"not": 2}, [1, 4, 8, 16], "not 2"),
        ({"min": 2.0}, [2, 4, 8, 16], "at least 2"),
        ({"max": 8, "min": None}, [1, 2, 4, 8], "at most 8"),
        ({"min": 2, "max": 8, "not": [4]}, [2, 8], "not 4, at least 2, at most 8"),
        ([4, 8], [4, 8], "4 or 8"),
    ],
    ids=str,
)
def test_exclusions_and_bounds_of_a_field(stated: Any, permitted: list[int], text: str) -> None:  # noqa: ANN401
    found = parse_constraints({"tp": stated}, None)
    assert [value for value in (1, 2, 4, 8, 16) if found.permits("tp", value)] == permitted
    assert (found.describe("tp"), found.fields) == (text, ("tp",))


@pytest.mark.parametrize(("given_constraints", "space"), [({}, "practice"), ({"space": "all"}, "all")])
def test_the_space_is_stored(given_constraints: dict[str, Any], space: str) -> None:
    assert parse_constraints(given_constraints, None).space == space


def test_keeping_the_checkpoint_layout_fixes_tensor_and_pipeline_degrees() -> None:
    found = parse_constraints({"keep_checkpoint_layout": True, "tp": [2, 4]}, today())
    assert dict(found.allowed) == {"tp": (2,), "pp": (2,)}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tpp": 4}, "constraints.tpp"),
    ({"max_memory": 0.9}, "constraints.max_memory"),
    ({"tp": 0}, "constraints.tp"),
    ({"tp": -2}, "constraints.tp"),
    ({"tp": 10**30}, "constraints.tp"),
    ({"tp": "4"}, "constraints.tp"),
    ({"tp": True}, "constraints.tp"),
    ({"tp": 2.5}, "constraints.tp"),
    ({"tp": []}, "constraints.tp"),
    ({"tp": [2, None]}, "constraints.tp"),
    ({"tp": {}}, "constraints.tp"),
    ({"tp": {"min": None}}, "constraints.tp"),
    ({"tp": {"least": 2}}, "constraints.tp.least"),
    ({"tp": {"min": 0}}, "constraints.tp.min"),
    ({"tp": {"max": "8"}}, "constraints.tp.max"),
    ({"tp": {"min": 8, "max": 4}}, "constraints.tp.min"),
    ({"tp": {"not": []}}, "constraints.tp.not"),
    ({"tp": {"not": [2, "x"]}}, "constraints.tp.not"),
    ({"recompute": {"min": "none"}}, "constraints.recompute.min"),
    ({"recompute": {"not": ["none", "selective", "full"]}}, "constraints.recompute.not"),
    ({"sequence_parallel": {"not": [True, False]}}, "constraints.sequence_parallel.not"),
    ({"space": "some"}, "constraints.space"),
    ({"space": ["all"]}, "constraints.space"),
    ({"keep_checkpoint_layout": True, "tp": {"not": [2]}}, "constraints.tp"),
    ({"tp": [[2]]}, "constraints.tp"),
    ({"zero_stage": 4}, "constraints.zero_stage"),
    ({"recompute": "some"}, "constraints.recompute"),
    ({"recompute": ["none", 1]}, "constraints.recompute"),
    ({"schedule": "fastest"}, "constraints.schedule"),
    ({"sequence_parallel": 1}, "constraints.sequence_parallel"),
    ({"max_memory_fraction": 0}, "constraints.max_memory_fraction"),
    ({"max_memory_fraction": 1.01}, "constraints.max_memory_fraction"),
    ({"max_memory_fraction": "0.9"}, "constraints.max_memory_fraction"),
    ({"max_memory_fraction": True}, "constraints.max_memory_fraction"),
    ({"max_changes": -1}, "constraints.max_changes"),
    ({"max_changes": 1.5}, "constraints.max_changes"),
    ({"max_changes": True}, "constraints.max_changes"),
    ({"keep_checkpoint_layout": "yes"}, "constraints.keep_checkpoint_layout"),
    ({"keep_checkpoint_layout": True, "tp": 4}, "constraints.tp"),
]


@pytest.mark.parametrize(("given_constraints", "field"), BAD, ids=str)
def test_a_bad_constraint_is_named(given_constraints: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_constraints(given_constraints, today())
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["max_changes", "keep_checkpoint_layout"])
def test_what_refers_to_today_needs_a_plan(name: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_constraints({name: True if name == "keep_checkpoint_layout" else 1}, None)
    assert caught.value.field == f"constraints.{name}"


def test_a_misspelt_field_is_told_its_neighbour() -> None:
    with pytest.raises(InputError, match="micro_batch_size"):
        parse_constraints({"micro_batchsize": 1}, None)


def test_a_made_up_field_is_told_on_one_line() -> None:
    with pytest.raises(InputError) as caught:
        parse_constraints({"a\nb": 1}, None)
    assert caught.value.field == "constraints.a?b"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=200)
@given(name=st.sampled_from([*Plan.model_fields, "max_changes", "max_memory_fraction", "x"]), value=JSON)
def test_any_json_is_a_constraint_or_an_input_error_about_it(name: str, value: JsonValue) -> None:
    field = None
    try:
        parse_constraints({name: value}, today())
    except InputError as error:
        field = error.field
    assert field is None or f"{field}.".startswith(f"constraints.{name}.")
    assert field is not None or name != "x"
