"""Predictions in the contract's shape, for any number of scenarios at once."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.coefficients import RowKeys, resolve
from tools.cost.encode import encode
from tools.cost.evaluate import Costs, evaluate
from tools.cost.inputs import Array, Inputs
from tools.cost.intervals import interval
from tools.cost.memory import GIB
from tools.cost.memory_settings import memory_settings
from tools.cost.sizes import count_parameters, model_flops_per_token
from tools.cost.step import Breakdown
from tools.scenario.spec import Scenario

Prediction = dict[str, Any]

BOTTLENECKS = {
    "compute": ("compute",),
    "memory": ("memory_bound_ops", "optimizer"),
    "communication": (
        "tp_comm_exposed",
        "cp_comm_exposed",
        "ep_comm_exposed",
        "dp_comm_exposed",
        "pp_comm_exposed",
    ),
    "pipeline": ("pipeline_bubble",),
    "host": ("host_and_other",),
}


@dataclass(frozen=True)
class Batch:
    """Rows and everything computed about them."""

    inputs: Inputs
    keys: RowKeys
    costs: Costs
    low_s: Array
    high_s: Array


def predict(scenarios: Sequence[Scenario], calibration: Calibration | None = None) -> list[Prediction]:
    """One prediction a scenario, in order; `calibration` replaces the constants that come with ASAP.

    `id` is the scenario's. `fits` says whether `peak_memory_gib`, the sum of `memory_gib`, is there.
    `step_time_s` is the sum of `breakdown_s`; 80% of published runs lie between `step_time_low_s` and
    `step_time_high_s`. `bottleneck` is compute, memory, communication, pipeline or host. `mfu` is
    `model_tflops_per_device` over the device's peak; `tokens_per_s_per_device` counts tokens of the batch.
    `parameters` counts the model's, `active_parameters` those that one token uses.
    """
    if not scenarios:
        return []
    x, keys = encode(scenarios)
    batch = predict_rows(x, keys, [s.training.precision for s in scenarios], calibration)
    table = _tabulate(batch)
    return [
        {
            "id": scenario.id,
            **{name: column[row] for name, column in table.items()},
            **_parameters(scenario),
            **_nested(batch, row),
        }
        for row, scenario in enumerate(scenarios)
    ]


def predict_rows(
    x: Inputs, keys: RowKeys, precisions: Sequence[str], calibration: Calibration | None = None
) -> Batch:
    """Rows given as arrays; `keys` and `precisions` have one entry a row, or one for all rows."""
    calibration = calibration or shipped_calibration()
    settings = memory_settings(keys.framework, precisions)
    costs = evaluate(x, resolve(keys, calibration.shifts), settings)
    low, high = interval(calibration.intervals, x, keys, costs.step_time_s)
    return Batch(x, keys, costs, low, high)


def bottlenecks(breakdown: Breakdown, fits: NDArray[np.bool_]) -> list[str]:
    """The largest kind of cost of each row; memory where the plan does not fit at all."""
    names = list(BOTTLENECKS)
    sums = np.stack([sum(getattr(breakdown, part) for part in BOTTLENECKS[name]) for name in names])
    largest = np.where(fits, np.argmax(sums, axis=0), names.index("memory"))
    return [names[i] for i in largest]


def _tabulate(batch: Batch) -> dict[str, list[object]]:
    x, costs = batch.inputs, batch.costs
    rate = x.batch * x.seq / costs.step_time_s / x.devices
    flops = rate * model_flops_per_token(x)
    columns = {
        "step_time_s": costs.step_time_s,
        "step_time_low_s": batch.low_s,
        "step_time_high_s": batch.high_s,
        "tokens_per_s_per_device": rate,
        "model_tflops_per_device": flops / 1e12,
        "mfu": flops / x.gemm_peak,
        "peak_memory_gib": costs.memory_bytes / GIB,
    }
    shape = costs.fits.shape
    return {
        "fits": costs.fits.tolist(),
        **{name: np.broadcast_to(column, shape).tolist() for name, column in columns.items()},
        "bottleneck": [*bottlenecks(costs.breakdown, costs.fits)],
    }


def _parameters(scenario: Scenario) -> dict[str, int]:
    count = count_parameters(scenario.model)
    return {"parameters": count.total, "active_parameters": count.active}


def _nested(batch: Batch, row: int) -> dict[str, dict[str, float]]:
    breakdown, memory = batch.costs.breakdown, batch.costs.memory
    return {
        "breakdown_s": {f.name: float(getattr(breakdown, f.name)[row]) for f in fields(breakdown)},
        "memory_gib": {f.name: float(getattr(memory, f.name)[row]) / GIB for f in fields(memory)},
    }
