"""Predictions of rows that the fit has not seen: groups left out in turn, or whole sources."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from tools.cost.coefficients import RowKeys, resolve
from tools.cost.encode import encode
from tools.cost.evaluate import resolve_recompute
from tools.cost.inputs import Array, Inputs
from tools.cost.intervals import known_of, novelty
from tools.cost.memory_settings import memory_settings
from tools.cost.step import step_breakdown
from tools.fit.calibrate import fit, row_weights
from tools.fit.measurements import SMALL_MODEL_SOURCE, Measurement, step_times

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
