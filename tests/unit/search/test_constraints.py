"""What users may forbid, and the error for a constraint that makes no sense."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from tests.unit.search.scenes import scenario
from tools.errors import InputError
from tools.scenario import Plan
from tools.search.constraints import parse_constraints
from tools.search.search import Search

TODAY = {
    "tp": 2, "pp": 2, "cp": 1, "ep": 1, "dp": 3, "dp_shard": 3, "zero_stage": 1, "micro_batch_size": 1,
}  # fmt: skip


def today() -> Plan:
    plan = scenario("megatron-core", moe=False, plan=TODAY).plan
    assert plan is not None
    return plan


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
    constraints = parse_constraints({"tp": stated}, None)
    assert [value for value in (1, 2, 4, 8, 16) if constraints.permits("tp", value)] == permitted
    assert (constraints.describe("tp"), constraints.fields) == (text, ("tp",))


BAD: dict[str, list[dict[str, Any]]] = {
    "tpp": [{"tpp": 4}],
    "a?b": [{"a\nb": 1}],
    "max_memory": [{"max_memory": 0.9}],
    "tp": [
        *(
            {"tp": value}
            for value in (0, -2, 10**30, "4", True, 2.5, [], [2, None], [[2]], {}, {"min": None})
        ),
        {"keep_checkpoint_layout": True, "tp": 4},
        {"keep_checkpoint_layout": True, "tp": {"not": [2]}},
    ],
    "tp.least": [{"tp": {"least": 2}}],
    "tp.min": [{"tp": {"min": 0}}, {"tp": {"min": 8, "max": 4}}],
    "tp.max": [{"tp": {"max": "8"}}],
    "tp.not": [{"tp": {"not": []}}, {"tp": {"not": [2, "x"]}}],
    "recompute": [{"recompute": "some"}, {"recompute": ["none", 1]}],
    "recompute.min": [{"recompute": {"min": "none"}}],
    "recompute.not": [{"recompute": {"not": ["none", "selective", "full"]}}],
    "sequence_parallel": [{"sequence_parallel": 1}],
    "sequence_parallel.not": [{"sequence_parallel": {"not": [True, False]}}],
    "space": [{"space": "some"}, {"space": ["all"]}],
    "zero_stage": [{"zero_stage": 4}],
    "schedule": [{"schedule": "fastest"}],
    "max_memory_fraction": [{"max_memory_fraction": value} for value in (0, 1.01, "0.9", True)],
    "max_changes": [{"max_changes": value} for value in (-1, 1.5, True)],
    "keep_checkpoint_layout": [{"keep_checkpoint_layout": "yes"}],
}


@pytest.mark.parametrize(
    ("field", "constraints"), [(field, bad) for field in BAD for bad in BAD[field]], ids=str
)
def test_a_bad_constraint_is_named(field: str, constraints: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        parse_constraints(constraints, today())
    assert caught.value.path == f"constraints.{field}"


@pytest.mark.parametrize(
    ("constraints", "says"),
    [
        ({"max_changes": 1}, "constraints.max_changes"),
        ({"keep_checkpoint_layout": True}, "constraints.keep_checkpoint_layout"),
        ({"micro_batchsize": 1}, "micro_batch_size"),
    ],
)
def test_what_refers_to_today_needs_a_plan_and_a_misspelt_field_is_answered_with_the_nearest(
    constraints: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        parse_constraints(constraints, None)


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
        field = error.path
    assert field is None or f"{field}.".startswith(f"constraints.{name}.")
    assert field is not None or name != "x"


def test_a_combination_to_avoid_is_left_out_as_a_whole_and_its_parts_are_not() -> None:
    free = scenario("megatron-core", moe=False, plan=TODAY)
    best = Search(free, parse_constraints({}, free.plan)).run().best
    first = best.plans.plan(0).model_dump()
    avoided: dict[str, JsonValue] = {name: first[name] for name in ("tp", "micro_batch_size")}
    constraints = parse_constraints({"avoid": [avoided]}, free.plan)
    left = Search(free, constraints).run().best.plans
    rows = [left.plan(row).model_dump() for row in range(left.rows)]
    assert rows
    assert not any(all(row[name] == value for name, value in avoided.items()) for row in rows)
