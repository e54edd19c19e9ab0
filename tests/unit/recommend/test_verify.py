"""Verification finds a wrong number, an illegal plan and one that does not fit, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.recommend.cases import llama, report
from tools.recommend.optimize import workload_of
from tools.recommend.proposal import recheck
from tools.recommend.report import Recommendation, Verification
from tools.scenario import parse_scenario

WORKLOAD = workload_of(parse_scenario(llama(), need_plan=False))


def checked(change: Callable[[Any], object] | None = None) -> Verification:
    """What is found in the report of the tools, or in one that was spoilt on the way."""
    data = report(llama())
    if change:
        change(data)
    stated = Recommendation.model_validate(data)
    return recheck(WORKLOAD, stated.proposals, stated.baseline)


def test_a_report_of_the_tools_holds_in_every_number() -> None:
    result = checked()
    assert result.holds
    assert result.faults == []
    assert result.checked > 100


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("proposals", 0, "speedup"), 2.58),
        (("proposals", 1, "prediction", "step_time_s"), 1.0),
        (("proposals", 2, "prediction", "memory_gib", "activations"), 0.0),
        (("proposals", 0, "prediction", "fits"), False),
        (("proposals", 0, "changes"), []),
        (("baseline", "mfu"), 0.9),
    ],
)
def test_one_wrong_number_is_found_and_named(path: tuple[Any, ...], value: object) -> None:
    def spoil(told: Any) -> None:  # noqa: ANN401 - JSON
        for name in path[:-1]:
            told = told[name]
        told[path[-1]] = value

    result = checked(spoil)
    assert not result.holds
    place = "baseline" if path[0] == "baseline" else f"proposals[{path[1]}]"
    assert all(fault.place.startswith(place) for fault in result.faults)


def test_a_change_that_the_plan_does_not_make_is_found() -> None:
    invented = {"field": "cp", "from": 1, "to": 99}
    result = checked(lambda told: told["proposals"][0]["changes"].append(invented))
    assert [fault.place.partition(".")[2][:8] for fault in result.faults] == ["changes["]


def test_a_plan_that_the_framework_refuses_is_found() -> None:
    result = checked(lambda told: told["proposals"][0]["plan"].update(ep=2))
    assert "refuses" in result.faults[0].says


def test_a_plan_that_does_not_fit_is_found() -> None:
    plan = {"tp": 1, "pp": 1, "vpp": 1, "dp": 64, "dp_shard": 64, "zero_stage": 1, "schedule": "1f1b"}
    plan |= {"sequence_parallel": False, "recompute": "none", "micro_batch_size": 2}
    result = checked(lambda told: told["proposals"][0]["plan"].update(plan))
    assert "GiB" in result.faults[0].says
