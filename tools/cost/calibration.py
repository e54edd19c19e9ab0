"""What was learned about the cost model: 80% intervals, the fitted shifts, and constants measured on one
cluster.

Intervals are normalised split conformal prediction over logarithms of predicted over measured time, from
whole sources left out, since a user is a source that no fit has seen. A measured constant gets the shift
that makes `resolve` return it, within its bounds.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue, TypeAdapter

import kb_seed
from tools.cost.arithmetic import maximum, number
from tools.cost.cluster import ClusterModel, ClusterPrior
from tools.cost.constants import (
    Coefficients,
    Definition,
    LevelShifts,
    RowKeys,
    Shifts,
    definitions,
    log_value,
    resolve,
)
from tools.cost.inputs import Array, Inputs
from tools.cost.memory import MemorySettings, memory_settings, scaled
from tools.errors import DataError, InputError
from tools.names import did_you_mean
from tools.scenario.fields import JsonObject

COVERAGE = 0.8
SIGMAS = NormalDist().inv_cdf(0.5 + COVERAGE / 2.0)
"""Standard deviations to either side that hold this share."""
WIDENING_PER_DOUBLING = 0.15
"""Wider by this share for each factor of two outside a measured range: an assumption, not a fit."""
UNMEASURED = 1.25
"""An unmeasured stack's interval is wider than a measured one's of the same error by at least this factor."""
NEVER_MEASURED = math.log(1.3)
"""Half-width for a framework or generation never measured: too few were left out whole to learn it."""
MIN_SOURCES = 2
"""A stack that one source measured is not known: its own speed and the source's cannot be told apart."""
RANGED = ("devices", "seq", "hidden", "layers", "experts", "tp", "pp", "cp", "ep", "micro_batch")


@dataclass(frozen=True)
class IntervalModel:
    """What `make fit` learned about the model's own errors."""

    usual_error: Mapping[str, float]
    stack_error: Mapping[str, float]
    quantiles: Mapping[str, Sequence[float]]
    pair_error: Mapping[str, float]
    stacks: Sequence[str]
    frameworks: Sequence[str]
    generations: Sequence[str]
    ranges: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Known:
    """What a fit has seen, from enough sources to count."""

    stacks: frozenset[str]
    frameworks: frozenset[str]
    generations: frozenset[str]


def known_of(keys: RowKeys, sources: Sequence[str]) -> Known:
    """Stacks that `MIN_SOURCES` measured, and every framework and generation that was measured at all."""
    by_stack: dict[str, set[str]] = {}
    for row, source in enumerate(sources):
        by_stack.setdefault(keys.key("stack", row), set()).add(source)
    return Known(
        frozenset(stack for stack, seen in by_stack.items() if len(seen) >= MIN_SOURCES),
        frozenset(keys.framework),
        frozenset(keys.generation),
    )


def novelty(keys: RowKeys, row: int, known: Known) -> int:
    """0: this stack was measured by several sources; 1: its parts were measured; 2: a part never was."""
    if keys.framework[row] not in known.frameworks or keys.generation[row] not in known.generations:
        return 2
    return int(keys.key("stack", row) not in known.stacks)


def kind_names(x: Inputs) -> list[str]:
    return ["moe" if moe else "dense" for moe in np.atleast_1d(x.is_moe)]


@dataclass(frozen=True)
class Residuals:
    """Log errors of rows whose whole source was left out of the fit. Rows that are not `headline` do not
    count."""

    values: Array
    novelties: NDArray[np.int64]
    headline: NDArray[np.bool_]
    sources: Sequence[str]
    pair_values: Array
    """Log errors with the row's group left out: what two plans of one group are both wrong by cancels."""
    groups: Sequence[str]


def learn(x: Inputs, keys: RowKeys, residuals: Residuals, known: Known) -> IntervalModel:
    """Every source weighs the same, however many rows it has."""
    kinds, sources = np.array(kind_names(x)), np.array(residuals.sources)
    values, counted = residuals.values, residuals.headline
    usual = {
        kind: _mean_over_sources(np.abs(values), sources, counted & (kinds == kind))
        for kind in ("dense", "moe")
    }
    scores = values / np.array([usual[kind] for kind in kinds])
    groups = np.asarray(residuals.groups)
    return IntervalModel(
        usual_error=usual,
        stack_error={},
        quantiles=_quantiles_by_novelty(
            scores[counted], residuals.novelties[counted], _equal_weights(sources[counted]), usual["dense"]
        ),
        pair_error={
            kind: _pair_error(residuals.pair_values[rows], groups[rows])
            for kind, rows in ((k, counted & (kinds == k)) for k in ("dense", "moe"))
        },
        stacks=sorted(known.stacks),
        frameworks=sorted(known.frameworks),
        generations=sorted(known.generations),
        ranges={name: [float(np.min(getattr(x, name))), float(np.max(getattr(x, name)))] for name in RANGED},
    )


def _equal_weights(sources: NDArray[np.str_]) -> Array:
    _, inverse, counts = np.unique(sources, return_inverse=True, return_counts=True)
    return 1.0 / counts[inverse]


def _mean_over_sources(errors: Array, sources: NDArray[np.str_], rows: NDArray[np.bool_]) -> float:
    if not np.any(rows):
        return 0.2
    return float(np.average(errors[rows], weights=_equal_weights(sources[rows])))


def _quantiles_by_novelty(
    scores: Array, novelties: NDArray[np.int64], weights: Array, usual: float
) -> dict[str, list[float]]:
    """The newer, the wider: a level is never narrower than the one before it."""
    low, high = _quantiles(scores[novelties == 0], weights[novelties == 0])
    table = {"0": [low, high]}
    for level in (1, 2):
        own_low, own_high = _quantiles(scores[novelties >= level], weights[novelties >= level])
        low, high = min(own_low, low * UNMEASURED), max(own_high, high * UNMEASURED)
        if level == 2:
            low, high = min(low, -NEVER_MEASURED / usual), max(high, NEVER_MEASURED / usual)
        table[str(level)] = [low, high]
    return table


def _pair_error(values: Array, groups: NDArray[np.str_]) -> float:
    """Log error of the ratio of two predictions of one group: much of what is wrong is wrong for both."""
    errors = [np.zeros(0)]
    for group in np.unique(groups):
        inside = values[groups == group]
        errors.append(np.abs(np.subtract.outer(inside, inside))[np.triu_indices(len(inside), k=1)])
    pairs = np.concatenate(errors)
    return float(np.quantile(pairs, COVERAGE)) if len(pairs) else 0.15


def _quantiles(scores: Array, weights: Array) -> tuple[float, float]:
    """Lower and upper weighted score; never excluding the prediction itself."""
    if len(scores) < 10:
        return -2.0, 2.0
    order = np.argsort(scores)
    middle = (np.cumsum(weights[order]) - weights[order] / 2.0) / weights.sum()
    tail = (1.0 - COVERAGE) / 2.0
    low, high = np.interp([tail, 1.0 - tail], middle, scores[order])
    return min(float(low), -0.1), max(float(high), 0.1)


def known_to(model: IntervalModel) -> Known:
    """What the model's own fit has seen."""
    return Known(*(frozenset(v) for v in (model.stacks, model.frameworks, model.generations)))


def interval(model: IntervalModel, x: Inputs, keys: RowKeys, step_time_s: Array) -> tuple[Array, Array]:
    """Low and high of each row. `keys` has one entry per row, or one for all rows."""
    seen, kinds = known_to(model), kind_names(x)
    bounds = [_bounds(model, keys, row, kinds[row], seen) for row in range(len(keys.device))]
    lower, upper = np.array(bounds).T
    widening = _widening(model, x)
    return step_time_s * np.exp(-upper * widening), step_time_s * np.exp(-lower * widening)


def _bounds(model: IntervalModel, keys: RowKeys, row: int, kind: str, known: Known) -> tuple[float, float]:
    level = novelty(keys, row, known)
    label = f"{keys.key('stack', row)}|{kind}"
    scale = model.stack_error.get(label, model.usual_error[kind]) if level == 0 else model.usual_error[kind]
    low, high = model.quantiles[str(level)]
    return low * scale, high * scale


def _widening(model: IntervalModel, x: Inputs) -> Array:
    doublings = number(0.0)
    for name, (low, high) in model.ranges.items():
        value = maximum(getattr(x, name), 1.0)
        above, below = maximum(value / max(high, 1.0), 1.0), maximum(max(low, 1.0) / value, 1.0)
        doublings = doublings + np.log2(above) + np.log2(below)
    return 1.0 + WIDENING_PER_DOUBLING * doublings


@dataclass(frozen=True)
class Calibration:
    shifts: Shifts
    intervals: IntervalModel
    cluster_prior: ClusterPrior
    """How far a cluster that the fit has not seen may lie from it."""
    memory_error: float = 0.1
    """Standard deviation of the logarithm of predicted over measured peak memory."""
    cluster: ClusterModel | None = None
    """What the runs of one cluster say, beside its constants' shifts."""

    def coefficients(self, keys: RowKeys) -> Coefficients:
        """`resolve`, once for each stack that is asked for alone."""
        if len(keys.device) > 1:
            return resolve(keys, self.shifts)
        stack = (keys.generation[0], keys.device[0], keys.framework[0])
        if stack not in self._of_stack:
            self._of_stack[stack] = resolve(keys, self.shifts)
        return self._of_stack[stack]

    @cached_property
    def _of_stack(self) -> dict[tuple[str, str, str], Coefficients]:
        return {}

    def factor(self, x: Inputs, keys: RowKeys) -> Array:
        """On each row's step time: what the cluster's runs show and no constant explains."""
        return self.cluster.factor(x, keys) if self.cluster else number(1.0)

    def interval(self, x: Inputs, keys: RowKeys, step_time_s: Array) -> tuple[Array, Array]:
        """Low and high of each row, narrower the more the cluster's runs say about it."""
        low, high = interval(self.intervals, x, keys, step_time_s)
        if self.cluster is None:
            return low, high
        # Two estimates of the width that is left: the interval learned from other sources, as much narrower
        # as the runs make this row's spread, and that spread itself. Their geometric mean.
        before, after = self.cluster.spread(x, keys, self.shifts)
        below, above = np.log(step_time_s / low), np.log(high / step_time_s)
        learned, own = after / before, SIGMAS * after
        is_known = after < before
        below, above = (
            np.where(is_known, np.minimum(np.sqrt(side * learned * own), side), side)
            for side in (below, above)
        )
        return step_time_s * np.exp(-below), step_time_s * np.exp(above)

    def memory_settings(self, keys: RowKeys, precisions: Sequence[str]) -> MemorySettings:
        settings = memory_settings(keys.framework, precisions)
        if self.cluster is None or not self.cluster.memory_shift:
            return settings
        factors = np.exp(self.cluster.memory_shift * self.cluster.is_here(keys))
        return scaled(settings, factors if len(factors) > 1 else factors[0])

    def memory_errors(self, keys: RowKeys) -> Array:
        """Of each row, as `memory_error`."""
        if self.cluster is None:
            return np.full(len(keys.device), self.memory_error)
        return np.where(self.cluster.is_here(keys), self.cluster.memory_error, self.memory_error)

    def to_data(self) -> JsonObject:
        """As plain data, which a session keeps and a later one reads."""
        data: JsonObject = json.loads(json.dumps(asdict(self)))
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, JsonValue]) -> "Calibration":
        return _adapter().validate_python(data)


@cache
def _adapter() -> TypeAdapter[Calibration]:
    return TypeAdapter(Calibration)


@cache
def shipped_calibration() -> Calibration:
    """The calibration that comes with the package."""
    try:
        data = json.loads(kb_seed.folder("calibration").joinpath("fitted.json").read_text())
        # written by `make fit` and held by tests: building a validator would take longer than predicting
        return Calibration(
            shifts=data["shifts"],
            intervals=IntervalModel(**data["intervals"]),
            cluster_prior=ClusterPrior(**data["cluster_prior"]),
            memory_error=data["memory_error"],
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"kb_seed/calibration/fitted.json cannot be used ({error}); run make fit") from error


FORMAT = "asap-cluster-calibration-1"
DEVICE_LEVEL = frozenset({"fast_link_efficiency", "slow_link_efficiency", "rank_latency_s"})


@dataclass(frozen=True)
class ClusterCalibration:
    """What was measured on one stack; small, and good for a file."""

    framework: str
    generation: str
    device: str
    coefficients: Mapping[str, float]

    def apply(self, calibration: Calibration | None = None) -> Calibration:
        """The given calibration (the shipped one when None) with these constants in it."""
        keys = RowKeys([self.generation], [self.device], [self.framework])
        return calibrated_to(calibration or shipped_calibration(), keys, self.coefficients)

    def to_data(self) -> JsonObject:
        """Plain data for JSON."""
        stack = {"framework": self.framework, "generation": self.generation, "device": self.device}
        return {"format": FORMAT, **stack, "coefficients": dict(self.coefficients)}


def calibrated_to(calibration: Calibration, keys: RowKeys, measured: Mapping[str, float]) -> Calibration:
    """`calibration` with shifts after which the one row of `keys` resolves to the measured constants."""
    known = {definition.name: definition for definition in definitions()}
    shifts = dict(calibration.shifts)
    for name, value in measured.items():
        shifts[name] = _shifted(known[name], value, keys, shifts.get(name, {}))
    return replace(calibration, shifts=shifts)


def _shifted(d: Definition, value: float, keys: RowKeys, shifts: LevelShifts) -> LevelShifts:
    """The constant's shifts with the entry of this stack (or device) replaced."""
    level = "device" if d.name in DEVICE_LEVEL else "stack"
    key = keys.key(level, 0)
    others = {name: shift for name, shift in shifts.get(level, {}).items() if name != key}
    without = {**shifts, level: others}
    wanted = float(np.clip(value, d.low, d.high))
    return {**without, level: {**others, key: math.log(wanted) - log_value(d, keys, 0, without)}}


def parse_cluster_calibration(data: Mapping[str, JsonValue], source: str) -> ClusterCalibration:
    """What `to_data` gave, checked; raises InputError that names `source` and the field."""
    if data.get("format") != FORMAT:
        raise InputError(f"{source}: format", data.get("format"), f"must be {FORMAT!r}")
    stack = {name: _text(data, name, source) for name in ("framework", "generation", "device")}
    given = data.get("coefficients")
    if not isinstance(given, Mapping):
        raise InputError(f"{source}: coefficients", given, "must be an object of numbers")
    return ClusterCalibration(
        **stack, coefficients={str(name): _number(name, value, source) for name, value in given.items()}
    )


def _text(data: Mapping[str, JsonValue], name: str, source: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise InputError(f"{source}: {name}", value, "must be a text")
    return value


def _number(name: object, value: object, source: str) -> float:
    known = {d.name: d for d in definitions()}
    field, d = f"{source}: coefficients.{name}", known.get(str(name))
    if d is None:
        raise InputError(field, value, f"not a constant of the cost model, {did_you_mean(name, known)}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not d.low <= value <= d.high:
        raise InputError(field, value, f"must be a number from {d.low:g} to {d.high:g}")
    return float(value)
