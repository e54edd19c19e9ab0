"""What peaks, crashes and runs that fitted say about the memory of one cluster's plans.

The peak is off by a common factor and by each run's own error, both log-normal; a crash says that the peak
was above the device's memory, or that something else broke. On a grid, exactly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tools.calibrate.runs import Run
from tools.cost.encode import scenario_device
from tools.cost.inputs import Array
from tools.cost.memory import GIB
from tools.cost.predict import LOGISTIC, predict

COMMON_SHARE = 0.5
"""Of the variance of a peak's error: what all runs of a cluster share. An assumption: equal parts."""
OTHER_CRASHES = 0.2
"""Probability that a plan which fits crashes for another reason: a fifth, an assumption."""
MAX_DEVIATION = 4.0
"""Standard deviations beyond which a peak is left out."""
SPAN, STEPS = 5.0, 401


@dataclass(frozen=True)
class MemoryShift:
    shift: float
    """Logarithm of the factor on predicted peaks."""
    error: float
    """Standard deviation of a further run's peak around that."""
    left_out: tuple[tuple[int, str], ...] = ()
    """Runs whose peak cannot be, by their place, and why."""


def learn_memory(runs: Sequence[Run], memory_error: float) -> MemoryShift:
    planned = [i for i, run in enumerate(runs) if run.scenario.plan]
    common, alone = memory_error * math.sqrt(COMMON_SHARE), memory_error * math.sqrt(1.0 - COMMON_SHARE)
    shifts = np.linspace(-SPAN, SPAN, STEPS) * common
    log_weights = -0.5 * (shifts / common) ** 2
    left_out = []
    for i, prediction in zip(planned, predict([runs[i].scenario for i in planned]), strict=True):
        run, peak = runs[i], runs[i].measured.peak_memory_gib
        capacity = float(scenario_device(run.scenario.cluster).memory_bytes) / GIB
        if peak is not None:
            error = math.log(peak / prediction.peak_memory_gib)
            if abs(error) > MAX_DEVIATION * memory_error:
                factor = math.exp(abs(error))
                left_out.append((i, f"its peak is {factor:.2f} times off the prediction and was not used"))
            else:
                log_weights = log_weights - 0.5 * ((error - shifts) / alone) ** 2
        elif run.crashed or run.measured.step_time_s:
            log_weights = log_weights + _outcome(
                shifts, math.log(capacity / prediction.peak_memory_gib), alone, run.crashed
            )
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    shift = float(weights @ shifts)
    spread = float(weights @ (shifts - shift) ** 2)
    return MemoryShift(shift, math.sqrt(alone**2 + spread), tuple(left_out))


def _outcome(shifts: Array, margin: float, alone: float, crashed: bool) -> Array:
    """Log probability of having crashed, or not, under each shift."""
    fits = 1.0 / (1.0 + np.exp(np.clip((shifts - margin) * LOGISTIC / alone, -500.0, 500.0)))
    ran = fits * (1.0 - OTHER_CRASHES)
    return np.asarray(np.log(np.maximum(1.0 - ran if crashed else ran, 1e-12)))
