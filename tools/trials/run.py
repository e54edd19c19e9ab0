"""Runs a trial: submits a job from a template, waits, reads it, and repeats it if the result is uncertain,
alternately with the best plan so far.

Local trials run one at a time (file lock): two on one machine would measure each other.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from tools.errors import InputError
from tools.launch.failures import classify, gather_evidence
from tools.launch.folder import JobFolder, try_lock
from tools.launch.launcher import Job, Launcher
from tools.launch.status import Handle, JobState, JobStatus, LaunchError
from tools.launch.template import Template
from tools.scenario import Scenario, did_you_mean
from tools.trials.gate import PairedRatio
from tools.trials.measure import (
    COVERAGE,
    TRACES,
    Measurement,
    MeasurementError,
    paired_ratio,
    pooled,
    read_measurement,
    read_terms,
)
from tools.trials.order import (
    SECONDS_PER_HOUR,
    RunLength,
    TrialFailure,
    TrialObserver,
    TrialOrder,
    TrialProgress,
    TrialResult,
    TrialStatus,
    check_cluster,
    make_job,
    run_key,
)

PAUSE_S = 0.5
POLL_S = 1.0
GRACE_S = 120.0
"""Beyond a job's limit, within which the engine should have ended it by itself."""
OUTAGE_S = 600.0
"""How long an engine may be unreachable while a job runs."""
TURN = "local-turn.lock"
RESOLUTION = 0.02
"""Stop repeating once the half-width of the interval is within 2% of the median."""
RETRIED_FAILURES = ("node_down",)
"""Failures that say nothing about the plan."""
SUBMIT_ATTEMPTS, SUBMIT_BACKOFF_S = 3, 5.0
CANCELLED = TrialFailure(
    kind="cancelled", confidence=1.0, evidence=["the session was cancelled, and its trial with it"]
)
NO_BUDGET = TrialFailure(
    kind="no_budget", confidence=1.0, evidence=["the device-hours left do not allow another run"]
)


@dataclass(frozen=True)
class TrialRun:
    """One job of a trial, as it ended."""

    key: str
    measurement: Measurement | None = None
    failure: TrialFailure | None = None
    device_hours: float = 0.0
    seconds: float = 0.0
    traces: Path | None = None


@dataclass(frozen=True)
class LaunchedTrials:
    """The trials of an installation: its launchers, its templates, and how long each run is."""

    launcher: Callable[[str], Launcher]
    """Opens the engine of that name, or returns the one that is open."""
    templates: Mapping[str, Template]
    default_template: str
    results: Path
    """Where the results of jobs are copied to, one folder per job."""
    length: RunLength = field(default_factory=RunLength)
    max_runs: int = 3
    queue_s: float = 4 * SECONDS_PER_HOUR
    """A job that has been queued for this long is given up."""

    def check(self, scenario: Scenario, template: str | None = None) -> None:
        """Raises InputError for a scenario that could not be measured here; before anything is launched."""
        check_cluster(self._template(template), scenario)

    def run(self, order: TrialOrder, observer: TrialObserver) -> TrialResult:
        """Returns when the plan is measured, or it is clear that it will not be."""
        runs: list[TrialRun] = []
        beside: list[TrialRun] = []
        while len(runs) < self.max_runs or 0 < len(beside) < len(runs):
            # A B, B A, A B: load that grows or falls evenly is the same for both.
            is_even = len(runs) == len(beside)
            of_reference = order.against is not None and (
                len(runs) % 2 == 1 if is_even else len(runs) > len(beside)
            )
            run = self._run_once(order, runs, beside, observer, of_reference=of_reference)
            if run is None:
                break
            (beside if of_reference else runs).append(run)
            if run.failure and run.failure.kind not in RETRIED_FAILURES:
                break
            if (not beside or len(runs) == len(beside)) and _is_enough(order, runs, beside):
                break
        return _trial_result(order, self._template(order.template), runs, beside)

    def _template(self, name: str | None) -> Template:
        chosen = name or self.default_template
        if chosen not in self.templates:
            raise InputError("template", chosen, did_you_mean(chosen, tuple(self.templates)))
        return self.templates[chosen]

    def _run_once(
        self,
        order: TrialOrder,
        runs: Sequence[TrialRun],
        beside: Sequence[TrialRun],
        observer: TrialObserver,
        *,
        of_reference: bool,
    ) -> TrialRun | None:
        """The next run of the plan, or of the one beside it; None if the budget does not allow a second."""
        template, number = self._template(order.template), len(beside if of_reference else runs) + 1
        key = run_key(order.key, number, of_reference=of_reference)
        plan = order.against.plan if of_reference and order.against else order.plan
        left_hours = order.device_hours - sum(run.device_hours for run in (*runs, *beside))
        launcher = self.launcher(template.launcher)
        devices = order.scenario.cluster.num_devices
        wall_s = min(template.limits.wall_s, int(left_hours * SECONDS_PER_HOUR / devices))
        is_local = template.launcher == "local"
        with exclusive(self.results, observer) if is_local else nullcontext(True) as is_ours:
            handle = launcher.find(key)
            if handle is None and not is_ours:
                return TrialRun(key, failure=CANCELLED)
            if handle is None and wall_s < 1:
                return None
            if handle is None:
                is_profiled = number == 1 and not of_reference
                length = self.length if is_profiled else replace(self.length, profile_steps=0)
                job = make_job(template, order.scenario, plan, length, wall_s)
                handle = _submit(launcher, key, job)
            observer.emit(TrialProgress("launched", key, launcher.name, template.name))
            ended_for = follow(launcher, handle, wall_s, self.queue_s, observer)
        return _finish(launcher, handle, self.results / key, devices, ended_for)


@contextmanager
def exclusive(folder: Path, observer: TrialObserver) -> Iterator[bool]:
    """Yields True once the turn is ours; False if the trial was cancelled while it waited."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = JobFolder(folder).open_lock(TURN)
    try:
        while not (is_ours := try_lock(descriptor)) and not observer.must_cancel():
            time.sleep(PAUSE_S)
        yield is_ours
    finally:
        os.close(descriptor)


def _submit(launcher: Launcher, key: str, job: Job) -> Handle:
    """Retries while the engine is unreachable: the key makes this idempotent."""
    for _ in range(SUBMIT_ATTEMPTS - 1):
        try:
            return launcher.submit(key, job)
        except LaunchError:
            time.sleep(SUBMIT_BACKOFF_S)
    return launcher.submit(key, job)


def follow(
    launcher: Launcher, handle: Handle, wall_s: float, queue_s: float, observer: TrialObserver
) -> TrialFailure | None:
    """Waits for the end of the job; returns why ASAP ended it, if it did."""
    since_s, last_state, reached_s = time.monotonic(), JobState.QUEUED, time.monotonic()
    while True:
        try:
            status = launcher.wait(handle, POLL_S)
            reached_s = time.monotonic()
        except LaunchError:
            if time.monotonic() - reached_s > OUTAGE_S:
                raise
            status = JobStatus(last_state)
        if status.has_ended:
            return None
        if status.state is not last_state:
            since_s, last_state = time.monotonic(), status.state
            observer.emit(TrialProgress(str(status.state), handle.key, nodes=list(status.nodes)))
        failure, elapsed_s = None, time.monotonic() - since_s
        if observer.must_cancel():
            failure = CANCELLED
        elif last_state is JobState.QUEUED and elapsed_s > queue_s:
            reason = f"it was queued for {elapsed_s:.0f} s"
            failure = TrialFailure(kind="not_started", confidence=1.0, evidence=[reason])
        elif last_state is JobState.RUNNING and elapsed_s > wall_s + GRACE_S:
            reason = (
                f"it ran for {elapsed_s:.0f} s, {wall_s:.0f} s are allowed, and the engine did not end it"
            )
            failure = TrialFailure(kind="hang", confidence=0.8, evidence=[reason])
        if failure:
            launcher.cancel(handle)
            return failure


def _finish(
    launcher: Launcher, handle: Handle, folder: Path, devices: int, ended_for: TrialFailure | None
) -> TrialRun:
    """Reads what the ended job left; failures are classified by evidence, and logs are only evidence."""
    evidence = gather_evidence(launcher, handle, folder)
    status, failure, measurement = evidence.status, ended_for, None
    if failure is None and (cause := classify(evidence)):
        failure = TrialFailure(
            kind=str(cause.kind), confidence=cause.confidence, evidence=list(cause.evidence)
        )
    if failure is None:
        try:
            measurement = read_measurement(folder)
        except MeasurementError as error:
            failure = TrialFailure(kind="bad_configuration", confidence=0.9, evidence=[str(error)])
    seconds = max(0.0, (status.ended_unix_s or 0.0) - (status.started_unix_s or status.ended_unix_s or 0.0))
    return TrialRun(
        handle.key,
        measurement,
        failure,
        device_hours=seconds * devices / SECONDS_PER_HOUR,
        seconds=seconds,
        traces=traces if measurement and (traces := folder / TRACES).is_dir() else None,
    )


def _pool(runs: Sequence[TrialRun]) -> Measurement | None:
    measurements = [run.measurement for run in runs if run.measurement]
    return pooled(measurements) if measurements else None


def _paired(order: TrialOrder, runs: Sequence[TrialRun], beside: Sequence[TrialRun]) -> PairedRatio | None:
    """The ratio over the pairs of which both were measured under the same conditions."""
    both = zip((run.measurement for run in runs), (run.measurement for run in beside), strict=False)
    pairs = [(own, other) for own, other in both if own and other and own.fingerprint == other.fingerprint]
    return paired_ratio(order.against.key, pairs) if order.against and pairs else None


def _is_enough(order: TrialOrder, runs: Sequence[TrialRun], beside: Sequence[TrialRun]) -> bool:
    """A measurement is repeated until it is sure which of the two plans is faster, or both are alike.

    A run by itself is as uncertain as its steps scatter: what slows some of them may slow a whole run."""
    measured, against = _pool(runs), order.against
    if measured is None:
        return False
    if against is None:
        return measured.uncertainty <= RESOLUTION
    if paired := _paired(order, runs, beside):
        is_sure = paired.high < 1 or paired.low > 1 or math.log(paired.high / paired.low) / 2 <= RESOLUTION
        return is_sure and paired.pairs > 1  # one pair does not show how load changes from run to run
    spread = math.hypot(max(measured.uncertainty, measured.noise), against.spread)
    return spread <= max(RESOLUTION, abs(math.log(against.step_time_s / measured.step_time_s)) / 2)


def _trial_result(
    order: TrialOrder, template: Template, runs: Sequence[TrialRun], beside: Sequence[TrialRun]
) -> TrialResult:
    measured, every = _pool(runs), [*runs, *beside]
    was_cancelled = any(run.failure is CANCELLED for run in every)
    status: TrialStatus = "cancelled" if was_cancelled else "measured" if measured else "failed"
    traces = next((run.traces for run in runs if run.traces), None)
    result = TrialResult(
        key=order.key,
        status=status,
        template=template.name,
        runs=[run.key for run in every],
        failure=CANCELLED if was_cancelled else None if measured else runs[-1].failure if runs else NO_BUDGET,
        device_hours=sum(run.device_hours for run in every),
        seconds=sum(run.seconds for run in every),
        traces=str(traces) if traces else None,
        terms=read_terms(traces, order.plan) if traces else None,
    )
    if measured is None:
        return result
    step_time_s, interval_s, uncertainty = measured.step_time_s, measured.interval_s, measured.uncertainty
    paired = _paired(order, runs, beside)
    if paired and order.against:
        step_time_s = order.against.step_time_s * paired.ratio
        interval_s = order.against.step_time_s * paired.low, order.against.step_time_s * paired.high
        uncertainty = (paired.high - paired.low) / 2 / paired.ratio
    return result.model_copy(
        update={
            "step_time_s": step_time_s,
            "interval_s": interval_s,
            "confidence": COVERAGE if paired else measured.confidence,
            "noise": measured.noise,
            "uncertainty": uncertainty,
            "paired": paired,
            "steps": len(measured.step_times_s),
            "peak_memory_bytes": measured.peak_memory_bytes,
            "nodes": list(measured.nodes),
            "losses": list(measured.losses),
            "fingerprint": dict(measured.fingerprint),
        }
    )
