"""Which plan to measure next: the one with the greatest expected gain over the best measured.

Expected improvement (Jones, Schonlau and Welch, Efficient Global Optimization, 1998, equation 15) in log
time under the cluster's posterior, in which the errors of plans are correlated by their terms and by how
alike they are, times the probability that the plan runs at all.
"""

from collections.abc import Sequence

import numpy as np

from tools.calibrate.runs import Run
from tools.cost.calibration import SIGMAS, Calibration
from tools.cost.cluster import features, likeness
from tools.cost.encode import encode
from tools.cost.inputs import Array
from tools.cost.predict import Batch, fit_probability, predict_rows
from tools.scenario import Scenario

PRIOR_RUNS = 2.0
"""Alike runs that the usual share of crashes counts as."""
USUAL_CRASHES = 0.2
"""Of plans that fit: as in `tools.calibrate.memory`."""


def expected_gains(
    scenarios: Sequence[Scenario], calibration: Calibration, runs: Sequence[Run]
) -> tuple[Array, Array]:
    """Of each plan: the share of the best measured step that it is expected to save, and the predicted
    seconds. Without a measured run the gain is over the slowest plan predicted."""
    x, keys = encode(scenarios)
    batch = predict_rows(x, keys, [s.training.precision for s in scenarios], calibration)
    seconds = batch.costs.step_time_s
    measured = [run.measured.step_time_s for run in runs if run.measured.step_time_s]
    best_s = min(measured, default=float(seconds.max()))
    improvement = _improvement(np.log(best_s / seconds), _sigma(batch, calibration))
    return -np.expm1(-improvement) * _runs_probability(batch, calibration, runs), seconds


def _sigma(batch: Batch, calibration: Calibration) -> Array:
    if calibration.cluster and calibration.cluster.weights:
        return calibration.cluster.spread(batch.inputs, batch.keys, calibration.shifts)[1]
    return np.asarray(np.log(batch.high_s / batch.low_s) / (2.0 * SIGMAS))


def _improvement(ahead: Array, sigma: Array) -> Array:
    from scipy.special import ndtr

    z = ahead / sigma
    density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    return np.asarray(sigma * (density + z * ndtr(z)))


def _runs_probability(batch: Batch, calibration: Calibration, runs: Sequence[Run]) -> Array:
    """That the plan fits, and that it does not crash as plans like it did."""
    fits = fit_probability(batch.costs.memory_bytes, batch.inputs.memory_bytes, batch.memory_error)
    tried = [run for run in runs if run.scenario.plan]
    if not tried:
        return fits * (1.0 - USUAL_CRASHES)
    x, _ = encode([run.scenario for run in tried])
    alike = likeness(calibration.cluster_prior, features(batch.inputs), features(x))
    crashed = np.array([run.crashed for run in tried], dtype=np.float64)
    share = (alike @ crashed + PRIOR_RUNS * USUAL_CRASHES) / (alike.sum(axis=1) + PRIOR_RUNS)
    return np.asarray(fits * (1.0 - share))
