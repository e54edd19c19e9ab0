"""Reading a scenario: what is accepted, what is filled in."""

from typing import Any

import pytest

from tools.errors import InputError
from tools.scenario import Plan, parse_scenario
from tools.scenario.spec import TRAINING_OPTIONS


def parsed_plan(example: dict[str, Any]) -> Plan:
    plan = parse_scenario(example).plan
    assert plan is not None
    return plan


def test_the_contracts_example_is_read_as_written(example: dict[str, Any]) -> None:
    scenario = parse_scenario(example)
    assert scenario.model.model_dump() == scenario.model.model_dump() | example["model"]
    assert scenario.cluster.model_dump() == scenario.cluster.model_dump() | example["cluster"]
    assert scenario.training.model_dump(exclude=set(TRAINING_OPTIONS)) == example["training"]
    plan = parsed_plan(example)
    assert plan.model_dump() == example["plan"] | {"etp": 1, "schedule": "interleaved"}


def test_parsed_parts_cannot_be_changed(example: dict[str, Any]) -> None:
    plan = parsed_plan(example)
    with pytest.raises(ValueError, match="frozen"):
        plan.tp = 8  # type: ignore[misc]


def test_the_input_is_left_as_it_was(example: dict[str, Any]) -> None:
    before = repr(example)
    parse_scenario(example)
    assert repr(example) == before


def test_whole_floats_are_integers(example: dict[str, Any]) -> None:
    example["plan"]["micro_batch_size"] = 2.0
    micro_batch_size = parsed_plan(example).micro_batch_size
    assert (micro_batch_size, type(micro_batch_size)) == (2, int)


@pytest.mark.parametrize("value", [True, "4", 1.5, None, [4], {"size": 4}, float("nan"), float("inf")])
def test_other_types_are_not_integers(example: dict[str, Any], value: object) -> None:
    example["plan"]["tp"] = value
    with pytest.raises(InputError) as caught:
        parse_scenario(example)
    assert caught.value.field == "plan.tp"
    assert "an integer from 1 to 1,000,000" in str(caught.value)


def test_a_plan_is_needed_unless_the_caller_says_otherwise(example: dict[str, Any]) -> None:
    del example["plan"]
    assert parse_scenario(example, need_plan=False).plan is None
    with pytest.raises(InputError) as caught:
        parse_scenario(example)
    assert caught.value.field == "plan"


def test_a_plan_that_is_given_is_checked_even_where_none_is_needed(example: dict[str, Any]) -> None:
    example["plan"]["tp"] = 3
    with pytest.raises(InputError):
        parse_scenario(example, need_plan=False)


@pytest.mark.parametrize("given", ["row-7", 7, 7.5, None])
def test_the_id_is_repeated(example: dict[str, Any], given: object) -> None:
    assert parse_scenario(example | {"id": given}).id == given


@pytest.mark.parametrize("given", [True, ["a"], "x" * 201, float("nan")])
def test_an_id_is_short_and_plain(example: dict[str, Any], given: object) -> None:
    with pytest.raises(InputError) as caught:
        parse_scenario(example | {"id": given})
    assert caught.value.field == "id"


def test_constraints_traces_and_notes_are_carried_along(example: dict[str, Any]) -> None:
    scenario = parse_scenario(example | {"constraints": {"tp": [4, 8]}, "traces": "runs/a", "notes": "slow"})
    assert (scenario.constraints, scenario.traces, scenario.notes) == ({"tp": [4, 8]}, "runs/a", "slow")


@pytest.mark.parametrize(("name", "value"), [("constraints", []), ("traces", 3), ("notes", {})])
def test_extras_have_types_too(example: dict[str, Any], name: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        parse_scenario(example | {name: value})
    assert caught.value.field == name


def test_the_node_size_comes_from_the_device_where_not_stated(example: dict[str, Any]) -> None:
    example["cluster"]["devices_per_node"] = None
    assert parse_scenario(example).cluster.devices_per_node == 8


def test_an_alias_of_a_device_is_replaced_by_its_name(example: dict[str, Any]) -> None:
    example["cluster"]["device"] = "H100-SXM-80GB"
    assert parse_scenario(example).cluster.device == "h100-sxm-80gb"


def test_whether_the_zero_stage_was_published_does_not_matter(example: dict[str, Any]) -> None:
    expected = parse_scenario(example)
    example["plan"]["zero_stage_known"] = False
    assert parse_scenario(example) == expected


def test_topology_is_read_under_its_synonyms(example: dict[str, Any]) -> None:
    example["cluster"]["topology"] = {"kind": "fat-tree", "oversubscription": 2, "fast_domain_devices": 72}
    topology = parse_scenario(example).cluster.topology
    assert topology is not None
    assert (topology.network, topology.oversubscription, topology.nvlink_domain_size) == ("fat-tree", 2.0, 72)


@pytest.mark.parametrize(
    ("topology", "field"),
    [
        ({"oversubscripton": 2}, "cluster.topology.oversubscripton"),
        ({"network": "ring"}, "cluster.topology.network"),
        ({"oversubscription": 0.5}, "cluster.topology.oversubscription"),
        ({"torus_dimensions": [4, 4, 3]}, "cluster.topology.torus_dimensions"),
        ({"torus_dimensions": [-8, -8]}, "cluster.topology.torus_dimensions"),
        ({"torus_dimensions": 64}, "cluster.topology.torus_dimensions"),
        ([], "cluster.topology"),
    ],
)
def test_a_wrong_topology_names_its_field(example: dict[str, Any], topology: object, field: str) -> None:
    example["cluster"]["topology"] = topology
    with pytest.raises(InputError) as caught:
        parse_scenario(example)
    assert caught.value.field == field


def test_a_torus_of_the_right_size_is_accepted(example: dict[str, Any]) -> None:
    example["cluster"]["topology"] = {"network": "torus", "torus_dimensions": [4, 4, 4]}
    topology = parse_scenario(example).cluster.topology
    assert topology is not None
    assert topology.torus_dimensions == (4, 4, 4)
