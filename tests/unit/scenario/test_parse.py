"""Reading a scenario: what is accepted, what is filled in, and which options are kept but not priced."""

import pytest

from tests.unit.scenario.conftest import ABSENT, Changes, example, parsed, parsed_plan
from tools.errors import InputError
from tools.model.predict import predict
from tools.scenario import parse_scenario
from tools.scenario.fields import StrictModel


def test_the_contracts_example_is_read_as_written() -> None:
    scenario, stated = parsed(), example()
    for part in ("model", "cluster", "training"):
        kept: StrictModel = getattr(scenario, part)
        assert kept.model_dump().items() >= stated[part].items()
    assert parsed_plan().model_dump() == stated["plan"] | {"etp": 1, "schedule": "interleaved"}
    assert stated == example(), "the input is left as it was"


def test_a_plan_may_be_left_out_if_the_caller_says_so_but_a_stated_one_is_checked() -> None:
    assert parse_scenario(example({"plan": ABSENT}), need_plan=False).plan is None
    with pytest.raises(InputError):
        parse_scenario(example({"plan.tp": 3}), need_plan=False)


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


def test_the_clusters_name_is_kept_and_changes_no_prediction() -> None:
    plain, named = parsed(), parsed({"cluster.name": "gamma-west"})
    assert (plain.cluster.name, named.cluster.name) == (None, "gamma-west")
    assert predict([named]) == predict([plain])
