"""What the errors of left-out runs teach: the residual's prior, and how uncertain a prediction is by what.

Both are few numbers, chosen by whole sources left out (a user is always a new source), the residual's by
groups of alike runs too (sources that the fit knows), each source weighing the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from research.fit import Indices, OutOfFold, Table
from research.published import SMALL_MODEL_SOURCE
from tools.model.calibration import Calibration
from tools.model.constants import resolve
from tools.model.intervals import (
    COVERAGE,
    UNCERTAINTIES,
    Exposures,
    IntervalModel,
    Uncertainty,
    exposures,
)
from tools.model.likeness import DEGREES, Prices, Traits, distances
from tools.model.residual import MAX_ERROR, Residual, ResidualPrior
from tools.physics.inputs import Array
from tools.physics.step import StepTerms, step_terms

DEVIATION = 0.15
"""What alike runs share: an assumption; larger and smaller ones with other prices do about as well."""
START = {
    "model": 0.4, "work": 0.04, "setting": 0.5, "precision": 0.2, "kind": 0.8, "framework": 0.25,
    "generation": 3.5, "device": 0.1, "noise": 0.09, "moe_noise": 0.08,
}  # fmt: skip
"""Where the search for prices and noise begins: about the best of nine such searches from afar."""
PULL = 0.002
"""On squared logarithms of what is searched over where it began: what the errors do not tell stays there."""
STEPS = (2.5, 1.7, 1.35, 1.2)
"""Factors tried on each number in turn."""
SPREAD: Mapping[Uncertainty, float] = {
    "base": 0.06, "experts": 0.18, "host": 0.62, "exchange": 0.10,
    "network": 0.50, "memory": 0.06, "short": 0.09, "distance": 0.05,
}  # fmt: skip
"""Where the interval's numbers begin: read off rows of ordinary clusters, hybrids and experts by hand."""
DEGREES_OF_FREEDOM = 4.0
"""Of Student's t: errors have long tails, and one source far off must not widen all intervals."""
FEW_SCORES, FEW_WIDTH = 10, 2.0
"""With fewer scores than that, an interval is this many spreads wide to either side."""
MIN_QUANTILE = 0.1
"""An interval holds its own prediction."""


@dataclass(frozen=True)
class Corrected:
    """Rows predicted by a fit and a residual that have not seen them."""

    predicted_s: Array
    terms: StepTerms
    distance: Array


def build_residual(table: Table, ids: Sequence[str], predicted_s: Array, prior: ResidualPrior) -> Residual:
    rows = support(table)
    x, keys, errors = table.inputs, table.keys, np.log(table.measured_s / predicted_s)[rows]
    weights = prior.weights(Traits.of(x, keys).take(rows), _is_moe(table)[rows], errors)
    runs = Traits.of(x, keys, DEGREES).take(rows)
    return Residual(prior, runs, [ids[int(i)] for i in rows], errors, weights)


def support(table: Table) -> Indices:
    """All rows but the very small models, which are mostly host time."""
    return np.flatnonzero(np.array(table.sources) != SMALL_MODEL_SOURCE)


def correct(table: Table, result: OutOfFold, prior: ResidualPrior) -> Corrected:
    """Each fold by the residual of the other folds' rows, of errors by the fit without the fold."""
    count = len(table.sources)
    shift, distance = np.zeros(count), np.zeros(count)
    for test, seconds in zip(result.folds, result.all_s, strict=True):
        others = np.setdiff1d(np.arange(count), test)
        residual = build_residual(table.take(others), [""] * len(others), seconds[others], prior)
        left_out = table.take(test)
        correction = residual.correct(left_out.inputs, left_out.keys).broadcast(len(test))
        shift[test], distance[test] = correction.log_factor, correction.distance
    factor = np.exp(shift)
    return Corrected(result.predicted_s * factor, result.terms * factor, distance)


def corrected_by(bases: Mapping[str, Calibration], table: Table) -> Corrected:
    """Each source's rows by the calibration of its name."""
    parts, distance = np.zeros((len(fields(StepTerms)), len(table.sources))), np.zeros(len(table.sources))
    for source, base in bases.items():
        rows = np.flatnonzero(np.array(table.sources) == source)
        own = table.take(rows)
        correction = base.residual.correct(own.inputs, own.keys)
        terms = step_terms(own.inputs, resolve(own.keys, base.shifts)) * np.exp(correction.log_factor)
        parts[:, rows], distance[rows] = terms.broadcast(len(rows)).parts, correction.distance
    return Corrected(StepTerms(*parts).total, StepTerms(*parts), distance)


def learn_prior(table: Table, results: Sequence[OutOfFold]) -> ResidualPrior:
    """Prices and noise that make the errors of left-out rows least, by a search along each of them."""
    taught = support(table)
    traits = Traits.of(table.inputs, table.keys).take(taught)
    is_moe, headline = _is_moe(table)[taught], table.headline[taught]
    sources = [table.sources[int(i)] for i in taught[headline]]
    weights = np.zeros(len(taught))
    weights[headline] = (equal_weights(sources) + 1.0 / max(len(sources), 1)) / 2.0
    names = [field.name for field in fields(Prices)]
    none = dict.fromkeys(names, 0.0)
    apart = [distances(Prices(**{**none, name: 1.0}), traits, traits) for name in names]
    place = np.full(len(table.sources), -1)
    place[taught] = np.arange(len(taught))
    folds = []
    for result in results:
        for test, seconds in zip(result.folds, result.all_s, strict=True):
            if len(rows := place[test][place[test] >= 0]):
                folds.append((rows, np.log(table.measured_s / seconds)[taught]))

    def error(values: Array) -> float:
        *prices, noise, moe_noise = np.exp(values)
        kernel = np.exp(-sum(price * matrix for price, matrix in zip(prices, apart, strict=True)))
        noises = np.where(is_moe > 0, moe_noise, noise) ** 2
        inverse = np.linalg.inv(DEVIATION**2 * kernel + np.diag(noises))
        total = PULL * float(np.mean((values - start) ** 2))
        for rows, errors in folds:
            kept = np.clip(errors, -MAX_ERROR, MAX_ERROR)
            # what the others say of rows left out (Rasmussen and Williams, equation 5.12, for several rows)
            own = np.linalg.solve(inverse[np.ix_(rows, rows)], inverse[rows] @ kept)
            left = np.abs(np.expm1(-(errors[rows] - kept[rows] + own)))
            total += float(weights[rows] @ left) / len(results)
        return total

    start = np.log([START[name] for name in (*names, "noise", "moe_noise")])
    values, least = start, error(start)
    for step in np.log(STEPS):
        for i in range(len(values)):
            for move in (step, -step):
                tried = values + move * (np.arange(len(values)) == i)
                if (found := error(tried)) < least:
                    values, least = tried, found
                    break
    *prices, noise, moe_noise = (round(float(value), 4) for value in np.exp(values))
    return ResidualPrior(DEVIATION, noise, moe_noise, Prices(**dict(zip(names, prices, strict=True))))


@dataclass(frozen=True)
class LeftOut:
    """Log of measured over predicted time of runs that nobody had seen, and what they were uncertain by."""

    values: Array
    exposures: Exposures
    is_moe: NDArray[np.bool_]
    sources: Sequence[str]

    @classmethod
    def of(cls, table: Table, corrected: Corrected, rows: Indices) -> "LeftOut":
        values = np.log(table.measured_s / corrected.predicted_s)
        exposed = exposures(table.inputs, corrected.terms, corrected.distance)
        sources = [table.sources[i] for i in rows]
        return cls(values[rows], exposed.take(rows), _is_moe(table)[rows] > 0, sources)


def learn_intervals(
    table: Table, by_group: Corrected, by_source: Corrected, rows: Indices | None = None
) -> IntervalModel:
    """From whole sources left out: a user is always a new source. Groups left out teach the error of ratios.
    Of headline rows; `rows` (all if None) are those that teach."""
    rows = np.flatnonzero(table.headline) if rows is None else rows[table.headline[rows]]
    known = LeftOut.of(table, by_group, rows)
    left_out = LeftOut.of(table, by_source, rows)
    groups = np.array([table.groups[i] for i in rows])
    pair_error = {
        kind: round(_pair_error(known.values[of_kind], groups[of_kind]), 4)
        for kind, of_kind in (("dense", ~known.is_moe), ("moe", known.is_moe))
    }
    spread = learn_spread(left_out)
    return IntervalModel(spread, learn_quantiles(left_out, spread), pair_error)


def learn_spread(left_out: LeftOut) -> dict[Uncertainty, float]:
    """By maximum likelihood of Student's t."""
    weights, nu = equal_weights(left_out.sources), DEGREES_OF_FREEDOM
    squares = (
        np.stack([np.broadcast_to(part, left_out.values.shape) for part in left_out.exposures.parts]) ** 2
    )
    learned = [name for name in UNCERTAINTIES if name in SPREAD]
    squares = squares[[UNCERTAINTIES.index(name) for name in learned]]
    start = np.log([SPREAD[name] for name in learned])

    def negative_log(values: Array) -> tuple[float, Array]:
        parts = np.exp(2.0 * values)
        variance = parts @ squares
        ratio = left_out.values**2 / variance / nu
        each = 0.5 * np.log(variance) + (nu + 1.0) / 2.0 * np.log1p(ratio)
        slope = 0.5 * (1.0 - (nu + 1.0) * ratio / (1.0 + ratio)) / variance
        pull = values - start
        gradient = 2.0 * parts * (squares @ (weights * slope)) + 2.0 * PULL * pull
        return float(weights @ each + PULL * pull @ pull), gradient

    found = minimize(negative_log, start, jac=True, method="L-BFGS-B")
    return {name: round(float(value), 4) for name, value in zip(learned, np.exp(found.x), strict=True)}


def learn_quantiles(left_out: LeftOut, spread: Mapping[Uncertainty, float]) -> dict[str, list[float]]:
    """Low and high quantile of the errors in spreads, by kind."""
    variances = IntervalModel(spread, {}, {}).variances(left_out.exposures)
    scores = left_out.values / np.sqrt(sum(variances.parts))
    quantiles = {}
    for kind, rows in (("dense", ~left_out.is_moe), ("moe", left_out.is_moe)):
        low, high = -FEW_WIDTH, FEW_WIDTH
        if rows.sum() >= FEW_SCORES:
            order = np.argsort(scores[rows])
            weight = equal_weights(np.array(left_out.sources)[rows].tolist())[order]
            middle = (np.cumsum(weight) - weight / 2.0) / weight.sum()
            tail = (1.0 - COVERAGE) / 2.0
            low, high = np.interp([tail, 1.0 - tail], middle, scores[rows][order])
        quantiles[kind] = [round(min(float(low), -MIN_QUANTILE), 4), round(max(float(high), MIN_QUANTILE), 4)]
    return quantiles


def equal_weights(sources: Sequence[str]) -> Array:
    """By row, so that every source weighs the same, however many rows it has; they add up to 1."""
    names, inverse, counts = np.unique(np.array(sources), return_inverse=True, return_counts=True)
    return 1.0 / counts[inverse] / max(len(names), 1)


def _pair_error(values: Array, groups: NDArray[np.str_]) -> float:
    """Log error of the ratio of two predictions of one group: much of what is wrong is wrong for both."""
    errors = [np.zeros(0)]
    for group in np.unique(groups):
        inside = values[groups == group]
        errors.append(np.abs(np.subtract.outer(inside, inside))[np.triu_indices(len(inside), k=1)])
    pairs = np.concatenate(errors)
    return float(np.quantile(pairs, COVERAGE)) if len(pairs) else 0.15


def _is_moe(table: Table) -> Array:
    return np.broadcast_to(table.inputs.is_moe, (len(table.sources),))
