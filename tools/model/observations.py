"""What runs say: log errors of steps, of terms of a profiled step and of constants that a probe measured,
with their slopes by the cost model's constants; and what peaks, crashes and runs that fitted say about
memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.model.calibration import LOGISTIC, Calibration, fit_probability
from tools.model.cluster import (
    Points,
    features,
    log_bounds,
    nudged_terms_s,
    resolved_logs,
    signatures,
    terms_s,
    with_slopes,
)
from tools.model.cluster_findings import ClusterFinding, contradictions_among, far_off
from tools.model.constants import constant_priors
from tools.model.evidence import SeenRuns
from tools.model.intervals import exposures, spreads
from tools.model.likeness import Traits
from tools.model.peaks import peak_reading, predicted_gib
from tools.model.predict import evaluate, predict, resolve_recompute
from tools.model.runs import PIPELINE, Run
from tools.physics.arithmetic import ZERO
from tools.physics.encode import encode, scenario_device
from tools.physics.inputs import Array, Inputs, RowKeys
from tools.physics.memory import GIB
from tools.physics.step import StepTerms
from tools.physics.terms import STEP_TERMS
from tools.scenario import RECOMPUTES

TERM_NOISE = 0.1
"""Error of a profiled term: profiled steps are slower than plain ones, and rules tell terms apart."""
CONSTANT_NOISE = 0.05
"""Error of a constant measured by itself: a training step does not run it alone."""
MIN_SHARE = 0.003
"""Terms below this share of the step are indistinguishable from zero."""
MIXED_TERMS = {"compute": ("compute", "recompute"), PIPELINE: ("pp_comm_exposed", "pipeline_bubble")}
"""Terms that a trace shows as one."""
UNMEASURED_TERMS = ("host_and_other", "recompute", "pp_comm_exposed", "pipeline_bubble")
COMMON_SHARE = 0.5
"""Part of the variance of a peak's error that all runs of a cluster share. An assumption: equal parts."""
OTHER_CRASHES = 0.06
"""Probability that a plan which fits crashes for another reason: of the Ultra-Scale Playbook's plans that
need less than three quarters of the memory 41 of 680 did."""
MAX_DEVIATION = 4.0
"""Standard deviations beyond which a peak is left out."""
SPAN, STEPS = 5.0, 401


class Wanted(NamedTuple):
    """What one observation measured."""

    run: int
    row: int
    """Index among the runs with a plan; -1 for a constant measured by itself."""
    name: str
    """A term or a constant; "" for the whole step."""
    value: float
    noise: float


class Observations:
    """The runs as observations: a step each, a term each, a constant each."""

    def __init__(self, runs: Sequence[Run], base: Calibration, repeats: Sequence[float]) -> None:
        """`repeats` are the standard deviations that the runs' steps have beside their own noise."""
        scenarios = [run.scenario for run in runs if run.scenario.plan]
        self.names = [d.name for d in constant_priors()]
        self.term_names = list(STEP_TERMS)
        self.base = base
        self.x: Inputs | None = None
        predicted_s = np.zeros((len(self.term_names), 0))
        if scenarios:
            x, keys = encode(scenarios)
            settings = base.memory_settings(keys, [s.training.precision for s in scenarios])
            self.x = resolve_recompute(x, settings)
            self.logs = np.atleast_2d(resolved_logs(keys, len(scenarios), base.shifts))
            predicted_s = nudged_terms_s(self.x, self.logs)[:, 0]
            known = base.residual.correct(self.x, keys).broadcast(len(scenarios))
            known = replace(known, novelty=ZERO)  # what is measured is no novelty
            self.known = known.log_factor
            """What published runs say of each, as logarithms."""
            corrected = StepTerms(*(predicted_s * np.exp(self.known)))
            self.traits = Traits.of(self.x, keys)
            self.exposed = exposures(self.x, corrected, known.distance).broadcast(len(scenarios))
            self.own = base.cluster_prior.own * spreads(base.intervals, self.x, corrected, known)
            """What each plan may have alone, as a standard deviation."""
        else:
            keys = encode([runs[0].scenario])[1]
        self._wanted: list[Wanted] = []
        row = -1
        for i, run in enumerate(runs):
            m, row = run.measured, row + (run.scenario.plan is not None)
            if m.step_time_s and run.scenario.plan:
                self._wanted.append(Wanted(i, row, "", m.step_time_s, math.hypot(m.noise, repeats[i])))
                # the profiled step is slower than the plain one: its terms count by their share of it
                share = min(1.0, m.step_time_s / max(sum(m.terms_s.values()), 1e-12))
                # a term that the plan does not have by prediction only moves the step: no constant moves it
                least_s, terms_s = MIN_SHARE * predicted_s[:, row].sum(), predicted_s[:, row]
                self._wanted += [
                    Wanted(i, row, term, seconds * share, TERM_NOISE)
                    for term, seconds in m.terms_s.items()
                    if term not in UNMEASURED_TERMS and terms_s[self._parts(term)].sum() > least_s
                ]
            self._wanted += [
                Wanted(i, -1, name, value, CONSTANT_NOISE) for name, value in m.constants.items()
            ]
        self.row_of = [wanted.run for wanted in self._wanted]
        """The run of each observation."""
        self.noise = np.array([wanted.noise for wanted in self._wanted])
        self.is_step = np.array([wanted.name == "" for wanted in self._wanted], dtype=np.bool_)
        self.first_key = RowKeys(keys.generation[:1], keys.device[:1], keys.framework[:1])
        self.start = resolved_logs(self.first_key, 1, base.shifts)[:, 0]

    def findings(self, runs: Sequence[Run], kept: NDArray[np.intp]) -> tuple[ClusterFinding, ...]:
        """What is odd about the steps that were kept, the gravest first; `runs` as they were given."""
        steps = [self._wanted[i] for i in kept if self.is_step[i]]
        if self.x is None or not steps:
            return ()
        rows = np.array([step.row for step in steps])
        formula_s = terms_s(self.x, self.logs).sum(axis=0)[rows]
        far = far_off(
            np.log([step.value for step in steps] / formula_s),
            self.x.take(rows),
            self.traits.take(rows),
            self.exposed.take(rows),
            self.base.residual,
        )
        apart = contradictions_among([runs[step.run] for step in steps], signatures(self.x)[rows])
        return (*([far] if far else []), *apart)

    def _parts(self, term: str) -> list[int]:
        return [self.term_names.index(part) for part in MIXED_TERMS.get(term, (term,))]

    def observe(self, moves: Array) -> tuple[Array, Points]:
        """Log of measured over predicted after the constants' moves, and how the observations lie."""
        low, high = log_bounds()
        errors, slopes, lying, shared, alone, plan = [], [], [], [], [], []
        if self.x is not None:
            inside = np.clip(self.logs + moves[:, None], low, high)
            nudged, own, same = nudged_terms_s(self.x, inside), features(self.x), signatures(self.x)
        for _, row, name, value, _ in self._wanted:
            if row < 0:
                place = self.names.index(name)
                errors.append(np.log(value) - self.start[place] - moves[place])
                slopes.append(np.eye(len(self.names))[place])
                lying.append(np.zeros(len(self.base.cluster_prior.lengths)))
                shared.append(0.0)
                alone.append(0.0)
                plan.append(0.0)
                continue
            whole = nudged[:, :, row].sum(axis=0)
            least = MIN_SHARE * whole[0] if name else 0.0
            seconds = nudged[self._parts(name), :, row].sum(axis=0) if name else whole
            log_s, slope = with_slopes(seconds + least)
            errors.append(np.log(value + least) - log_s - self.known[row])
            slopes.append(slope)
            lying.append(own[row])
            shared.append(1.0)
            alone.append(0.0 if name else self.own[row])
            plan.append(same[row])
        columns = (slopes, lying, shared, alone, plan)
        return np.array(errors), Points(*(np.array(column) for column in columns))


def with_seen(calibration: Calibration, runs: Sequence[Run], doubts: Sequence[float] = ()) -> Calibration:
    """The calibration that knows these runs' own plans, beside what it has learned from any of them.

    `doubts` are by how much each run is off what the others allow, in log time (none: nothing is). What is
    off speaks for its own plan alone, and only if no other run does."""
    told = zip(runs, doubts or [0.0] * len(runs), strict=True)
    kept = [(r, d) for r, d in told if r.scenario.plan and (r.crashed or r.measured.step_time_s)]
    if not kept:
        return replace(calibration, seen=None)
    runs, doubts = zip(*kept, strict=True)
    x, keys = encode([run.scenario for run in runs])
    settings = calibration.memory_settings(keys, [run.scenario.training.precision for run in runs])
    costs = evaluate(x, calibration.coefficients(keys), settings)
    likely = fit_probability(costs.memory_bytes, x.memory_bytes, calibration.memory_errors(keys))
    seen, log_factors = [], []
    for run, code, formula_s in zip(runs, costs.recompute, costs.step_time_s, strict=True):
        assert run.scenario.plan is not None
        plan = run.scenario.plan.model_copy(update={"recompute": RECOMPUTES[int(code)]})
        seen.append(run.model_copy(update={"scenario": run.scenario.model_copy(update={"plan": plan})}))
        log_factors.append(math.log((run.measured.step_time_s or formula_s) / formula_s))
    short = 1.0 - likely
    return replace(
        calibration,
        seen=SeenRuns(
            tuple(seen),
            tuple(log_factors),
            tuple(costs.memory_bytes.tolist()),
            tuple((short / (short + OTHER_CRASHES * likely)).tolist()),
            calibration.cluster_prior,
            calibration.memory_error,
            tuple(doubts),
        ),
    )


@dataclass(frozen=True)
class MemoryShift:
    shift: float
    """Logarithm of the factor on predicted peaks."""
    error: float
    """Standard deviation of a further run's peak around that."""
    left_out: tuple[tuple[int, str], ...] = ()
    """Runs whose peak cannot be, by their place, and why."""


def learn_memory(runs: Sequence[Run], memory_error: float) -> MemoryShift:
    """The posterior mean on a grid of shifts; a crash, or none, counts by its probability."""
    planned = [i for i, run in enumerate(runs) if run.scenario.plan]
    common, alone = memory_error * math.sqrt(COMMON_SHARE), memory_error * math.sqrt(1.0 - COMMON_SHARE)
    shifts = np.linspace(-SPAN, SPAN, STEPS) * common
    log_weights = -0.5 * (shifts / common) ** 2
    left_out = []
    for i, prediction in zip(planned, predict([runs[i].scenario for i in planned]), strict=True):
        run, peak = runs[i], peak_reading(runs[i].measured)
        capacity = float(scenario_device(run.scenario.cluster).memory_bytes) / GIB
        if peak is not None:
            error = math.log(peak.gib / float(predicted_gib([run.scenario], [peak])[0]))
            if abs(error) > MAX_DEVIATION * memory_error:
                factor = math.exp(abs(error))
                left_out.append((i, f"its peak is {factor:.2f} times off the prediction and was not used"))
            else:
                log_weights = log_weights - 0.5 * ((error - shifts) / alone) ** 2
        elif run.crashed or run.measured.step_time_s:
            margin = math.log(capacity / prediction.peak_memory_gib)
            fits = 1.0 / (1.0 + np.exp(np.clip((shifts - margin) * LOGISTIC / alone, -500.0, 500.0)))
            ran = fits * (1.0 - OTHER_CRASHES)
            log_weights = log_weights + np.log(np.maximum(1.0 - ran if run.crashed else ran, 1e-12))
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    shift = float(weights @ shifts)
    spread = float(weights @ (shifts - shift) ** 2)
    return MemoryShift(shift, math.sqrt(alone**2 + spread), tuple(left_out))
