"""Maximum a posteriori fit of the coefficients' shifts: robust log residuals, shrunk to the priors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from tools.cost.coefficients import LEVELS, Coefficients, Definition, RowKeys, Shifts, definitions
from tools.cost.inputs import Array, Inputs
from tools.cost.step import step_breakdown

RESIDUAL_SPREAD = 0.06
"""Log error of a row that the fit regards as one standard deviation."""
ROBUST_FROM = 2.0
"""Residuals beyond this many standard deviations count linearly (soft-L1)."""
NUDGE = 1e-4


@dataclass(frozen=True)
class Lever:
    """One free number: the shift of a coefficient for one key of one level."""

    coefficient: str
    level: str
    key: str
    spread: float


@dataclass(frozen=True)
class Design:
    """Which lever moves which coefficient of which row."""

    levers: tuple[Lever, ...]
    base: dict[str, Array]
    columns: dict[str, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]
    bounds: dict[str, tuple[float, float]]
    rows: int

    def coefficients(self, shifts: Array) -> Coefficients:
        values = {}
        for name, base in self.base.items():
            log_value = base.copy()
            rows, levers, _ = self.columns[name]
            np.add.at(log_value, rows, shifts[levers])
            values[name] = np.clip(np.exp(log_value), *self.bounds[name])
        return Coefficients(**values)

    def as_shifts(self, values: Array) -> Shifts:
        table: dict[str, dict[str, dict[str, float]]] = {}
        for lever, value in zip(self.levers, values, strict=True):
            table.setdefault(lever.coefficient, {}).setdefault(lever.level, {})[lever.key] = round(
                float(value), 5
            )
        return table


def design(keys: RowKeys) -> Design:
    """Levers for every level and key that the rows have."""
    levers: list[Lever] = []
    base, columns, bounds = {}, {}, {}
    for d in definitions():
        base[d.name], columns[d.name] = _design_one(d, keys, levers)
        bounds[d.name] = (d.low, d.high)
    return Design(tuple(levers), base, columns, bounds, len(keys.generation))


def _design_one(
    d: Definition, keys: RowKeys, levers: list[Lever]
) -> tuple[Array, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    count = len(keys.generation)
    base = np.full(count, np.log(d.prior))
    entries: list[tuple[int, int, int]] = []
    for number, level in enumerate(LEVELS):
        seen: dict[str, int] = {}
        for row in range(count):
            key = keys.key(level, row)
            base[row] += np.log(d.at.get(f"{level}:{key}", 1.0))
            if level not in d.spread:
                continue
            if key not in seen:
                seen[key] = len(levers)
                levers.append(Lever(d.name, level, key, d.spread[level]))
            entries.append((row, seen[key], number))
    table = np.array(entries, dtype=np.int64).reshape(-1, 3)
    return base, (table[:, 0], table[:, 1], table[:, 2])


def fit(x: Inputs, keys: RowKeys, measured_s: Array, weights: Array) -> Shifts:
    """The shifts that explain the measurements best; `weights` scale each row's residual."""
    plan = design(keys)
    spreads = np.array([lever.spread for lever in plan.levers])

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


def robust(raw: Array) -> tuple[Array, Array]:
    """Soft-L1 of the residuals as signed roots, and its derivative."""
    z = np.sqrt(1.0 + (raw / ROBUST_FROM) ** 2)
    shrink = np.sqrt(2.0 / (z + 1.0))  # not by z - 1, which is lost in rounding where a row fits exactly
    return raw * shrink, 1.0 / (z * shrink)


def _derivatives(plan: Design, predict: Callable[[Array], Array], shifts: Array, centre: Array) -> Array:
    """Levers of one coefficient and level touch disjoint rows, so one evaluation serves them all."""
    table = np.zeros((plan.rows, len(plan.levers)))
    for rows, levers, levels in plan.columns.values():
        for level in np.unique(levels):
            chosen = levels == level
            nudged = shifts.copy()
            nudged[np.unique(levers[chosen])] += NUDGE
            change = (predict(nudged) - centre) / NUDGE
            table[rows[chosen], levers[chosen]] = change[rows[chosen]]
    return table


def row_weights(sources: Sequence[str], light: str, light_weight: float = 0.3) -> Array:
    """Every row counts the same but those of the `light` source."""
    return np.array([light_weight if source == light else 1.0 for source in sources])
