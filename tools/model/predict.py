"""The cost model as one call: arrays or scenarios in; step time, memory, resolved recomputation and
intervals out.

Long batches are cut into blocks that stay in the processor's cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from tools.model.calibration import LOGISTIC, Calibration, shipped_calibration
from tools.model.forecast import RunForecast, forecast
from tools.physics.arithmetic import is_any, maximum, number, where
from tools.physics.encode import encode
from tools.physics.inputs import SHARDING_FIELDS, Array, Coefficients, Columns, Inputs, RowKeys
from tools.physics.memory import GIB, Memory, MemorySettings, activity_bytes, memory_bytes, state_bytes
from tools.physics.sizes import count_parameters, model_flops_per_token
from tools.physics.step import StepTerms, step_terms
from tools.physics.terms import BOTTLENECKS, Bottleneck
from tools.scenario.spec import ClosedModel, Scenario

BLOCK_ROWS = 16384
"""Blocks of 128 KiB per array: what is at work at a time fits into the second-level cache."""

EVEN = 0.5
"""A plan fits if that is as likely as not."""
NOT_STATED, NONE, SELECTIVE, FULL = -1.0, 0.0, 1.0, 2.0


@dataclass(frozen=True)
class Costs(Columns):
    """One entry per row."""

    breakdown: StepTerms
    memory: Memory
    step_time_s: Array
    memory_bytes: Array
    recompute: Array
    fits: NDArray[np.bool_]


def evaluate(x: Inputs, c: Coefficients, s: MemorySettings) -> Costs:
    """Every row of `x`; a scalar input gives arrays of length one."""
    rows = x.size
    if rows > BLOCK_ROWS:
        blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, rows, BLOCK_ROWS)]
        return Costs.joined([evaluate(x.take(b), c.take(b), s.take(b)) for b in blocks])
    x = resolve_recompute(x, s)
    terms, memory = step_terms(x, c), memory_bytes(x, s)
    total = memory.total
    costs = Costs(terms, memory, terms.total, total, x.recompute, total <= x.memory_bytes)
    return costs.broadcast(rows)


def resolve_recompute(x: Inputs, s: MemorySettings) -> Inputs:
    """Where recomputation is not stated: none if that fits, else selective if that fits, else all of a layer,
    on as few layers of a stage as fit."""
    open_rows = x.recompute == NOT_STATED
    if not is_any(open_rows):
        return x
    state = x.once_per(SHARDING_FIELDS, state_bytes, s).total

    def needed_bytes(code: float, layers: Array | None = None) -> Array:
        return (state + activity_bytes(x.with_recompute(number(code), layers), s).total).peak

    none, selective, full = (needed_bytes(code) for code in (NONE, SELECTIVE, FULL))
    fits_none, fits_selective = none <= x.memory_bytes, selective <= x.memory_bytes
    chosen = where(fits_none, NONE, where(fits_selective, SELECTIVE, FULL))
    # from all layers recomputed, as many are left out as the rest of the memory holds
    inner = x.stages.inner
    per_layer = (needed_bytes(FULL, number(1.0)) - full) / maximum(inner - 1.0, 1.0)
    spared = np.floor(maximum(x.memory_bytes - full, 0.0) / maximum(per_layer, 1.0) + 1e-9)
    layers = where(open_rows, maximum(inner - spared, 1.0), x.recompute_layers)
    return x.with_recompute(where(open_rows, chosen, x.recompute), layers)


class Prediction(ClosedModel):
    """What a plan is predicted to take.

    `id` is the scenario's. `fits` tells whether `peak_memory_gib`, the sum of `memory_gib`, is more likely
    than not to fit the device, `fit_probability` how likely that is.
    `step_time_s` is the sum of `breakdown_s`; 80% of published runs lie between `step_time_low_s` and
    `step_time_high_s`. `bottleneck` is the kind of cost that takes most of it, or memory if the plan does not
    fit. `mfu` is `model_tflops_per_device` over the device's peak; `tokens_per_s_per_device` counts tokens of
    the batch. `parameters` counts the model's, `active_parameters` those that one token uses. `run` forecasts
    the whole training, if the scenario says what it is to reach.
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
    run: RunForecast | None = None
    """The whole run, if the scenario's `run` states what it is to reach."""


@dataclass(frozen=True)
class Batch:
    """Rows and everything computed about them."""

    inputs: Inputs
    keys: RowKeys
    costs: Costs
    low_s: Array
    high_s: Array
    log_factor: Array
    """Mean of what all runs say about log time beyond the formulas."""
    deviation: Array
    """Standard deviation of log time around the prediction: with `log_factor` the posterior of a plan."""
    fit_probability: Array


def memory_fraction_for(probability: float, error: float) -> float:
    """The share of the device's memory that a peak may take to fit with this probability; at most all."""
    return float(min((1.0 / probability - 1.0) ** (error / LOGISTIC), 1.0))


def predict(scenarios: Sequence[Scenario], calibration: Calibration | None = None) -> list[Prediction]:
    """One prediction per scenario, in order; `calibration` replaces the constants that come with ASAP."""
    if not scenarios:
        return []
    x, keys = encode(scenarios)
    batch = predict_rows(x, keys, [s.training.precision for s in scenarios], calibration)
    costs, parameters = batch.costs, [count_parameters(scenario.model) for scenario in scenarios]
    rate = x.batch * x.seq / costs.step_time_s / x.devices
    flops = rate * model_flops_per_token(x)
    # The values are computed here, so validating each of thousands of rows again would only cost time.
    columns = {
        "id": [scenario.id for scenario in scenarios],
        "fits": costs.fits.tolist(),
        "fit_probability": batch.fit_probability.tolist(),
        "step_time_s": costs.step_time_s.tolist(),
        "step_time_low_s": batch.low_s.tolist(),
        "step_time_high_s": batch.high_s.tolist(),
        "tokens_per_s_per_device": rate.tolist(),
        "model_tflops_per_device": (flops / 1e12).tolist(),
        "mfu": (flops / x.gemm_peak).tolist(),
        "peak_memory_gib": (costs.memory_bytes / GIB).tolist(),
        "bottleneck": bottlenecks(costs.breakdown, costs.fits),
        "parameters": [count.total for count in parameters],
        "active_parameters": [count.active for count in parameters],
        "breakdown_s": _by_row(costs.breakdown),
        "memory_gib": _by_row(costs.memory * number(1.0 / GIB)),
    }
    if any(scenario.run for scenario in scenarios):
        times = (columns[name] for name in ("step_time_s", "step_time_low_s", "step_time_high_s"))
        columns["run"] = list(map(forecast, scenarios, *times))
    rows = zip(*columns.values(), strict=True)
    return [Prediction.model_construct(**dict(zip(columns, row, strict=True))) for row in rows]


def predict_rows(
    x: Inputs, keys: RowKeys, precisions: Sequence[str], calibration: Calibration | None = None
) -> Batch:
    """Rows given as arrays; `keys` and `precisions` have one entry per row, or one for all rows."""
    calibration = calibration or shipped_calibration()
    settings = calibration.memory_settings(keys, precisions)
    correction = calibration.correct(x, keys)
    factor = np.exp(correction.log_factor)
    costs = scaled_costs(evaluate(x, calibration.coefficients(keys), settings), factor)
    deviation = calibration.deviation(x, keys, costs.breakdown, correction)
    low, high = calibration.interval(x, keys, costs.breakdown, correction, deviation)
    likely = calibration.fit_probability(x, keys, costs.memory_bytes)
    if calibration.seen is not None:
        same = calibration.seen.same(x, keys)
        evident = calibration.seen.evident_bytes(same, costs.memory_bytes, x.memory_bytes)
        memory = costs.memory * (evident / costs.memory_bytes)
        costs = replace(costs, fits=likely >= EVEN, memory=memory, memory_bytes=evident)
    return Batch(x, keys, costs, low, high, correction.log_factor, deviation, likely)


def scaled_costs(costs: Costs, factor: Array) -> Costs:
    """With every term of the step `factor` times as long."""
    return replace(costs, breakdown=costs.breakdown * factor, step_time_s=costs.step_time_s * factor)


def bottlenecks(breakdown: StepTerms, fits: NDArray[np.bool_]) -> list[Bottleneck]:
    """The largest kind of cost of each row; memory if the plan does not fit at all."""
    names = list(BOTTLENECKS)
    sums = np.stack([sum(getattr(breakdown, part) for part in BOTTLENECKS[name]) for name in names])
    largest = where(fits, np.argmax(sums, axis=0), names.index("memory"))
    return [names[i] for i in largest]


def _by_row(part: StepTerms | Memory) -> list[dict[str, float]]:
    names, columns = [f.name for f in fields(part)], [column.tolist() for column in part.parts]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
