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
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from research.published import (
    REPO,
    RUNS,
    SMALL_MODEL_SOURCE,
    Measurement,
    SweptPlan,
    measurements,
    peaks_gib,
    read_runs,
    step_times,
    sweep_measurements,
    sweep_plans,
)
from tools.errors import AsapError
from tools.model.calibration import fit_probability
from tools.model.cluster import ClusterPrior, nudged_terms_s, terms_s, with_slopes
from tools.model.constants import (
    LEVELS,
    Shifts,
    constant_priors,
    memory_settings,
    resolve,
)
from tools.model.intervals import IntervalModel
from tools.model.observations import OTHER_CRASHES
from tools.model.predict import predict, resolve_recompute
from tools.model.residual import FILE, Residual
from tools.physics.encode import crossed_fabric, encode, scenario_device
from tools.physics.inputs import Array, Inputs, RowKeys
from tools.physics.memory import GIB
from tools.physics.step import StepTerms, step_terms

if TYPE_CHECKING:
    from research.errors import Corrected

RESIDUAL_SPREAD = 0.12
"""Log error of a row that the fit regards as one standard deviation."""
FREEDOM = 0.3
"""Of a constant's spread that the fit may use: with all of it whole sources left out are predicted worse
(10.6 against 10.4%) than by the priors; a cluster's own runs may use it all."""
SOURCE_SPREAD = 0.04
"""Standard deviation of a source's own factor."""
OWN_ENVIRONMENTS = {"bigscience": 0.3, "simumax-b200": 0.3}
"""Sources that runs/sources.toml calls environments of their own, with a freer factor."""
FULL_WEIGHT_ROWS = 12.0
"""A source of more rows counts as the square root of so many times as many: its rows resemble each other."""
SMALL_MODEL_WEIGHT = 0.15
ROBUST_FROM = 2.0
"""Residuals beyond this many standard deviations count linearly (pseudo-Huber)."""
MAX_ITERATIONS = 15
FITTED_LEVELS = ("everywhere",)
"""Shifts by generation or framework are not fitted: for a new source they are no better, and for known ones
the residual does as much."""
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Table:
    """The measurements as arrays."""

    inputs: Inputs
    keys: RowKeys
    measured_s: Array
    sources: tuple[str, ...]
    groups: tuple[str, ...]
    headline: NDArray[np.bool_]
    """Rows that count in the headline error."""

    def take(self, rows: Indices) -> "Table":
        return Table(
            self.inputs.take(rows),
            take_keys(self.keys, rows),
            self.measured_s[rows],
            tuple(self.sources[i] for i in rows),
            tuple(self.groups[i] for i in rows),
            self.headline[rows],
        )


def tabulate(rows: Sequence[Measurement]) -> Table:
    x, keys = encode([row.scenario for row in rows])
    settings = memory_settings(keys.framework, [row.scenario.training.precision for row in rows])
    sources, groups = tuple(row.source for row in rows), tuple(row.group for row in rows)
    headline = np.array([row.is_headline for row in rows], dtype=bool)
    return Table(resolve_recompute(x, settings), keys, step_times(rows), sources, groups, headline)


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
        self.names = [d.name for d in constant_priors()]
        self.low = np.log([[d.low] for d in constant_priors()])
        self.high = np.log([[d.high] for d in constant_priors()])
        self.parameters: list[FreeParameter] = []
        members: list[NDArray[np.bool_]] = []
        base = []
        for d in constant_priors():
            log_prior = np.full(len(rows), np.log(d.prior))
            for level in LEVELS:
                level_keys = np.array([keys.key(level, row) for row in rows])
                log_prior += np.log([d.prior_factors.get(f"{level}:{key}", 1.0) for key in level_keys])
                for key in np.unique(level_keys) if level in d.spread and level in FITTED_LEVELS else ():
                    self.parameters.append(FreeParameter(d.name, level, str(key), d.spread[level] * FREEDOM))
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
    """Every row by a fit without its fold; the formulas alone, no residual."""

    folds: Sequence[Indices]
    all_s: Sequence[Array]
    """Seconds of all rows by the fit without each fold."""
    predicted_s: Array
    terms: StepTerms


def group_folds(groups: Sequence[str]) -> list[Indices]:
    names = np.unique(groups)
    np.random.default_rng(0).shuffle(names)
    return [np.flatnonzero(np.isin(groups, names[start::FOLDS])) for start in range(FOLDS)]


def source_folds(sources: Sequence[str]) -> list[Indices]:
    return [np.flatnonzero(np.array(sources) == name) for name in np.unique(sources)]


def cross_validate(
    table: Table, folds: Sequence[Indices], always: Table | None = None, start: Shifts | None = None
) -> OutOfFold:
    """Fits once for each fold, on the other folds and on `always`, and predicts all rows."""
    count, all_s = len(table.sources), []
    predicted = np.full((len(fields(StepTerms)), count), np.nan)
    for number, test in enumerate(folds):
        train = table.take(np.setdiff1d(np.arange(count), test))
        train = concat_tables(train, always) if always else train
        shifts = fit(train, start).shifts
        terms = step_terms(table.inputs, resolve(table.keys, shifts)).broadcast(count)
        all_s.append(terms.total)
        predicted[:, test] = terms.take(test).parts
        _progress(f"fold {number + 1} of {len(folds)}: {len(test)} rows left out")
    terms = StepTerms(*predicted)
    return OutOfFold(folds, all_s, terms.total, terms)


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
    return Table(
        Inputs(**columns),
        keys,
        np.concatenate([left.measured_s, right.measured_s]),
        left.sources + right.sources,
        left.groups + right.groups,
        np.concatenate([left.headline, right.headline]),
    )


MEMORY_ERRORS = np.geomspace(0.02, 0.3, 55)


def memory_error(rows: Sequence[Measurement], swept: Sequence[SweptPlan]) -> float:
    """Standard deviation of the log error of peaks: that under which the sweeps' plans most likely ran and
    crashed as they did, every workload counting the same; without crashes, that of the published peaks."""
    crashed = np.array([plan.measurement is None for plan in swept])
    if crashed.any():
        workloads = np.array([plan.workload for plan in swept])
        peaks = np.array([p.peak_memory_gib * GIB for p in predict([plan.scenario for plan in swept])])
        capacities = np.array([scenario_device(plan.scenario.cluster).memory_bytes for plan in swept])
        likelihoods = []
        for error in MEMORY_ERRORS:
            ran = fit_probability(peaks, capacities, error) * (1.0 - OTHER_CRASHES)
            log_likelihood = np.log(np.maximum(np.where(crashed, 1.0 - ran, ran), 1e-12))
            likelihoods.append(np.mean([log_likelihood[workloads == w].mean() for w in np.unique(workloads)]))
        return float(MEMORY_ERRORS[np.argmax(likelihoods)])
    measured, predicted = peaks_gib(rows)
    errors = np.abs(np.log(predicted / measured))
    sources = np.array([row.source for row in rows if row.peak is not None])
    # a median is not moved by the few runs that were measured under other settings; 1.48 makes it a standard
    # deviation
    return float(np.mean([1.48 * np.median(errors[sources == name]) for name in np.unique(sources)]))


FITTED = REPO / "kb_seed" / "calibration" / "fitted.json"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make fit", description=__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder or JSONL file of published runs")
    parser.add_argument("--output", type=Path, default=FITTED, help="where to write the fitted values")
    options = parser.parse_args(arguments)
    try:
        write_fit(options.runs, options.output)
    except AsapError as error:
        print(f"fit: error: {error}", file=sys.stderr)
        return 2
    return 0


def write_fit(path: Path, output: Path) -> None:
    """And the residual's file beside `output`."""
    from research.errors import build_residual, correct, learn_intervals, learn_prior

    runs = read_runs(path)
    rows, swept = measurements(runs), sweep_measurements(runs)
    table, always = tabulate(rows), tabulate(swept) if swept else None
    fitted = fit(concat_tables(table, always) if always else table)
    left_out = [
        cross_validate(table, folds, always, fitted.shifts)
        for folds in (group_folds(table.groups), source_folds(table.sources))
    ]
    prior = learn_prior(table, left_out)
    by_group, by_source = (correct(table, result, prior) for result in left_out)
    fitted_s = step_terms(table.inputs, resolve(table.keys, fitted.shifts)).total
    residual = build_residual(table, [row.id for row in rows], fitted_s, prior)
    fabric_of = {row.id: crossed_fabric(row.scenario.cluster) for row in rows}
    names = sorted({plan.scenario.training.framework for plan in swept} - set(table.keys.framework))
    residual = replace(residual, fabrics=[fabric_of[id] for id in residual.ids], swept=names)
    intervals = learn_intervals(table, by_group, by_source)
    output.with_name(FILE).write_text(residual_text(residual))  # first: what follows may predict with it
    data = {
        "fitted_on": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "rows": len(rows) + len(swept),
        "parameters": fitted.parameters,
        "error": {
            "source_left_out": _error(table, by_source.predicted_s),
            "grouped": _error(table, by_group.predicted_s),
        },
        "memory_error": round(memory_error(rows, sweep_plans(runs)), 4),
        "intervals": asdict(intervals),
        "cluster_prior": asdict(_cluster_prior(table, by_source, always, fitted.shifts, residual, intervals)),
        "shifts": fitted.shifts,
        "source_factors": fitted.source_factors,
    }
    output.write_text(json.dumps(data, indent=1) + "\n")
    print(json.dumps(data["error"]))
    shifts = sum(len(keys) for levels in fitted.shifts.values() for keys in levels.values())
    factors = sum(len(d.prior_factors) for d in constant_priors())
    print(
        f"{shifts} fitted shifts and {factors} factors beside the residual; asap constants prints all numbers"
    )


def residual_text(residual: Residual) -> str:
    """A line per column, so that a diff shows what changed."""
    runs = residual.runs
    figures = {name: runs.figures[:, i].round(6).tolist() for i, name in enumerate(runs.columns)}
    columns = ",\n".join(f"{json.dumps(name)}: {json.dumps(values)}" for name, values in figures.items())
    lines = {
        "prior": json.dumps(asdict(residual.prior)),
        "id": json.dumps(residual.ids),
        "fabric": json.dumps(residual.fabrics),
        "swept": json.dumps(residual.swept),
        "names": json.dumps(runs.names.T.tolist()),
        "columns": f"{{\n{columns}\n}}",
        "error": json.dumps(residual.errors.round(4).tolist()),
        "weight": json.dumps([float(f"{weight:.5g}") for weight in residual.weights]),
    }
    return "{" + ",\n".join(f'"{name}": {text}' for name, text in lines.items()) + "}\n"


def _cluster_prior(
    table: Table,
    left_out: "Corrected",
    always: Table | None,
    shifts: Shifts,
    residual: Residual,
    intervals: IntervalModel,
) -> ClusterPrior:
    """From sources left out whole, the sweep among them, which no residual knows."""
    from research.clusters import cluster_errors, learn_prior
    from research.errors import Corrected

    clusters = cluster_errors(table, left_out, intervals)
    if always:
        terms = step_terms(always.inputs, resolve(always.keys, fit(table, shifts).shifts))
        correction = residual.correct(always.inputs, always.keys)
        terms = terms * np.exp(correction.log_factor)
        clusters += cluster_errors(always, Corrected(terms.total, terms, correction.distance), intervals)
    return learn_prior(clusters)


def _error(table: Table, predicted_s: Array) -> dict[str, float]:
    rows = table.headline
    errors: Array = np.abs(predicted_s / table.measured_s - 1.0)
    sources = np.array(table.sources)
    by_source = [errors[rows & (sources == name)].mean() for name in np.unique(sources[rows])]
    return {
        "mean_over_sources": round(float(np.mean(by_source)), 4),
        "mape": round(float(errors[rows].mean()), 4),
        "median": round(float(np.median(errors[rows])), 4),
    }


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
