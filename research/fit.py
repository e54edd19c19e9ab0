"""`make fit`: learns the cost model's constants and intervals from published measurements; writes
fitted.json.

Maximum a posteriori with robust log residuals shrunk to the priors. Each source has a common factor of its
own (its machines, its way of measuring), which is fitted and then dropped: a user is always a new source.
Judged by leaving whole sources out, and by leaving out groups of alike runs.
"""

import argparse
import datetime
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.published import (
    SMALL_MODEL_SOURCE,
    Measurement,
    peak_memory,
    read_measurements,
    read_sweeps,
    step_times,
)
from tools.cost.calibration import IntervalModel, Residuals, known_of, learn, novelty
from tools.cost.cluster import ClusterPrior, nudged_terms_s, terms_s, with_slopes
from tools.cost.constants import LEVELS, RowKeys, Shifts, definitions, resolve
from tools.cost.encode import encode
from tools.cost.inputs import Array, Inputs
from tools.cost.memory import GIB, memory_bytes, memory_settings
from tools.cost.predict import resolve_recompute
from tools.cost.step import step_breakdown
from tools.errors import AsapError

RESIDUAL_SPREAD = 0.12
"""Log error of a row that the fit regards as one standard deviation."""
SOURCE_SPREAD = 0.15
"""Standard deviation of a source's own factor."""
OWN_ENVIRONMENTS = {"bigscience": 0.3, "simumax-b200": 0.3}
"""Sources that the measurements' README calls environments of their own, with a freer factor."""
FULL_WEIGHT_ROWS = 12.0
"""A source of more rows counts as the square root of so many times as many: its rows resemble each other."""
SMALL_MODEL_WEIGHT = 0.15
ROBUST_FROM = 2.0
"""Residuals beyond this many standard deviations count linearly (pseudo-Huber)."""
MAX_ITERATIONS = 15
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Table:
    """The measurements as arrays."""

    inputs: Inputs
    keys: RowKeys
    measured_s: Array
    sources: tuple[str, ...]
    groups: tuple[str, ...]

    @property
    def headline(self) -> NDArray[np.bool_]:
        """Rows that count in the headline error."""
        return np.array([source != SMALL_MODEL_SOURCE for source in self.sources])

    def take(self, rows: Indices) -> "Table":
        return Table(
            self.inputs.take(rows),
            take_keys(self.keys, rows),
            self.measured_s[rows],
            tuple(self.sources[i] for i in rows),
            tuple(self.groups[i] for i in rows),
        )


def tabulate(rows: Sequence[Measurement]) -> Table:
    x, keys = encode([row.scenario for row in rows])
    settings = memory_settings(keys.framework, [row.scenario.training.precision for row in rows])
    sources, groups = tuple(row.source for row in rows), tuple(row.group for row in rows)
    return Table(resolve_recompute(x, settings), keys, step_times(rows), sources, groups)


def take_keys(keys: RowKeys, rows: Indices) -> RowKeys:
    return RowKeys(*([column[i] for i in rows] for column in (keys.generation, keys.device, keys.framework)))


def row_weights(sources: Sequence[str]) -> Array:
    """On a row's residual: many rows of one source count less each, very small models less still."""
    counts = Counter(sources)
    weights = np.array([min(1.0, np.sqrt(FULL_WEIGHT_ROWS / counts[source])) for source in sources])
    small = np.array([source == SMALL_MODEL_SOURCE for source in sources])
    return np.where(small, weights * SMALL_MODEL_WEIGHT, weights)


@dataclass(frozen=True)
class FreeParameter:
    """One free number: the shift of a coefficient for one key of one level."""

    coefficient: str
    level: str
    key: str
    spread: float


class Design:
    """Which parameter moves which coefficient of which row."""

    def __init__(self, keys: RowKeys) -> None:
        rows = range(len(keys.generation))
        self.names = [d.name for d in definitions()]
        self.low = np.log([[d.low] for d in definitions()])
        self.high = np.log([[d.high] for d in definitions()])
        self.parameters: list[FreeParameter] = []
        members: list[NDArray[np.bool_]] = []
        base = []
        for d in definitions():
            log_prior = np.full(len(rows), np.log(d.prior))
            for level in LEVELS:
                level_keys = np.array([keys.key(level, row) for row in rows])
                log_prior += np.log([d.prior_factors.get(f"{level}:{key}", 1.0) for key in level_keys])
                for key in np.unique(level_keys) if level in d.spread else ():
                    self.parameters.append(FreeParameter(d.name, level, str(key), d.spread[level]))
                    members.append(level_keys == key)
            base.append(log_prior)
        self.base = np.array(base)
        self.members = np.array(members, dtype=np.float64)
        self.spread = np.array([p.spread for p in self.parameters])
        self.coefficient = np.array([self.names.index(p.coefficient) for p in self.parameters])

    def log_values(self, shifts: Array) -> Array:
        """Of each coefficient (row) for each measurement (column), before the bounds."""
        table = self.base.copy()
        np.add.at(table, self.coefficient, shifts[:, None] * self.members)
        return table

    def bounded(self, log_values: Array) -> Array:
        return np.clip(log_values, self.low, self.high)

    def start(self, shifts: Shifts) -> Array:
        """The parameters' values in a table of shifts; 0 for those it does not have."""
        return np.array(
            [shifts.get(p.coefficient, {}).get(p.level, {}).get(p.key, 0.0) for p in self.parameters]
        )

    def as_shifts(self, values: Array) -> Shifts:
        """Shifts that the measurements moved; the others are zero to four digits and left out."""
        table: dict[str, dict[str, dict[str, float]]] = {}
        for parameter, value in zip(self.parameters, values, strict=True):
            if abs(value) >= 5e-4:
                levels = table.setdefault(parameter.coefficient, {})
                levels.setdefault(parameter.level, {})[parameter.key] = round(float(value), 4)
        return table


@dataclass(frozen=True)
class Fitted:
    shifts: Shifts
    source_factors: dict[str, float]
    """Logarithms; used by no prediction."""
    parameters: int


def fit(table: Table, start: Shifts | None = None) -> Fitted:
    """Gauss-Newton with halved steps; `start` makes a fit of nearly the same rows quick."""
    plan, weights = Design(table.keys), row_weights(table.sources) / RESIDUAL_SPREAD
    names = sorted(set(table.sources))
    factors_of = np.array([[source == name for source in table.sources] for name in names], dtype=np.float64)
    spread = np.concatenate([plan.spread, [OWN_ENVIRONMENTS.get(name, SOURCE_SPREAD) for name in names]])
    target, count = np.log(table.measured_s), len(plan.parameters)

    def objective(values: Array, predicted: Array) -> float:
        scaled = (predicted + values[count:] @ factors_of - target) * weights
        robust = 2.0 * ROBUST_FROM**2 * (np.sqrt(1.0 + (scaled / ROBUST_FROM) ** 2) - 1.0)
        return float(robust.sum() + np.sum((values / spread) ** 2))

    values = np.zeros(len(spread))
    values[:count] = plan.start(start or {})
    for _ in range(MAX_ITERATIONS):
        predicted, slopes = _derivatives(plan, table.inputs, plan.log_values(values[:count]))
        before = objective(values, predicted)
        residuals = predicted + values[count:] @ factors_of - target
        curvature = weights**2 / np.sqrt(1.0 + (residuals * weights / ROBUST_FROM) ** 2)
        jacobian = np.concatenate([slopes[plan.coefficient] * plan.members, factors_of])
        hessian = (jacobian * curvature) @ jacobian.T + np.diag(spread**-2.0)
        step = -np.linalg.solve(hessian, jacobian @ (curvature * residuals) + values / spread**2)
        for factor in (1.0, 0.5, 0.25, 0.125, 0.0625):
            tried = values + factor * step
            tried_s = _log_seconds(table.inputs, plan.bounded(plan.log_values(tried[:count])))
            if (after := objective(tried, tried_s)) < before:
                break
        else:
            break
        values = tried
        if before - after < 1e-3:
            break
    factors = {name: round(float(value), 4) for name, value in zip(names, values[count:], strict=True)}
    return Fitted(plan.as_shifts(values[:count]), factors, count)


def _log_seconds(x: Inputs, log_values: Array) -> Array:
    return np.asarray(np.log(terms_s(x, log_values).sum(axis=0)))


def _derivatives(plan: Design, x: Inputs, log_values: Array) -> tuple[Array, Array]:
    """Log seconds of every row, and their slope by each coefficient's logarithm (0 at a bound)."""
    inside = plan.bounded(log_values)
    seconds, slopes = with_slopes(nudged_terms_s(x, inside).sum(axis=0))
    return seconds, np.where(inside == log_values, slopes, 0.0)


FOLDS = 10


@dataclass(frozen=True)
class OutOfFold:
    """Predicted seconds of every row by a fit without it, and how new the row was to that fit."""

    predicted_s: Array
    novelties: NDArray[np.int64]
    fold_of: NDArray[np.int64]


def group_folds(groups: Sequence[str]) -> list[Indices]:
    names = np.unique(groups)
    np.random.default_rng(0).shuffle(names)
    return [np.flatnonzero(np.isin(groups, names[start::FOLDS])) for start in range(FOLDS)]


def source_folds(sources: Sequence[str]) -> list[Indices]:
    return [np.flatnonzero(np.array(sources) == name) for name in np.unique(sources)]


def cross_validate(
    table: Table, folds: Sequence[Indices], always: Table | None = None, start: Shifts | None = None
) -> OutOfFold:
    """Fits once for each fold, on the other folds and on `always`, and predicts what was left out."""
    count = len(table.sources)
    result = OutOfFold(np.zeros(count), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64))
    for number, test in enumerate(folds):
        train = table.take(np.setdiff1d(np.arange(count), test))
        train = concat_tables(train, always) if always else train
        left_out = table.take(test)
        shifts = fit(train, start).shifts
        result.predicted_s[test] = step_breakdown(left_out.inputs, resolve(left_out.keys, shifts)).total
        known = known_of(train.keys, train.sources)
        result.novelties[test] = [novelty(left_out.keys, i, known) for i in range(len(test))]
        result.fold_of[test] = number
        _progress(f"fold {number + 1} of {len(folds)}: {len(test)} rows left out")
    return result


def concat_tables(left: Table, right: Table) -> Table:
    """The rows of both."""
    columns = {
        name: np.concatenate(
            [np.broadcast_to(getattr(t.inputs, name), (len(t.sources),)) for t in (left, right)]
        )
        for name in left.inputs.__dataclass_fields__
    }
    keys = RowKeys(
        [*left.keys.generation, *right.keys.generation],
        [*left.keys.device, *right.keys.device],
        [*left.keys.framework, *right.keys.framework],
    )
    measured = np.concatenate([left.measured_s, right.measured_s])
    return Table(Inputs(**columns), keys, measured, left.sources + right.sources, left.groups + right.groups)


def learn_intervals(
    table: Table,
    by_group: OutOfFold,
    by_source: OutOfFold,
    rows: Indices | None = None,
    always: Table | None = None,
) -> IntervalModel:
    """From whole sources left out; `rows` (all if None) are those that teach."""
    rows = np.arange(len(table.sources)) if rows is None else rows
    chosen = table.take(rows)
    fitted = concat_tables(chosen, always) if always else chosen
    residuals = Residuals(
        values=np.log(by_source.predicted_s[rows] / chosen.measured_s),
        novelties=by_source.novelties[rows],
        headline=chosen.headline,
        sources=chosen.sources,
        pair_values=np.log(by_group.predicted_s[rows] / chosen.measured_s),
        groups=chosen.groups,
    )
    return learn(chosen.inputs, chosen.keys, residuals, known_of(fitted.keys, fitted.sources))


def memory_error(rows: Sequence[Measurement]) -> float:
    """Typical log error of the published peaks, every source counting the same."""
    measured = [row for row in rows if row.peak_memory_gib is not None]
    table = tabulate(measured)
    settings = memory_settings(table.keys.framework, [r.scenario.training.precision for r in measured])
    predicted = memory_bytes(table.inputs, settings).total / GIB
    errors = np.abs(np.log(predicted / peak_memory(measured)))
    sources = np.array(table.sources)
    # a median is not moved by the few sweep runs that were measured under other settings; 1.48 makes it a
    # standard deviation
    return float(np.mean([1.48 * np.median(errors[sources == name]) for name in np.unique(sources)]))


REPO = Path(__file__).resolve().parents[1]
GROUND_TRUTH = REPO.parent / "shared" / "groundtruth"
MEASUREMENTS = GROUND_TRUTH / "dev.jsonl"
SWEEPS = GROUND_TRUTH / "sweeps.jsonl"
FITTED = REPO / "kb_seed" / "calibration" / "fitted.json"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make fit", description=__doc__)
    parser.add_argument("--measurements", type=Path, default=MEASUREMENTS, help="JSONL file of measured runs")
    parser.add_argument(
        "--sweeps", type=Path, default=SWEEPS, help="JSONL file of many plans of one workload; absent: none"
    )
    parser.add_argument("--output", type=Path, default=FITTED, help="where to write the fitted values")
    options = parser.parse_args(arguments)
    try:
        write_fit(options.measurements, options.sweeps, options.output)
    except AsapError as error:
        print(f"fit: error: {error}", file=sys.stderr)
        return 2
    return 0


def write_fit(measurements: Path, sweeps: Path, output: Path) -> None:
    rows, swept = read_measurements(measurements), read_sweeps(sweeps)
    table, always = tabulate(rows), tabulate(swept) if swept else None
    fitted = fit(concat_tables(table, always) if always else table)
    by_source = cross_validate(table, source_folds(table.sources), always, fitted.shifts)
    by_group = cross_validate(table, group_folds(table.groups), always, fitted.shifts)
    data = {
        "fitted_on": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "rows": len(rows) + len(swept),
        "parameters": fitted.parameters,
        "error": {"source_left_out": _error(table, by_source), "grouped": _error(table, by_group)},
        "memory_error": round(memory_error([*rows, *swept]), 4),
        "intervals": asdict(learn_intervals(table, by_group, by_source, always=always)),
        "cluster_prior": asdict(_cluster_prior(table, by_source.predicted_s, always, fitted.shifts)),
        "shifts": fitted.shifts,
        "source_factors": fitted.source_factors,
    }
    output.write_text(json.dumps(data, indent=1) + "\n")
    print(json.dumps(data["error"]))


def _cluster_prior(table: Table, left_out_s: Array, always: Table | None, shifts: Shifts) -> ClusterPrior:
    """From sources left out whole, the sweep among them."""
    from research.clusters import cluster_errors, learn_prior

    clusters = cluster_errors(table, left_out_s, shifts)
    if always:
        without = fit(table, shifts).shifts
        predicted_s = step_breakdown(always.inputs, resolve(always.keys, without)).total
        clusters += cluster_errors(always, predicted_s, without)
    return learn_prior(clusters)


def _error(table: Table, result: OutOfFold) -> dict[str, float]:
    rows = table.headline
    errors: Array = np.abs(result.predicted_s / table.measured_s - 1.0)
    sources = np.array(table.sources)
    by_source = [errors[sources == name].mean() for name in np.unique(sources[rows])]
    return {
        "mean_over_sources": round(float(np.mean(by_source)), 4),
        "mape": round(float(errors[rows].mean()), 4),
        "median": round(float(np.median(errors[rows])), 4),
    }


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
