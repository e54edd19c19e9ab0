"""Predictions in the contract's shape, and what is called the bottleneck."""

from dataclasses import fields

import numpy as np
import pytest

from tests.unit.cost.scenes import scene
from tools.cost.predict import BOTTLENECKS, bottlenecks, predict
from tools.cost.step import Breakdown


def breakdown(**parts: float) -> Breakdown:
    return Breakdown(*(np.array([parts.get(f.name, 1.0)]) for f in fields(Breakdown)))


def test_every_part_of_the_step_belongs_to_one_bottleneck() -> None:
    named = [part for parts in BOTTLENECKS.values() for part in parts]
    assert sorted(named) == sorted(f.name for f in fields(Breakdown))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"compute": 9.0}, "compute"),
        ({"memory_bound_ops": 5.0, "optimizer": 4.0}, "memory"),
        ({"tp_comm_exposed": 2.0, "dp_comm_exposed": 2.0, "compute": 5.0}, "communication"),
        ({"pipeline_bubble": 9.0}, "pipeline"),
        ({"host_and_other": 9.0}, "host"),
    ],
)
def test_the_largest_kind_of_cost_is_the_bottleneck(parts: dict[str, float], expected: str) -> None:
    assert bottlenecks(breakdown(**parts), np.array([True])) == [expected]


def test_a_plan_that_does_not_fit_is_short_of_memory() -> None:
    assert bottlenecks(breakdown(compute=9.0), np.array([False])) == ["memory"]


@pytest.mark.parametrize("given", [None, "a run", 7, 0, ""])
def test_the_id_comes_back(given: object) -> None:
    scenario = scene().scenario.model_copy(update={"id": given})
    assert predict([scenario])[0].id == given


def test_mfu_is_model_flops_over_the_peak_of_the_run_s_precision() -> None:
    for precision, peak_tflops in (("bf16", 989.4), ("fp8", 1978.9)):
        prediction = predict([scene(precision=precision).scenario])[0]
        assert prediction.mfu == pytest.approx(prediction.model_tflops_per_device / peak_tflops)
