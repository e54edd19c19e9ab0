"""Predictions in the contract's shape, and what is called the bottleneck."""

from dataclasses import fields

import numpy as np
import pytest

from tests.unit.physics.scenes import scene
from tools.model.predict import bottlenecks, predict
from tools.physics.step import StepTerms


def breakdown(**parts: float) -> StepTerms:
    return StepTerms(*(np.array([parts.get(f.name, 1.0)]) for f in fields(StepTerms)))


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


def test_mfu_is_model_flops_over_the_peak_of_the_run_s_precision() -> None:
    for precision, peak_tflops in (("bf16", 989.4), ("fp8", 1978.9)):
        prediction = predict([scene(precision=precision).scenario])[0]
        assert prediction.mfu == pytest.approx(prediction.model_tflops_per_device / peak_tflops)
