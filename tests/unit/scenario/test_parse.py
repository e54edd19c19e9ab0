"""Reading a scenario: what is accepted, what is filled in, and which options are kept but not priced."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.scenario.conftest import ABSENT, Changes, example, parsed, parsed_plan
from tools.cost.predict import predict
from tools.errors import InputError
from tools.nightly.night import contract_of
from tools.scenario import parse_scenario
from tools.scenario.model import Record
from tools.scenario.spec import TRAINING_OPTIONS

PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "groundtruth"


def test_the_contracts_example_is_read_as_written() -> None:
    scenario, stated = parsed(), example()
    for part in ("model", "cluster", "training"):
        kept: Record = getattr(scenario, part)
        assert kept.model_dump().items() >= stated[part].items()
    assert parsed_plan().model_dump() == stated["plan"] | {"etp": 1, "schedule": "interleaved"}
    assert stated == example(), "the input is left as it was"


def test_parsed_parts_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parsed_plan().tp = 8  # type: ignore[misc]


@pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the shared folder with published measurements is not here"
)
@pytest.mark.parametrize(("file", "at_least"), [("dev", 500), ("sweeps", 1000), ("older_releases", 50)])
def test_every_published_configuration_that_ran_is_accepted(file: str, at_least: int) -> None:
    """A plan of a sweep that crashed may be refused, but only because it breaks a rule of its framework."""
    rows = [json.loads(line) for line in (PUBLISHED / f"{file}.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) > at_least
    for row in rows:
        refused_field = None
        try:
            parse_scenario(row["scenario"])
        except InputError as error:
            refused_field = error.field
        assert refused_field is None or (row.get("crashed"), refused_field) == (True, "plan.pp"), row["id"]


def test_whole_floats_are_integers() -> None:
    micro_batch_size = parsed_plan({"plan.micro_batch_size": 2.0}).micro_batch_size
    assert (micro_batch_size, type(micro_batch_size)) == (2, int)


def test_a_plan_may_be_left_out_if_the_caller_says_so_but_a_stated_one_is_checked() -> None:
    assert parse_scenario(example({"plan": ABSENT}), need_plan=False).plan is None
    with pytest.raises(InputError):
        parse_scenario(example({"plan.tp": 3}), need_plan=False)


@pytest.mark.parametrize("value", ["row-7", 7, 7.5, None])
def test_the_id_is_repeated(value: object) -> None:
    assert parsed({"id": value}).id == value


def test_constraints_traces_and_notes_are_carried_along() -> None:
    scenario = parsed({"constraints": {"tp": [4, 8]}, "traces": "runs/a", "notes": "slow"})
    assert (scenario.constraints, scenario.traces, scenario.notes) == ({"tp": [4, 8]}, "runs/a", "slow")


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster.devices_per_node": None},  # the device's own
        {"cluster.device": "H100-SXM-80GB"},  # another spelling
        {"plan.zero_stage_known": False},  # whether it was published does not matter
        {"plan.ep": ABSENT, "plan.dp_shard": ABSENT},  # a dense model, sharded over all ranks
        {"model.rope_theta": 5e5, "model.torch_dtype": "bfloat16"},  # a configuration's other fields
    ],
    ids=lambda changes: ", ".join(changes),
)
def test_what_is_stated_otherwise_or_left_out_makes_the_same_scenario(changes: Changes) -> None:
    assert parsed(changes) == parsed()


@pytest.mark.parametrize(
    ("stated", "kept"),
    [
        (
            {"kind": "fat-tree", "oversubscription": 2, "fast_domain_devices": 72},
            {"network": "fat-tree", "oversubscription": 2.0, "nvlink_domain_size": 72},
        ),
        ({"network": "torus", "torus_dimensions": [4, 4, 4]}, {"torus_dimensions": (4, 4, 4)}),
    ],
)
def test_topology_is_read_under_its_synonyms(stated: dict[str, Any], kept: dict[str, Any]) -> None:
    topology = parsed({"cluster.topology": stated}).cluster.topology
    assert topology is not None
    assert topology.model_dump().items() >= kept.items()


OPTIONS: list[tuple[str, object, str]] = [
    ("software_date", "2026-06", "2026-06"),
    ("moe_dispatcher", "deepep", "deepep"),
    ("overlap_moe_communication", True, "on"),
    ("overlap_tensor_communication", False, "off"),
    ("overlap_gradient_communication", True, "on"),
    ("cuda_graph", False, "off"),
    ("fused_loss", True, "on"),
    ("capacity_factor", 1.25, "1.25"),
    ("optimizer_offload", True, "on"),
    ("lora", {"rank": 16, "targets": ["attention", "mlp"]}, "rank 16 on attention and mlp"),
    ("lora", {"rank": 8.0}, "rank 8 on attention and mlp"),
]
DIGEST_OF_EXAMPLE = "5bf8d5988840d997"
"""As stored by version 0.1, which had none of the options."""


@pytest.mark.parametrize(("name", "value", "text"), OPTIONS)
def test_an_option_is_kept_and_shown(name: str, value: object, text: str) -> None:
    plain, stated = parsed(), parsed({f"training.{name}": value})
    assert (plain.training.options(), stated.training.options()) == ({}, {name: text})
    assert contract_of(stated) != contract_of(plain) == DIGEST_OF_EXAMPLE
    dumped = stated.model_dump(mode="json", exclude={"constraints"})
    assert parse_scenario(dumped).training == stated.training


@pytest.mark.parametrize("name", sorted({*TRAINING_OPTIONS} - {"optimizer_offload"}))
def test_null_means_not_stated(name: str) -> None:
    assert parsed({f"training.{name}": None}).training.options() == {}


def test_the_clusters_name_is_kept_and_changes_no_prediction() -> None:
    plain, named = parsed(), parsed({"cluster.name": "gamma-west"})
    assert (plain.cluster.name, named.cluster.name) == (None, "gamma-west")
    assert predict([named]) == predict([plain])


@pytest.mark.parametrize("device", ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e"])
def test_int8_is_a_precision_of_tpus(device: str) -> None:
    plan = {"tp": 1, "pp": 1, "cp": 1, "dp": 64, "zero_stage": 3, "micro_batch_size": 1}
    changes = {
        "cluster": {"device": device, "num_devices": 64},
        "plan": plan,
        "training.framework": "maxtext",
    }
    faster, slower = predict([parsed(changes | {"training.precision": name}) for name in ("int8", "bf16")])
    assert faster.breakdown_s["compute"] <= slower.breakdown_s["compute"]
