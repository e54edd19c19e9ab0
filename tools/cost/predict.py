"""The cost model as one call: arrays or scenarios in; step time, memory, resolved recomputation and
intervals out.

Long batches are cut into blocks that stay in the processor's cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tools.cost.calibration import Calibration, interval, shipped_calibration
from tools.cost.constants import Coefficients, RowKeys, resolve
from tools.cost.encode import encode
from tools.cost.inputs import Array, Inputs
from tools.cost.memory import GIB, Memory, MemorySettings, memory_bytes, memory_settings
from tools.cost.sizes import count_parameters, model_flops_per_token
from tools.cost.step import Breakdown, step_breakdown
from tools.scenario.spec import Scenario

BLOCK_ROWS = 8192
"""Blocks of 64 KiB an array: about fifty live arrays fit into the second-level cache."""

NOT_STATED, NONE, SELECTIVE, FULL = -1.0, 0.0, 1.0, 2.0

Part = TypeVar("Part", Breakdown, Memory)


@dataclass(frozen=True)
class Costs:
    """One entry a row."""

    breakdown: Breakdown
    memory: Memory
    step_time_s: Array
    memory_bytes: Array
    recompute: Array
    fits: NDArray[np.bool_]


def evaluate(x: Inputs, c: Coefficients, s: MemorySettings) -> Costs:
    """Every row of `x`; a scalar input gives arrays of length one."""
    rows = x.size
    if rows <= BLOCK_ROWS:
        return _evaluate_block(x, c, s, rows)
    starts = range(0, rows, BLOCK_ROWS)
    return _joined([_evaluate_slice(x, c, s, slice(i, min(i + BLOCK_ROWS, rows))) for i in starts])


def _evaluate_slice(x: Inputs, c: Coefficients, s: MemorySettings, rows: slice) -> Costs:
    return _evaluate_block(x.take(rows), c.take(rows), s.take(rows), rows.stop - rows.start)


def _evaluate_block(x: Inputs, c: Coefficients, s: MemorySettings, rows: int) -> Costs:
    x = resolve_recompute(x, s)
    breakdown, memory = step_breakdown(x, c), memory_bytes(x, s)
    total = memory.total
    return Costs(
        breakdown=_full(breakdown, rows),
        memory=_full(memory, rows),
        step_time_s=_broadcast(breakdown.total, rows),
        memory_bytes=_broadcast(total, rows),
        recompute=_broadcast(x.recompute, rows),
        fits=np.broadcast_to(total <= x.memory_bytes, rows),
    )


def resolve_recompute(x: Inputs, s: MemorySettings) -> Inputs:
    """Where recomputation is not stated: none if that fits, else selective if that fits, else full."""
    open_rows = x.recompute == NOT_STATED
    if not np.any(open_rows):
        return x
    chosen = np.full(np.broadcast_shapes(np.shape(x.recompute), np.shape(x.tp)), FULL)
    for code in (SELECTIVE, NONE):
        fitting = memory_bytes(x.with_recompute(np.asarray(code)), s).total <= x.memory_bytes
        chosen = np.where(fitting, code, chosen)
    return x.with_recompute(np.where(open_rows, chosen, x.recompute))


def _broadcast(value: Array, rows: int) -> Array:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (rows,))


def _full(part: Part, rows: int) -> Part:
    return type(part)(*(_broadcast(getattr(part, f.name), rows) for f in fields(part)))


def _joined(blocks: list[Costs]) -> Costs:
    def join(name: str) -> Array:
        return np.concatenate([getattr(b, name) for b in blocks])

    return Costs(
        breakdown=_joined_part(Breakdown, [b.breakdown for b in blocks]),
        memory=_joined_part(Memory, [b.memory for b in blocks]),
        step_time_s=join("step_time_s"),
        memory_bytes=join("memory_bytes"),
        recompute=join("recompute"),
        fits=np.concatenate([b.fits for b in blocks]),
    )


def _joined_part(kind: type[Part], parts: list[Part]) -> Part:
    return kind(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(kind)))


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
