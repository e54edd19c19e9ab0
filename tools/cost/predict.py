"""The cost model as one call: arrays or scenarios in; step time, memory, resolved recomputation and
intervals out.

Long batches are cut into blocks that stay in the processor's cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tools.cost.arithmetic import is_any, maximum, number, where
from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.constants import Coefficients, RowKeys
from tools.cost.encode import encode
from tools.cost.inputs import Array, Inputs
from tools.cost.memory import GIB, Memory, MemorySettings, activity_bytes, memory_bytes, state_bytes
from tools.cost.sizes import count_parameters, model_flops_per_token
from tools.cost.step import Breakdown, step_breakdown
from tools.cost.terms import Bottleneck
from tools.scenario.spec import Result, Scenario

BLOCK_ROWS = 16384
"""Blocks of 128 KiB per array: what is at work at a time fits into the second-level cache."""

NOT_STATED, NONE, SELECTIVE, FULL = -1.0, 0.0, 1.0, 2.0

Part = TypeVar("Part", Breakdown, Memory)


@dataclass(frozen=True)
class Costs:
    """One entry per row."""

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
        fits=np.broadcast_to(total <= x.memory_bytes, (rows,)),
    )


def resolve_recompute(x: Inputs, s: MemorySettings) -> Inputs:
    """Where recomputation is not stated: none if that fits, else selective if that fits, else all of a layer,
    on as few layers of a stage as fit."""
    open_rows = x.recompute == NOT_STATED
    if not is_any(open_rows):
        return x
    state = x.once_per_sharding(state_bytes, s).total

    def needed_bytes(code: float, layers: Array | None = None) -> Array:
        return (state + activity_bytes(x.with_recompute(number(code), layers), s).total).peak

    none, selective, full = (needed_bytes(code) for code in (NONE, SELECTIVE, FULL))
    fits_none, fits_selective = none <= x.memory_bytes, selective <= x.memory_bytes
    chosen = where(fits_none, NONE, where(fits_selective, SELECTIVE, FULL))
    # from all layers recomputed, as many are left out as the rest of the memory holds
    inner = x.stages.inner
    per_layer = (needed_bytes(FULL, number(1.0)) - full) / maximum(inner - 1.0, 1.0)
    spared = np.floor(maximum(x.memory_bytes - full, 0.0) / maximum(per_layer, 1.0) + 1e-9)
    layers = where(open_rows, maximum(inner - spared, 1.0), x.recomputed_layers)
    return x.with_recompute(where(open_rows, chosen, x.recompute), layers)


def _broadcast(value: Array, rows: int) -> Array:
    return np.array(value, ndmin=1) if rows == 1 else np.broadcast_to(value, (rows,))


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


class Prediction(Result):
    """What a plan is predicted to take.

    `id` is the scenario's. `fits` tells whether `peak_memory_gib`, the sum of `memory_gib`, is more likely
    than not to fit the device, `fit_probability` how likely that is.
    `step_time_s` is the sum of `breakdown_s`; 80% of published runs lie between `step_time_low_s` and
    `step_time_high_s`. `bottleneck` is the kind of cost that takes most of it, or memory if the plan does not
    fit. `mfu` is `model_tflops_per_device` over the device's peak; `tokens_per_s_per_device` counts tokens of
    the batch. `parameters` counts the model's, `active_parameters` those that one token uses.
    """

    id: str | int | float | None
    fits: bool
    fit_probability: float
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    tokens_per_s_per_device: float
    model_tflops_per_device: float
    mfu: float
    peak_memory_gib: float
    bottleneck: Bottleneck
    parameters: int
    active_parameters: int
    breakdown_s: dict[str, float]
    memory_gib: dict[str, float]


BOTTLENECKS: dict[Bottleneck, tuple[str, ...]] = {
    "compute": ("compute", "recompute"),
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
    memory_error: Array


def fit_probability(predicted_bytes: Array, memory_bytes: Array, error: Array | float) -> Array:
    """That the peak stays within the device's memory, if its logarithm is off by `error`, a standard
    deviation. The logistic curve is the normal one to a hundredth."""
    return np.asarray(1.0 / (1.0 + (predicted_bytes / memory_bytes) ** (LOGISTIC / error)))


def memory_fraction_for(probability: float, error: float) -> float:
    """The share of the device's memory that a peak may take to fit with this probability; at most all."""
    return float(min((1.0 / probability - 1.0) ** (error / LOGISTIC), 1.0))


LOGISTIC = 1.702


def predict(scenarios: Sequence[Scenario], calibration: Calibration | None = None) -> list[Prediction]:
    """One prediction per scenario, in order; `calibration` replaces the constants that come with ASAP."""
    if not scenarios:
        return []
    x, keys = encode(scenarios)
    batch = predict_rows(x, keys, [s.training.precision for s in scenarios], calibration)
    costs, parameters = batch.costs, [count_parameters(scenario.model) for scenario in scenarios]
    rate = x.batch * x.seq / costs.step_time_s / x.devices
    flops = rate * model_flops_per_token(x)
    columns = zip(
        scenarios,
        costs.fits.tolist(),
        fit_probability(costs.memory_bytes, x.memory_bytes, batch.memory_error).tolist(),
        costs.step_time_s.tolist(),
        batch.low_s.tolist(),
        batch.high_s.tolist(),
        rate.tolist(),
        (flops / 1e12).tolist(),
        (flops / x.gemm_peak).tolist(),
        (costs.memory_bytes / GIB).tolist(),
        bottlenecks(costs.breakdown, costs.fits),
        parameters,
        _by_row(costs.breakdown),
        _by_row(costs.memory, unit=GIB),
        strict=True,
    )
    # The values are computed here, so validating each of thousands of rows again would only cost time.
    return [
        Prediction.model_construct(
            id=scenario.id,
            fits=fits,
            fit_probability=probability,
            step_time_s=step_time_s,
            step_time_low_s=low_s,
            step_time_high_s=high_s,
            tokens_per_s_per_device=tokens_per_s,
            model_tflops_per_device=tflops,
            mfu=mfu,
            peak_memory_gib=peak_gib,
            bottleneck=bottleneck,
            parameters=count.total,
            active_parameters=count.active,
            breakdown_s=breakdown_s,
            memory_gib=memory_gib,
        )
        for (
            scenario, fits, probability, step_time_s, low_s, high_s, tokens_per_s, tflops, mfu, peak_gib,
            bottleneck, count, breakdown_s, memory_gib,
        ) in columns
    ]  # fmt: skip


def predict_rows(
    x: Inputs, keys: RowKeys, precisions: Sequence[str], calibration: Calibration | None = None
) -> Batch:
    """Rows given as arrays; `keys` and `precisions` have one entry per row, or one for all rows."""
    calibration = calibration or shipped_calibration()
    settings = calibration.memory_settings(keys, precisions)
    costs = scaled_costs(evaluate(x, calibration.coefficients(keys), settings), calibration.factor(x, keys))
    low, high = calibration.interval(x, keys, costs.step_time_s)
    return Batch(x, keys, costs, low, high, calibration.memory_errors(keys))


def scaled_costs(costs: Costs, factor: Array) -> Costs:
    """With every term of the step `factor` times as long."""
    if not np.ndim(factor):
        return costs
    terms = {f.name: getattr(costs.breakdown, f.name) * factor for f in fields(Breakdown)}
    return replace(costs, breakdown=Breakdown(**terms), step_time_s=costs.step_time_s * factor)


def bottlenecks(breakdown: Breakdown, fits: NDArray[np.bool_]) -> list[Bottleneck]:
    """The largest kind of cost of each row; memory if the plan does not fit at all."""
    names = list(BOTTLENECKS)
    sums = np.stack([sum(getattr(breakdown, part) for part in BOTTLENECKS[name]) for name in names])
    largest = where(fits, np.argmax(sums, axis=0), names.index("memory"))
    return [names[i] for i in largest]


def _by_row(part: Breakdown | Memory, unit: float = 1.0) -> list[dict[str, float]]:
    names = [f.name for f in fields(part)]
    columns = [(getattr(part, name) / unit).tolist() for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
