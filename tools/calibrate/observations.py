"""What runs say: log errors of steps, of terms of a profiled step and of constants that a probe measured,
with their slopes by the cost model's constants; and what peaks, crashes and runs that fitted say about
memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tools.calibrate.runs import PIPELINE, Run
from tools.cost.calibration import Calibration
from tools.cost.cluster import Points, features, log_bounds, nudged_terms_s, resolved_logs, with_slopes
from tools.cost.constants import RowKeys, definitions
from tools.cost.encode import encode, scenario_device
from tools.cost.inputs import Array, Inputs
from tools.cost.memory import GIB
from tools.cost.predict import LOGISTIC, predict, resolve_recompute
from tools.cost.terms import STEP_TERMS

TERM_NOISE = 0.1
"""Of a term of a profiled step: profiled steps are slower than plain ones, and rules tell terms apart."""
CONSTANT_NOISE = 0.05
"""Of a constant measured by itself: a training step does not run it alone."""
MIN_SHARE = 0.003
"""Terms below this share of the step are indistinguishable from zero."""
MIXED_TERMS = {"compute": ("compute", "recompute"), PIPELINE: ("pp_comm_exposed", "pipeline_bubble")}
"""Terms that a trace shows as one."""
UNMEASURED_TERMS = ("host_and_other", "recompute", "pp_comm_exposed", "pipeline_bubble")


class Observations:
    """The runs as observations: a step each, a term each, a constant each."""

    def __init__(self, runs: Sequence[Run], base: Calibration, scatter: float = 0.0) -> None:
        """`scatter` is a standard deviation that each step has beside its own noise."""
        scenarios = [run.scenario for run in runs if run.scenario.plan]
        index = {i: row for row, i in enumerate(i for i, run in enumerate(runs) if run.scenario.plan)}
        self.names = [d.name for d in definitions()]
        self.term_names = list(STEP_TERMS)
        self.base = base
        self.keys = RowKeys([], [], [])
        self.x: Inputs | None = None
        if scenarios:
            x, self.keys = encode(scenarios)
            settings = base.memory_settings(self.keys, [s.training.precision for s in scenarios])
            self.x = resolve_recompute(x, settings)
            self.logs = np.atleast_2d(resolved_logs(self.keys, len(scenarios), base.shifts))
            self._predicted_s = nudged_terms_s(self.x, self.logs)[:, 0]
        self.row_of: list[int] = []
        """The run of each observation."""
        self._wanted: list[tuple[int, str, float]] = []
        """Row of `x` or -1, "" for the step or a name, what was measured."""
        noise: list[float] = []
        for i, run in enumerate(runs):
            m, row = run.measured, index.get(i, -1)
            if m.step_time_s and row >= 0:
                self._add(i, row, "", m.step_time_s)
                noise.append(math.hypot(m.noise, scatter))
                # the profiled step is slower than the plain one: its terms count by their share of it
                share = min(1.0, m.step_time_s / max(sum(m.terms_s.values()), 1e-12))
                for term, seconds in m.terms_s.items():
                    if term not in UNMEASURED_TERMS and self._can_learn(row, term):
                        self._add(i, row, term, seconds * share)
                        noise.append(TERM_NOISE)
            for constant, value in m.constants.items():
                self._add(i, -1, constant, value)
                noise.append(CONSTANT_NOISE)
        self.noise = np.array(noise)
        self.is_step = np.array([name == "" for _, name, _ in self._wanted], dtype=np.bool_)
        self.step_s = np.array([value for _, name, value in self._wanted if not name])
        alone = encode([runs[0].scenario])[1] if not scenarios else self.keys
        self.first_key = RowKeys(alone.generation[:1], alone.device[:1], alone.framework[:1])
        self.start = resolved_logs(self.first_key, 1, base.shifts)[:, 0]

    def _can_learn(self, row: int, term: str) -> bool:
        """Whether the plan has the term by prediction: one that no constant moves only moves the step."""
        terms_s = self._predicted_s[:, row]
        return bool(terms_s[self._parts(term)].sum() > MIN_SHARE * terms_s.sum())

    def _parts(self, term: str) -> list[int]:
        return [self.term_names.index(part) for part in MIXED_TERMS.get(term, (term,))]

    def _add(self, run: int, row: int, name: str, value: float) -> None:
        self.row_of.append(run)
        self._wanted.append((row, name, value))

    def observe(self, moves: Array) -> tuple[Array, Points]:
        """Log of measured over predicted after the constants' moves, and how the observations lie."""
        low, high = log_bounds()
        errors, slopes, lying, shared = [], [], [], []
        if self.x is not None:
            inside = np.clip(self.logs + moves[:, None], low, high)
            nudged, own = nudged_terms_s(self.x, inside), features(self.x)
        for row, name, value in self._wanted:
            if row < 0:
                place = self.names.index(name)
                errors.append(np.log(value) - self.start[place] - moves[place])
                slopes.append(np.eye(len(self.names))[place])
                lying.append(np.zeros(len(self.base.cluster_prior.lengths)))
                shared.append(0.0)
                continue
            whole = nudged[:, :, row].sum(axis=0)
            least = MIN_SHARE * whole[0] if name else 0.0
            seconds = nudged[self._parts(name), :, row].sum(axis=0) if name else whole
            log_s, slope = with_slopes(seconds + least)
            errors.append(np.log(value + least) - log_s)
            slopes.append(slope)
            lying.append(own[row])
            shared.append(1.0)
        return np.array(errors), Points(np.array(slopes), np.array(lying), np.array(shared))


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
