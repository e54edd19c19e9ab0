"""What-if answers any address: a prediction, or the field that cannot be."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.planner.what_if import ask, controls_of, find_winner
from service.sessions.pages.new import EXAMPLE
from tools.recommend.optimize import workload_of
from tools.scenario import parse_scenario


def asked(**given: str) -> Any:  # noqa: ANN401 - an Answer
    workload = workload_of(parse_scenario(EXAMPLE))
    assert workload.scenario.plan is not None
    return ask(workload, workload.scenario.plan, given)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tp": "3"}, "plan"),
        ({"tp": "x"}, "tp"),
        ({"tp": "16", "pp": "16"}, "plan"),
        ({"inter": "-1"}, "inter"),
        ({"inter": "nan"}, "inter"),
        ({"num_devices": "0"}, "num_devices"),
        ({"device": "abacus"}, "cluster.device"),
        ({"precision": "nvfp4"}, "precision"),
        ({"recompute": "some"}, "plan.recompute"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(given: dict[str, str], field: str) -> None:
    answer = asked(**given)
    assert answer.variant is None
    assert answer.refusal.path.startswith(field)


@given(
    st.dictionaries(
        st.sampled_from(["tp", "pp", "cp", "vpp", "inter", "num_devices", "zero_stage"]), st.text(max_size=6)
    )
)
def test_whatever_the_address_says_is_answered(given: dict[str, str]) -> None:
    answer = asked(**given)
    assert (answer.variant is None) == (answer.refusal is not None)


def test_another_device_brings_its_own_figures_and_precisions() -> None:
    faster = asked(device="b200", precision="mxfp8")
    assert faster.ratio > 1.5
    assert faster.variant.capacity_gib > 1.5 * faster.start.capacity_gib
    controls = {
        control.name: control
        for control in controls_of(parse_scenario(EXAMPLE), {"device": "b200"})["Training"]
    }
    assert "nvfp4" in dict(controls["precision"].options)


def test_the_winner_is_the_fastest_plan_for_the_changed_facts() -> None:
    answer = asked(num_devices="128", memory="2")
    winner = find_winner(answer, None)
    assert winner.planned is not None
    assert winner.planned.prediction.step_time_s < answer.variant.prediction.step_time_s
    assert (
        winner.planned.plan.tp * winner.planned.plan.pp * winner.planned.plan.cp * winner.planned.plan.dp
        == 128
    )
    assert {change.field for change in winner.changes} & {"tp", "pp", "recompute", "vpp"}
    assert find_winner(asked(memory="0.25", num_devices="4", global_batch_size="8"), None).planned is None
