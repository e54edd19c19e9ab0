"""`make fit`: learns the cost model's constants and intervals from published measurements; writes
fitted.json.

Maximum a posteriori with robust log residuals shrunk to the priors; cross-validated by group or by
source.
"""

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from research.published import SMALL_MODEL_SOURCE, Measurement, read_measurements, step_times
from tools.cost.calibration import IntervalModel, Residuals, known_of, learn, novelty, robust
from tools.cost.constants import LEVELS, Coefficients, Definition, RowKeys, Shifts, definitions, resolve
from tools.cost.encode import encode
from tools.cost.inputs import Array, Inputs
from tools.cost.memory import memory_settings
from tools.cost.predict import resolve_recompute
from tools.cost.step import step_breakdown
from tools.errors import AsapError

RESIDUAL_SPREAD = 0.06
"""Log error of a row that the fit regards as one standard deviation."""
NUDGE = 1e-4


@dataclass(frozen=True)
class FreeParameter:
    """One free number: the shift of a coefficient for one key of one level."""

    coefficient: str
    level: str
    key: str
    spread: float


@dataclass(frozen=True)
class Design:
    """Which parameter moves which coefficient of which row."""

    parameters: tuple[FreeParameter, ...]
    base: dict[str, Array]
    columns: dict[str, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]
    bounds: dict[str, tuple[float, float]]
    rows: int

    def coefficients(self, shifts: Array) -> Coefficients:
        values = {}
        for name, base in self.base.items():
            log_value = base.copy()
            rows, parameters, _ = self.columns[name]
            np.add.at(log_value, rows, shifts[parameters])
            values[name] = np.clip(np.exp(log_value), *self.bounds[name])
        return Coefficients(**values)

    def as_shifts(self, values: Array) -> Shifts:
        table: dict[str, dict[str, dict[str, float]]] = {}
        for parameter, value in zip(self.parameters, values, strict=True):
            table.setdefault(parameter.coefficient, {}).setdefault(parameter.level, {})[parameter.key] = (
                round(float(value), 5)
            )
        return table


def design(keys: RowKeys) -> Design:
    """Levers for every level and key that the rows have."""
    parameters: list[FreeParameter] = []
    base, columns, bounds = {}, {}, {}
    for d in definitions():
        base[d.name], columns[d.name] = _design_one(d, keys, parameters)
        bounds[d.name] = (d.low, d.high)
    return Design(tuple(parameters), base, columns, bounds, len(keys.generation))


def _design_one(
    d: Definition, keys: RowKeys, parameters: list[FreeParameter]
) -> tuple[Array, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    count = len(keys.generation)
    base = np.full(count, np.log(d.prior))
    entries: list[tuple[int, int, int]] = []
    for number, level in enumerate(LEVELS):
        seen: dict[str, int] = {}
        for row in range(count):
            key = keys.key(level, row)
            base[row] += np.log(d.prior_factors.get(f"{level}:{key}", 1.0))
            if level not in d.spread:
                continue
            if key not in seen:
                seen[key] = len(parameters)
                parameters.append(FreeParameter(d.name, level, key, d.spread[level]))
            entries.append((row, seen[key], number))
    table = np.array(entries, dtype=np.int64).reshape(-1, 3)
    return base, (table[:, 0], table[:, 1], table[:, 2])


def fit(x: Inputs, keys: RowKeys, measured_s: Array, weights: Array) -> Shifts:
    """The shifts that explain the measurements best; `weights` scale each row's residual."""
    plan = design(keys)
    spreads = np.array([parameter.spread for parameter in plan.parameters])

    def predict(shifts: Array) -> Array:
        return np.log(step_breakdown(x, plan.coefficients(shifts)).total)

    target = np.log(measured_s)

    def residuals(scaled: Array) -> Array:
        raw = (predict(scaled * spreads) - target) * weights / RESIDUAL_SPREAD
        return np.concatenate([robust(raw)[0], scaled])

    def jacobian(scaled: Array) -> Array:
        shifts = scaled * spreads
        centre = predict(shifts)
        slope = robust((centre - target) * weights / RESIDUAL_SPREAD)[1] * weights / RESIDUAL_SPREAD
        top = _derivatives(plan, predict, shifts, centre) * slope[:, None] * spreads[None, :]
        return np.concatenate([top, np.eye(len(spreads))])

    result = least_squares(
        residuals, np.zeros(len(spreads)), jac=jacobian, method="trf", max_nfev=20, ftol=1e-4, xtol=1e-4
    )
    return plan.as_shifts(result.x * spreads)


def _derivatives(plan: Design, predict: Callable[[Array], Array], shifts: Array, centre: Array) -> Array:
    """Levers of one coefficient and level touch disjoint rows, so one evaluation serves them all."""
    table = np.zeros((plan.rows, len(plan.parameters)))
    for rows, parameters, levels in plan.columns.values():
        for level in np.unique(levels):
            chosen = levels == level
            nudged = shifts.copy()
            nudged[np.unique(parameters[chosen])] += NUDGE
            change = (predict(nudged) - centre) / NUDGE
            table[rows[chosen], parameters[chosen]] = change[rows[chosen]]
    return table


def row_weights(sources: Sequence[str], light: str, light_weight: float = 0.3) -> Array:
    """Every row counts the same but those of the `light` source."""
    return np.array([light_weight if source == light else 1.0 for source in sources])


FOLDS = 10
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Table:
    """The measurements as arrays."""

    inputs: Inputs
    keys: RowKeys
    measured_s: Array
    weights: Array
    sources: tuple[str, ...]
    groups: tuple[str, ...]

    @property
    def headline(self) -> NDArray[np.bool_]:
        """Rows that count in the headline error."""
        return np.array([source != SMALL_MODEL_SOURCE for source in self.sources])


def tabulate(rows: Sequence[Measurement]) -> Table:
    x, keys = encode([row.scenario for row in rows])
    settings = memory_settings(keys.framework, [row.scenario.training.precision for row in rows])
    sources = tuple(row.source for row in rows)
    weights = row_weights(sources, SMALL_MODEL_SOURCE)
    groups = tuple(row.group for row in rows)
    return Table(resolve_recompute(x, settings), keys, step_times(rows), weights, sources, groups)


def take_keys(keys: RowKeys, rows: Indices) -> RowKeys:
    return RowKeys(*([column[i] for i in rows] for column in (keys.generation, keys.device, keys.framework)))


@dataclass(frozen=True)
class OutOfFold:
    """Predicted seconds of every row by a fit without it, and how new the row was to that fit."""

    predicted_s: Array
    novelties: NDArray[np.int64]
    fold_of: NDArray[np.int64]


def group_folds(groups: Sequence[str], count: int = FOLDS, seed: int = 0) -> list[Indices]:
    names = np.unique(groups)
    np.random.default_rng(seed).shuffle(names)
    return [np.flatnonzero(np.isin(groups, names[start::count])) for start in range(count)]


def source_folds(sources: Sequence[str]) -> list[Indices]:
    return [np.flatnonzero(np.array(sources) == name) for name in np.unique(sources)]


def cross_validate(
    table: Table, folds: Sequence[Indices], say: Callable[[str], None] | None = None
) -> OutOfFold:
    """Fits once for each fold, two processes side by side."""
    count = len(table.sources)
    result = OutOfFold(np.zeros(count), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64))
    with get_context("spawn").Pool(2) as pool:
        for number, done in enumerate(pool.imap(partial(_predict_fold, table), folds)):
            rows = folds[number]
            result.predicted_s[rows], result.novelties[rows] = done
            result.fold_of[rows] = number
            (say or _say)(f"fold {number + 1} of {len(folds)}: {len(rows)} rows left out")
    return result


def _predict_fold(table: Table, test: Indices) -> tuple[Array, NDArray[np.int64]]:
    train = np.setdiff1d(np.arange(len(table.sources)), test)
    train_keys, test_keys = take_keys(table.keys, train), take_keys(table.keys, test)
    shifts = fit(table.inputs.take(train), train_keys, table.measured_s[train], table.weights[train])
    predicted = step_breakdown(table.inputs.take(test), resolve(test_keys, shifts)).total
    known = known_of(train_keys)
    return np.broadcast_to(predicted, test.shape), np.array(
        [novelty(test_keys, i, known) for i in range(len(test))]
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


REPO = Path(__file__).resolve().parents[1]
MEASUREMENTS = REPO.parent / "shared" / "groundtruth" / "dev.jsonl"
FITTED = REPO / "kb_seed" / "calibration" / "fitted.json"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make fit", description=__doc__)
    parser.add_argument("--measurements", type=Path, default=MEASUREMENTS, help="JSONL file of measured runs")
    parser.add_argument("--output", type=Path, default=FITTED, help="where to write the fitted values")
    given = parser.parse_args(arguments)
    try:
        write_fit(given.measurements, given.output)
    except AsapError as error:
        print(f"fit: error: {error}", file=sys.stderr)
        return 2
    return 0


def write_fit(measurements: Path, output: Path) -> None:
    table = tabulate(read_measurements(measurements))
    by_group = cross_validate(table, group_folds(table.groups))
    by_source = cross_validate(table, source_folds(table.sources))
    shifts = fit(table.inputs, table.keys, table.measured_s, table.weights)
    data = {
        "fitted_on": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "rows": len(table.sources),
        "error": {"grouped": _error(table, by_group), "source_left_out": _error(table, by_source)},
        "intervals": asdict(learn_intervals(table, by_group, by_source)),
        "shifts": shifts,
    }
    output.write_text(json.dumps(data, indent=1) + "\n")
    print(json.dumps(data["error"]))


def learn_intervals(
    table: Table, by_group: OutOfFold, by_source: OutOfFold, rows: Indices | None = None
) -> IntervalModel:
    """What groups left out teach about measured stacks, and whole sources about unmeasured ones; `rows`
    restricts who teaches."""
    chosen = np.arange(len(table.sources)) if rows is None else rows
    new = chosen[by_source.novelties[chosen] > 0]
    stacked = np.concatenate([chosen, new])
    predicted = np.concatenate([by_group.predicted_s[chosen], by_source.predicted_s[new]])
    residuals = Residuals(
        values=np.log(predicted / table.measured_s[stacked]),
        novelties=np.concatenate([by_group.novelties[chosen], by_source.novelties[new]]),
        headline=table.headline[stacked],
        # pairs are compared where their group was left out: a whole source left out would only add its bias
        groups=[table.groups[row] for row in chosen] + [""] * len(new),
    )
    return learn(table.inputs.take(stacked), take_keys(table.keys, stacked), residuals)


def _error(table: Table, result: OutOfFold) -> dict[str, float]:
    rows = table.headline
    ratio: Array = np.abs(result.predicted_s[rows] / table.measured_s[rows] - 1.0)
    return {"mape": round(float(ratio.mean()), 4), "median": round(float(np.median(ratio)), 4)}


if __name__ == "__main__":
    raise SystemExit(main())
