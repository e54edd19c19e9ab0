"""The shipped model against the published runs."""

import numpy as np
import pytest
from numpy.typing import NDArray

from research.errors import correct
from research.fit import cross_validate, source_folds, tabulate
from research.published import (
    Measurement,
    measurements,
    read_runs,
    sweep_measurements,
    sweep_plans,
)
from tools.model.calibration import shipped_calibration
from tools.model.constants import constant_priors
from tools.model.predict import Prediction, predict
from tools.model.runs import Run


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return read_runs()


@pytest.fixture(scope="module")
def rows(runs: list[Run]) -> list[Measurement]:
    """Reading refuses any row that the rules do not accept."""
    return measurements(runs)


@pytest.fixture(scope="module")
def predictions(rows: list[Measurement]) -> list[Prediction]:
    return predict([row.scenario for row in rows])


def column(predictions: list[Prediction], name: str) -> NDArray[np.float64]:
    return np.array([getattr(p, name) for p in predictions], dtype=np.float64)


def measured(rows: list[Measurement]) -> NDArray[np.float64]:
    return np.array([row.step_time_s for row in rows])


def headline(rows: list[Measurement]) -> NDArray[np.bool_]:
    return np.array([row.is_headline for row in rows])


def test_every_published_run_is_accepted_and_predicted(
    rows: list[Measurement], predictions: list[Prediction]
) -> None:
    assert len(predictions) == len(rows) > 500
    assert np.isfinite(column(predictions, "step_time_s")).all()


def test_runs_that_ran_are_predicted_to_fit(predictions: list[Prediction]) -> None:
    assert column(predictions, "fits").mean() >= 0.98


def test_peak_memory_is_within_thirteen_percent_on_average(
    rows: list[Measurement], predictions: list[Prediction]
) -> None:
    errors = [
        abs(p.peak_memory_gib / row.peak_memory_gib - 1.0)
        for row, p in zip(rows, predictions, strict=True)
        if row.peak_memory_gib is not None
    ]
    assert len(errors) > 30
    assert np.mean(errors) <= 0.13


def test_runs_that_the_residual_knows_are_predicted_within_six_percent_on_average(
    rows: list[Measurement], predictions: list[Prediction]
) -> None:
    error = np.abs(column(predictions, "step_time_s") / measured(rows) - 1.0)
    assert error[headline(rows)].mean() <= 0.06


def test_the_intervals_hold_most_runs_and_not_all(
    rows: list[Measurement], predictions: list[Prediction]
) -> None:
    """In sample, so somewhat more than the 80% that left-out rows see."""
    low, high = column(predictions, "step_time_low_s"), column(predictions, "step_time_high_s")
    inside = (low <= measured(rows)) & (measured(rows) <= high)
    assert 0.75 <= inside[headline(rows)].mean() <= 0.97


def test_plans_of_the_sweep_that_crashed_are_called_unlikely_to_fit_and_those_that_ran_are_not(
    runs: list[Run],
) -> None:
    """About 7% of the crashes had other reasons than memory."""
    plans = sweep_plans(runs)
    fits = np.array([p.fits for p in predict([plan.scenario for plan in plans])])
    crashed = np.array([plan.measurement is None for plan in plans])
    assert 1.0 - fits[crashed].mean() >= 0.76
    assert fits[~crashed].mean() >= 0.975


def test_runs_of_sources_left_out_whole_are_predicted_as_well_as_promised(
    rows: list[Measurement], runs: list[Run]
) -> None:
    """By a fit, and by a residual that must not harm a source it has not seen."""
    table, sweep = tabulate(rows), tabulate(sweep_measurements(runs))
    shipped = shipped_calibration()
    result = cross_validate(table, source_folds(table.sources), sweep, shipped.shifts)
    corrected = correct(table, result, shipped.residual.prior)
    sources, moe = np.array(table.sources), np.asarray(table.inputs.is_moe) > 0
    names = np.unique(sources[table.headline])

    def over_sources(predicted_s: NDArray[np.float64]) -> float:
        errors = np.abs(predicted_s / table.measured_s - 1.0)
        return float(np.mean([errors[table.headline & (sources == name)].mean() for name in names]))

    assert over_sources(corrected.predicted_s) <= min(0.12, over_sources(result.predicted_s))
    errors = np.abs(corrected.predicted_s / table.measured_s - 1.0)
    assert np.median(errors[table.headline]) <= 0.09
    assert errors[table.headline & moe].mean() <= 0.16


def test_the_model_has_at_most_60_fitted_and_hand_set_numbers_beside_the_residual() -> None:
    factors = sum(len(d.prior_factors) for d in constant_priors())
    shifts = shipped_calibration().shifts
    assert factors + sum(len(keys) for levels in shifts.values() for keys in levels.values()) <= 60
