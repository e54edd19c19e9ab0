"""The fit finds what made the measurements, shrinks what it cannot know, and shrugs off a wild row."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from research.fit import _derivatives, design, fit, row_weights
from tools.cost.calibration import robust
from tools.cost.constants import RowKeys, Shifts, definitions, resolve
from tools.cost.encode import encode
from tools.cost.inputs import Array, Inputs
from tools.cost.step import step_breakdown
from tools.scenario import Scenario

TRUTH: Shifts = {
    "gemm_efficiency": {"everywhere": {"all": -0.15}, "generation": {"ampere": 0.1}},
    "tp_exposed": {"everywhere": {"all": 0.3}},
}


def seconds(x: Inputs, keys: RowKeys, shifts: Shifts) -> Array:
    return step_breakdown(x, resolve(keys, shifts)).total


def test_a_fit_predicts_what_shifted_constants_produced(scenarios: list[Scenario]) -> None:
    x, keys = encode(scenarios)
    measured = seconds(x, keys, TRUTH)
    before = np.abs(seconds(x, keys, {}) / measured - 1.0)
    after = np.abs(seconds(x, keys, fit(x, keys, measured, np.ones(len(scenarios)))) / measured - 1.0)
    assert before.mean() > 0.05
    assert after.max() < 0.01


def test_measurements_that_follow_the_priors_leave_them_alone(scenarios: list[Scenario]) -> None:
    x, keys = encode(scenarios)
    found = fit(x, keys, seconds(x, keys, {}), np.ones(len(scenarios)))
    largest = max(abs(v) for levels in found.values() for keys_ in levels.values() for v in keys_.values())
    assert largest < 1e-3


def test_one_wild_row_moves_the_others_little(scenarios: list[Scenario]) -> None:
    x, keys = encode(scenarios)
    measured = np.array(seconds(x, keys, TRUTH))
    measured[5] *= 10.0
    found = seconds(x, keys, fit(x, keys, measured, np.ones(len(scenarios))))
    others = np.delete(np.abs(found / measured - 1.0), 5)
    assert np.median(others) < 0.03


def test_a_row_of_little_weight_counts_little(scenarios: list[Scenario]) -> None:
    x, keys = encode(scenarios[::3])
    measured = np.array(seconds(x, keys, {}))
    measured[:4] *= 1.3
    errors = []
    for weight in (1.0, 0.01):
        weights = np.where(np.arange(len(measured)) < 4, weight, 1.0)
        found = seconds(x, keys, fit(x, keys, measured, weights))
        errors.append(float(np.abs(found[4:] / measured[4:] - 1.0).mean()))
    assert errors[1] < errors[0]


@pytest.mark.parametrize("shift", [-50.0, 50.0])
def test_every_constant_the_fit_tries_is_within_its_bounds(scenarios: list[Scenario], shift: float) -> None:
    _, keys = encode(scenarios)
    plan = design(keys)
    tried = plan.coefficients(np.full(len(plan.parameters), shift))
    for d in definitions():
        values = np.atleast_1d(getattr(tried, d.name))
        assert np.all((values >= d.low) & (values <= d.high)), d.name


def test_the_fit_s_constants_are_those_that_predictions_use(scenarios: list[Scenario]) -> None:
    _, keys = encode(scenarios)
    plan = design(keys)
    shifts = np.random.default_rng(0).normal(0.0, 0.05, len(plan.parameters)).round(5)
    used, fitted = resolve(keys, plan.as_shifts(shifts)), plan.coefficients(shifts)
    for d in definitions():
        np.testing.assert_allclose(getattr(used, d.name), getattr(fitted, d.name), rtol=1e-9, err_msg=d.name)


def test_derivatives_by_shared_evaluations_are_those_lever_by_lever(scenarios: list[Scenario]) -> None:
    x, keys = encode(scenarios)
    plan = design(keys)
    shifts = np.zeros(len(plan.parameters))

    def predict(values: Array) -> Array:
        return np.log(step_breakdown(x, plan.coefficients(values)).total)

    table = _derivatives(plan, predict, shifts, predict(shifts))
    for parameter in range(0, len(plan.parameters), 7):
        nudged = shifts.copy()
        nudged[parameter] = 1e-4
        np.testing.assert_allclose(table[:, parameter], (predict(nudged) - predict(shifts)) / 1e-4, atol=1e-9)


@given(raw=st.floats(-1e4, 1e4))
@example(raw=1e-8)
def test_the_robust_residual_is_the_residual_when_small_and_grows_slower_when_large(raw: float) -> None:
    value, slope = (float(part[0]) for part in robust(np.array([raw])))
    assert value * raw >= 0.0
    assert abs(value) <= abs(raw) * (1 + 1e-9)
    assert 0.0 <= slope <= 1.0 + 1e-6
    if abs(raw) < 0.1:
        assert value == pytest.approx(raw, rel=1e-2)
        assert slope == pytest.approx(1.0, rel=1e-2)
    if abs(raw) > 100:
        assert abs(value) < abs(raw) / 3


def test_only_the_light_source_is_light() -> None:
    assert row_weights(["a", "small", "b"], "small").tolist() == [1.0, 0.3, 1.0]
