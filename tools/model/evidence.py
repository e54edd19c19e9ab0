"""What was seen of single plans: one table of runs, whoever reported them.

Published runs, measurements of a cluster, trials, nights, cases and what notes tell are all rows of `Run`.
What they say of other plans' time is the cluster's posterior (`cluster`). Here is what they say of a plan
itself, and of whether plans like it run: a run overrules the prediction of its own plan; a crash speaks
against its own plan, against those that need as much memory, and against those that are alike.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tools.model.cluster import ClusterPrior, features, likeness
from tools.model.runs import OWN_SOURCES, Run
from tools.physics.encode import encode, encode_plans
from tools.physics.inputs import Array, Inputs, RowKeys
from tools.physics.memory import GIB
from tools.scenario.columns import BoolArray, PlanColumns
from tools.scenario.spec import FULL_SHARDING, Scenario

TOLD = frozenset({"notes", "case"})
"""Sources of runs that were told and not measured here."""
TOLD_SHARE = 0.8
"""How far a prediction follows a step time that a person reports from memory or from another day."""
RUN_ERROR = 0.06
"""Log of time: what the same plan in two releases differs by, in the median (runs/)."""
OWN_ERROR, TOLD_ERROR = 0.02, 0.1
"""As ASAP measured it (what a recipe that a vendor measured twice differs by is 0.2 to 3.7%), and as told."""
PLAN_ERROR = 0.1
"""What a plan's log time is off, beside what its cluster shares."""
ERRORS = dict.fromkeys(TOLD, TOLD_ERROR) | dict.fromkeys(OWN_SOURCES, OWN_ERROR)
SURE = 0.99
"""Probability that a plan runs which has run."""
PRIOR_RUNS = 1.0
"""Runs of the same plan that the predicted probability of fitting counts as: with 0.25 what a crash said of
other plans of the Ultra-Scale Playbook's sweeps was worse than no crash known, with 2 no better."""
MIN_SAID = 0.25
"""The weight, in runs, below which a crash is not cited for another plan."""
COMMON_SHARE = 0.5
"""How much a crash for memory says of plans that are not alike and need as much: the part of the error of a
predicted peak that all plans share (`observations.COMMON_SHARE`)."""
RECOMPUTATION = ("recompute", "recompute_layers", "recompute_modules")
CLUSTER_FACTS = ("gemm_peak", "power_share")
"""The first and the last figure of a device in `Inputs`: a what-if about them is about the same job."""


@dataclass(frozen=True)
class RunCitation:
    """What a run says of its own plan."""

    ref: str
    """run:ID, notes:WORDS or case:ID; crash:ID, which supports nothing."""
    summary: str
    is_told: bool
    """And not measured here."""
    is_crash: bool
    is_doubted: bool
    """The other runs speak against it."""


@dataclass(frozen=True)
class SeenRuns:
    """Runs with a plan and an outcome, beside what the calibration without them says of each."""

    runs: tuple[Run, ...]
    """Their recomputation is stated."""
    log_factors: tuple[float, ...]
    """Measured over the formulas' step time; 0 for a crash."""
    memory_bytes: tuple[float, ...]
    """As predicted."""
    blames: tuple[float, ...]
    """How likely it is, for a crash, that memory was short."""
    prior: ClusterPrior
    memory_error: float
    doubts: tuple[float, ...] = ()
    """By how much each is off what the other runs allow, in log time; 0: it is not."""

    @cached_property
    def _encoded(self) -> tuple[Inputs, RowKeys]:
        return encode([run.scenario for run in self.runs])

    @cached_property
    def _crashed(self) -> Array:
        return np.array([run.crashed for run in self.runs], dtype=np.float64)

    @cached_property
    def _is_told(self) -> BoolArray:
        return np.array([run.source in TOLD for run in self.runs], dtype=np.bool_)

    def same(self, x: Inputs, keys: RowKeys) -> BoolArray:
        """A row for each of `x`, a column for each run: the same plan of the same job on the same cluster.

        Recomputation that is not stated is that of the run."""
        own, own_keys = self._encoded
        names = list(zip(own_keys.device, own_keys.framework, strict=True))
        here = [[name == other for other in names] for name in zip(keys.device, keys.framework, strict=True)]
        found = np.broadcast_to(np.array(here, dtype=np.bool_), (x.size, len(self.runs))).copy()
        theirs, mine = _identity(own), _identity(x)
        is_open = np.atleast_1d(np.asarray(x.recompute) < 0)[:, None]
        for name, column in mine.items():
            if not found.any():
                break
            equal = np.isclose(np.atleast_1d(column)[:, None], np.atleast_1d(theirs[name]))
            found &= equal | is_open if name in RECOMPUTATION else equal
        return found

    @cached_property
    def _doubts(self) -> Array:
        return np.array(self.doubts or [0.0] * len(self.runs))

    def _timed(self, same: BoolArray) -> Array:
        """Which runs say what each row takes: those that crashed do not, nor those that are off what other
        runs allow beside any that are not."""
        timed = same & (self._crashed == 0)
        usual = timed & (self._doubts == 0)
        said: Array = np.where(usual.any(axis=1)[:, None], usual, timed).astype(np.float64)
        return said

    def correct(self, same: BoolArray, log_factor: Array, unsure: float = 0.0) -> Array:
        """The log factor on each row's time: as measured if it was, else nearer to what was told; less so the
        more runs of one plan differ (`unsure`: their deviation beyond the usual)."""
        timed = self._timed(same)
        made = np.array(np.broadcast_to(log_factor, (len(same),)))
        for is_told, share in ((True, TOLD_SHARE), (False, 1.0)):
            of_kind = timed * (self._is_told == is_told)
            count = of_kind.sum(axis=1)
            mean = of_kind @ np.array(self.log_factors) / np.maximum(count, 1)
            believed = share / (1.0 + (unsure / PLAN_ERROR) ** 2 / np.maximum(count, 1))
            made = np.where(count > 0, made + believed * (mean - made), made)
        return made

    def errors(self, same: BoolArray) -> Array:
        """Standard deviation of the log time of each row that was run; infinite for others."""
        ran = self._timed(same)
        # either it or the other runs are right: half of what lies between them
        noise = [
            math.hypot(run.measured.noise, ERRORS.get(run.source, RUN_ERROR), doubt / 2.0)
            for run, doubt in zip(self.runs, self._doubts.tolist(), strict=True)
        ]
        least = np.min(np.where(ran > 0, np.array(noise), np.inf), axis=1)
        # runs of one plan that contradict each other widen it
        count, logs = np.maximum(ran.sum(axis=1), 1), np.array(self.log_factors)
        mean = ran @ logs / count
        scatter = np.sqrt(np.maximum(ran @ logs**2 / count - mean**2, 0.0))
        return np.asarray(np.hypot(least, scatter))

    def narrowed(self, same: BoolArray, deviation: Array, unsure: float = 0.0, sigmas: float = 1.0) -> Array:
        """`deviation`, so many sigmas of each row's log time, after its own runs: no wider than without them,
        but for runs that the others speak against."""
        error = sigmas * np.hypot(self.errors(same), unsure)
        is_doubted = (self._timed(same) * self._doubts > 0).any(axis=1)
        return np.where(is_doubted, error, np.minimum(deviation, error))

    def fit(self, x: Inputs, keys: RowKeys, memory_bytes: Array, likely: Array) -> Array:
        """The probability that each row runs, `likely` before any run: runs and crashes are counted, each by
        how much it says of the row."""
        ran, lost = self._weights(x, keys, memory_bytes)
        counted = (PRIOR_RUNS * likely + ran.sum(axis=1)) / (PRIOR_RUNS + (ran + lost).sum(axis=1))
        same = self.same(x, keys)
        crashes, runs = same @ self._crashed, same @ (1.0 - self._crashed)
        share = (SURE * runs + (1.0 - SURE) * crashes) / np.maximum(runs + crashes, 1)
        return np.where(runs + crashes > 0, share, counted)

    def evident_bytes(self, same: BoolArray, memory_bytes: Array, device_bytes: Array) -> Array:
        """The peak of each row; of one that has run though it should not fit what was measured, and no more
        than the device has."""
        ran = same & (self._crashed == 0)
        peaks = np.array([run.measured.peak_memory_gib or np.nan for run in self.runs]) * GIB
        known = np.where(ran & np.isfinite(peaks), peaks, -np.inf).max(axis=1)
        evident = np.where(np.isfinite(known), np.minimum(known, device_bytes), device_bytes)
        return np.where(ran.any(axis=1) & (memory_bytes > device_bytes), evident, memory_bytes)

    def _weights(self, x: Inputs, keys: RowKeys, memory_bytes: Array) -> tuple[Array, Array]:
        """How much each run says for each row, and each crash against it: rows by runs."""
        own, own_keys = self._encoded
        alike = likeness(self.prior, features(x), features(own))
        is_here = np.array([[device == known for known in own_keys.device] for device in keys.device])
        excess = np.log(np.broadcast_to(memory_bytes, (x.size,))[:, None] / np.array(self.memory_bytes))
        near = COMMON_SHARE + (1.0 - COMMON_SHARE) * alike
        needs_as_much = np.exp(-0.5 * (np.minimum(excess, 0.0) / self.memory_error) ** 2)
        needs_no_more = np.exp(-0.5 * (np.maximum(excess, 0.0) / self.memory_error) ** 2)
        blame = np.array(self.blames)
        lost = self._crashed * (blame * needs_as_much * near + (1.0 - blame) * alike)
        return is_here * (1.0 - self._crashed) * needs_no_more * near, is_here * lost

    def nearest_crash(self, scenario: Scenario, memory_bytes: float) -> Run | None:
        """The crash that says most against a scenario's plan; None if none says much."""
        lost = self._weights(*encode([scenario]), np.array([memory_bytes]))[1][0]
        place = int(np.argmax(lost))
        return self.runs[place] if lost[place] > MIN_SAID else None

    def of_plan(self, scenario: Scenario) -> list[Run]:
        """The runs of a scenario's own plan."""
        same = self.same(*encode([scenario]))[0]
        return [run for run, is_same in zip(self.runs, same, strict=True) if is_same]

    def cited(self, scenario: Scenario) -> list[RunCitation]:
        """What the runs of a scenario's own plan say of it."""
        same, made = self.same(*encode([scenario]))[0], []
        for run, is_same, doubt in zip(self.runs, same, self._doubts.tolist(), strict=True):
            if not is_same:
                continue
            is_told, took_s = run.source in TOLD, run.measured.step_time_s
            summary = "crashed as told" if is_told else "crashed here"
            if took_s and not run.crashed:
                summary = f"{'told to take' if is_told else 'measured at'} {took_s:.3g} s per step"
            if doubt:
                summary += f", {math.exp(doubt):.2f} times off what the other runs allow"
            ref = run.id if run.source == "case" else f"{'notes' if is_told else 'run'}:{run.title}"
            ref = f"crash:{run.title}" if run.crashed else ref
            made.append(RunCitation(ref, summary, is_told, run.crashed, doubt > 0))
        return made

    def of_job(self, scenario: Scenario) -> list[Run]:
        """The runs of a scenario's job, whatever the plan."""
        x, keys = encode_plans(
            scenario, PlanColumns.of([run.scenario.plan for run in self.runs if run.scenario.plan])
        )
        same = np.diag(self.same(x, keys))
        return [run for run, is_same in zip(self.runs, same, strict=True) if is_same]


def _identity(x: Inputs) -> dict[str, Array]:
    """What makes a plan of a job: the model, the training and the plan, by one name for plans that are the
    same; figures of the device are left out."""
    names = list(x.__dataclass_fields__)
    first, last = (names.index(name) for name in CLUSTER_FACTS)
    columns = {name: np.asarray(getattr(x, name)) for name in (*names[:first], *names[last + 1 :])}
    stage = np.where(x.dp_shard > 1, x.zero_stage, 0.0)
    columns["zero_stage"] = stage
    columns["dp_shard"] = np.where(stage > 0, x.dp_shard, 1.0)
    columns["sequence_parallel"] = np.where(x.tp > 1, x.sequence_parallel, 0.0)
    columns["reshard_after_forward"] = np.where(stage == FULL_SHARDING, x.reshard_after_forward, 0.0)
    columns["schedule"] = np.where(x.pp > 1, x.schedule, 0.0)
    columns["recompute_layers"] = np.where(x.full_share < 1.0, x.recompute_layers, 0.0)
    return columns
