"""80% intervals from what the model got wrong before: normalised split conformal prediction.

Residuals are logarithms of predicted over measured time of rows whose group (or whole source) was left out
of the fit. Each is divided by the usual error of its stack (framework on a device generation, dense or
mixture of experts, shrunk towards all stacks), and quantiles of these scores are taken by how new the row was
to the fit that predicted it. A scenario outside the measured ranges gets a wider interval.
Source: Lei et al., Distribution-Free Predictive Inference for Regression (2018), section 5.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from tools.cost.coefficients import RowKeys
from tools.cost.inputs import Array, Inputs

COVERAGE = 0.8
SHRINKAGE_ROWS = 8.0
"""A stack's own error counts as much as all stacks' error when it has this many rows."""
WIDENING_PER_DOUBLING = 0.15
"""Wider by this share for each factor of two outside a measured range: an assumption, not a fit."""
UNMEASURED = 1.25
"""An unmeasured stack's interval is wider than a measured one's of the same error by at least this factor."""
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
    devices: Sequence[str]
    ranges: Mapping[str, Sequence[float]]

    def to_data(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> "IntervalModel":
        return cls(**data)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Known:
    """What a fit has seen."""

    stacks: frozenset[str]
    frameworks: frozenset[str]
    generations: frozenset[str]
    devices: frozenset[str]


def known_of(keys: RowKeys) -> Known:
    rows = range(len(keys.device))
    return Known(
        frozenset(keys.key("stack", row) for row in rows),
        frozenset(keys.framework),
        frozenset(keys.generation),
        frozenset(keys.device),
    )


def novelty(keys: RowKeys, row: int, known: Known) -> int:
    """0: this stack and device were measured; 1: their parts were; 2: a part never was."""
    if keys.framework[row] not in known.frameworks or keys.generation[row] not in known.generations:
        return 2
    return int(keys.key("stack", row) not in known.stacks or keys.device[row] not in known.devices)


def kind_names(x: Inputs) -> list[str]:
    return ["moe" if moe else "dense" for moe in np.atleast_1d(x.is_moe)]


@dataclass(frozen=True)
class Residuals:
    """Out-of-fold log errors; rows may repeat. Rows that are not `headline` do not count in the usual error,
    which unmeasured stacks fall back to."""

    values: Array
    novelties: NDArray[np.int64]
    headline: NDArray[np.bool_]
    groups: Sequence[str]
    """Rows of one group were predicted by one fit and may be compared; "" compares with none."""


def learn(x: Inputs, keys: RowKeys, residuals: Residuals) -> IntervalModel:
    kinds = np.array(kind_names(x))
    labels = np.array([f"{keys.key('stack', row)}|{kind}" for row, kind in enumerate(kinds)])
    values, seen = residuals.values, residuals.novelties == 0
    usual = {kind: _mean_error(values[residuals.headline & (kinds == kind)]) for kind in ("dense", "moe")}
    stack = {
        str(label): shrunk(values[seen & (labels == label)], usual[label.rsplit("|", 1)[1]])
        for label in np.unique(labels)
    }
    scales = np.array(
        [stack[label] if s else usual[k] for label, s, k in zip(labels, seen, kinds, strict=True)]
    )
    known = known_of(keys)
    names = np.asarray(residuals.groups)
    by_kind = {kind: residuals.headline & (kinds == kind) for kind in ("dense", "moe")}
    return IntervalModel(
        usual_error=usual,
        stack_error=stack,
        quantiles=_quantiles_by_novelty(values / scales, residuals.novelties),
        pair_error={kind: _pair_error(values[rows], names[rows]) for kind, rows in by_kind.items()},
        stacks=sorted(known.stacks),
        frameworks=sorted(known.frameworks),
        generations=sorted(known.generations),
        devices=sorted(known.devices),
        ranges={name: [float(np.min(getattr(x, name))), float(np.max(getattr(x, name)))] for name in RANGED},
    )


def _quantiles_by_novelty(scores: Array, novelties: NDArray[np.int64]) -> dict[str, list[float]]:
    """The newer, the wider: a level is never narrower than the one before it."""
    low, high = _quantiles(scores[novelties == 0])
    table = {"0": [low, high]}
    for level in (1, 2):
        own_low, own_high = _quantiles(scores[novelties >= level])
        low, high = min(own_low, low * UNMEASURED), max(own_high, high * UNMEASURED)
        table[str(level)] = [low, high]
    return table


def _pair_error(values: Array, groups: NDArray[np.str_]) -> float:
    """Log error of the ratio of two predictions of one group: much of what is wrong is wrong for both."""
    found = [np.zeros(0)]
    for group in np.unique(groups[groups != ""]):
        inside = values[groups == group]
        found.append(np.abs(np.subtract.outer(inside, inside))[np.triu_indices(len(inside), k=1)])
    pairs = np.concatenate(found)
    return float(np.quantile(pairs, COVERAGE)) if len(pairs) else 0.15


def _mean_error(residuals: Array) -> float:
    return float(np.mean(np.abs(residuals))) if len(residuals) else 0.2


def shrunk(residuals: Array, usual: float) -> float:
    total = SHRINKAGE_ROWS * usual + float(np.sum(np.abs(residuals)))
    return total / (SHRINKAGE_ROWS + len(residuals))


def _quantiles(scores: Array) -> list[float]:
    """Lower and upper score with the finite-sample correction; never excluding the prediction itself."""
    if len(scores) < 10:
        return [-3.0, 3.0]
    tail = (1.0 - COVERAGE) / 2.0
    upper = min(1.0, np.ceil((len(scores) + 1) * (1.0 - tail)) / len(scores))
    low, high = np.quantile(scores, 1.0 - upper), np.quantile(scores, upper)
    return [min(float(low), -0.1), max(float(high), 0.1)]


def known_to(model: IntervalModel) -> Known:
    """What the model's own fit has seen."""
    return Known(*(frozenset(v) for v in (model.stacks, model.frameworks, model.generations, model.devices)))


def interval(model: IntervalModel, x: Inputs, keys: RowKeys, step_time_s: Array) -> tuple[Array, Array]:
    """Low and high of each row. `keys` has one entry a row, or one for all rows."""
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
    doublings: Array = np.zeros(())
    for name, (low, high) in model.ranges.items():
        value = np.maximum(getattr(x, name), 1.0)
        beyond = np.log2(value / max(high, 1.0)).clip(min=0.0) + np.log2(max(low, 1.0) / value).clip(min=0.0)
        doublings = doublings + beyond
    return 1.0 + WIDENING_PER_DOUBLING * doublings
