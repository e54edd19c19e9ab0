"""The fit finds what made the measurements, shrinks what it cannot know, and shrugs off a wild row."""

from dataclasses import replace

import numpy as np
import pytest

from research.fit import Design, Table, fit, row_weights
from tools.model.constants import Shifts, constant_priors, resolve
from tools.physics.encode import encode
from tools.physics.inputs import Array, Inputs, RowKeys
from tools.physics.step import step_terms
from tools.scenario import Scenario

TRUTH: Shifts = {
    "gemm_efficiency": {"everywhere": {"all": -0.15}},
    "tp_exposed": {"everywhere": {"all": 0.3}},
}


def seconds(x: Inputs, keys: RowKeys, shifts: Shifts) -> Array:
    return step_terms(x, resolve(keys, shifts)).total


def measured(scenarios: list[Scenario], shifts: Shifts) -> Table:
    """Runs that the shifted model made up, twelve of each of four sources."""
    x, keys = encode(scenarios)
    sources = tuple(f"source-{n % 4}" for n in range(len(scenarios)))
    return Table(x, keys, np.array(seconds(x, keys, shifts)), sources, sources, np.ones(len(sources), bool))


def predicted(table: Table, shifts: Shifts) -> Array:
    return seconds(table.inputs, table.keys, shifts)


def test_a_fit_predicts_what_shifted_constants_produced(scenarios: list[Scenario]) -> None:
    table = measured(scenarios, TRUTH)
    before = np.abs(predicted(table, {}) / table.measured_s - 1.0)
    after = np.abs(predicted(table, fit(table).shifts) / table.measured_s - 1.0)
    assert before.mean() > 0.04
    assert after.mean() < before.mean() / 1.25


def test_a_source_that_is_slow_throughout_gets_a_factor_and_moves_the_constants_little(
    scenarios: list[Scenario],
) -> None:
    table = measured(scenarios, {})
    slow = np.array([source == "source-2" for source in table.sources])
    fitted = fit(replace(table, measured_s=np.where(slow, table.measured_s * 1.2, table.measured_s)))
    assert fitted.source_factors["source-2"] > 3 * abs(fitted.source_factors["source-1"])
    others = predicted(table, fitted.shifts)[~slow] / table.measured_s[~slow] - 1.0
    assert np.abs(others).mean() < 0.05


def test_the_fit_s_constants_are_those_that_predictions_use(scenarios: list[Scenario]) -> None:
    _, keys = encode(scenarios)
    plan = Design(keys)
    shifts = np.random.default_rng(0).normal(0.0, 0.05, len(plan.parameters)).round(4)
    shifts[np.abs(shifts) < 5e-4] = 0.0
    used = resolve(keys, plan.as_shifts(shifts))
    fitted = dict(zip(plan.names, np.exp(plan.bounded(plan.log_values(shifts))), strict=True))
    for d in constant_priors():
        np.testing.assert_allclose(getattr(used, d.name), fitted[d.name], rtol=1e-9, err_msg=d.name)


def test_many_rows_of_one_source_count_less_each_and_very_small_models_less_still() -> None:
    sources = ["many"] * 48 + ["few"] * 3 + ["vtrain-single"] * 3
    weights = row_weights(sources)
    assert weights[0] == pytest.approx(0.5)
    assert weights[48] == 1.0
    assert weights[-1] == pytest.approx(0.15)
