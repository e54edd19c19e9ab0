"""Runs a trial: submits a job from a template, waits, reads it, and repeats it if the result is uncertain.

Local trials run one at a time (file lock): two on one machine would measure each other.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from tools.errors import InputError
from tools.launch.failures import classify, gather_evidence
from tools.launch.launcher import Job, Launcher
from tools.launch.status import Handle, JobStatus, LaunchError, State
from tools.launch.template import Template
from tools.scenario import Plan, Scenario, did_you_mean
from tools.trials.measure import TRACES, Measurement, MeasurementError, pooled, read_measurement, read_terms
from tools.trials.order import (
    SECONDS_PER_HOUR,
    RunLength,
    Status,
    TrialFailure,
    TrialObserver,
    TrialOrder,
    TrialResult,
    check_cluster,
    make_job,
    run_key,
)

PAUSE_S = 0.5


@contextmanager
def exclusive(lock: Path, observer: TrialObserver) -> Iterator[bool]:
    """Yields True once the lock is ours; False if the trial was cancelled while it waited."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _try_lock(descriptor):
            if observer.must_cancel():
                yield False
                return
            time.sleep(PAUSE_S)
        yield True
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


POLL_S = 1.0
GRACE_S = 120.0
"""Beyond a job's limit, within which the engine should have ended it by itself."""
OUTAGE_S = 600.0
"""How long an engine may be unreachable while a job runs."""


@dataclass(frozen=True)
class Run:
    key: str
    measurement: Measurement | None = None
    failure: TrialFailure | None = None
    cancelled: bool = False
    device_hours: float = 0.0
    seconds: float = 0.0
    traces: str | None = None


CANCELLED = TrialFailure(
    kind="cancelled", confidence=1.0, evidence=["the session was cancelled, and its trial with it"]
)


def follow(
    launcher: Launcher, handle: Handle, wall_s: float, queue_s: float, observer: TrialObserver
) -> TrialFailure | None:
    """Waits for the end of the job; returns why ASAP ended it, if it did."""
    since_s, last_state, reached_s = time.monotonic(), State.QUEUED, time.monotonic()
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
            observer.emit(f"{status.state} {handle.key}", job=handle.key, nodes=list(status.nodes))
        failure = CANCELLED if observer.must_cancel() else _overdue(status, since_s, wall_s, queue_s)
        if failure:
            launcher.cancel(handle)
            return failure


def _overdue(status: JobStatus, since_s: float, wall_s: float, queue_s: float) -> TrialFailure | None:
    elapsed_s = time.monotonic() - since_s
    if status.state is State.QUEUED and elapsed_s > queue_s:
        return TrialFailure(
            kind="not_started", confidence=1.0, evidence=[f"it was queued for {elapsed_s:.0f} s"]
        )
    if status.state is State.RUNNING and elapsed_s > wall_s + GRACE_S:
        says = f"it ran for {elapsed_s:.0f} s, {wall_s:.0f} s are allowed, and the engine did not end it"
        return TrialFailure(kind="hang", confidence=0.8, evidence=[says])
    return None


def finish_run(
    launcher: Launcher, handle: Handle, folder: Path, devices: int, ended_for: TrialFailure | None
) -> Run:
    """Reads what the ended job left; failures are classified by evidence, and logs are only evidence."""
    evidence = gather_evidence(launcher, handle, folder)
    status = evidence.status
    seconds = max(0.0, (status.ended_unix_s or 0.0) - (status.started_unix_s or status.ended_unix_s or 0.0))
    run = Run(handle.key, device_hours=seconds * devices / SECONDS_PER_HOUR, seconds=seconds)
    if ended_for:
        return replace(run, failure=ended_for, cancelled=ended_for is CANCELLED)
    cause = classify(evidence)
    if cause:
        failure = TrialFailure(
            kind=str(cause.kind), confidence=cause.confidence, evidence=list(cause.evidence)
        )
        return replace(run, failure=failure)
    try:
        measurement = read_measurement(folder)
    except MeasurementError as error:
        failure = TrialFailure(kind="bad_configuration", confidence=0.9, evidence=[str(error)])
        return replace(run, failure=failure)
    traces = folder / TRACES
    return replace(run, measurement=measurement, traces=str(traces) if traces.is_dir() else None)


TURN = "local-turn.lock"
RESOLUTION = 0.02
"""Stop repeating once the half-width of the interval is within 2% of the median."""
NEW_BEST = 0.05
"""The same for a plan faster than all before: later ones are compared with it."""
RETRIED_FAILURES = ("node_down",)
"""Failures that say nothing about the plan."""
SUBMIT_ATTEMPTS, SUBMIT_BACKOFF_S = 3, 5.0


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
        runs: list[Run] = []
        while len(runs) < self.max_runs:
            left_hours = order.device_hours - sum(run.device_hours for run in runs)
            run = self._run_once(order, len(runs) + 1, left_hours, observer)
            if run is None:
                break
            runs.append(run)
            if run.cancelled or self._is_enough(runs, order.against_s):
                break
        return _trial_result(order, self._template(order.template), runs)

    def _template(self, name: str | None) -> Template:
        chosen = name or self.default_template
        if chosen not in self.templates:
            raise InputError("template", chosen, did_you_mean(chosen, tuple(self.templates)))
        return self.templates[chosen]

    def _run_once(
        self, order: TrialOrder, number: int, left_hours: float, observer: TrialObserver
    ) -> Run | None:
        """None if the budget does not allow even one second."""
        template, key = self._template(order.template), run_key(order.key, number)
        launcher = self.launcher(template.launcher)
        devices = order.scenario.cluster.num_devices
        wall_s = min(template.limits.wall_s, int(left_hours * SECONDS_PER_HOUR / devices))
        with self._exclusive(template, observer) as is_ours:
            handle = launcher.find(key)
            if handle is None and not is_ours:
                return Run(key, failure=CANCELLED, cancelled=True)
            if handle is None and wall_s < 1:
                return None
            if handle is None:
                length = self.length if number == 1 else replace(self.length, profile_steps=0)
                job = make_job(template, order.scenario, order.plan, length, wall_s)
                handle = _submit(launcher, key, job)
            observer.emit(f"launched {key}", job=key, launcher=launcher.name, template=template.name)
            ended_for = follow(launcher, handle, wall_s, self.queue_s, observer)
        return finish_run(launcher, handle, self.results / key, devices, ended_for)

    def _exclusive(self, template: Template, observer: TrialObserver) -> AbstractContextManager[bool]:
        return exclusive(self.results / TURN, observer) if template.launcher == "local" else nullcontext(True)

    def _is_enough(self, runs: list[Run], against_s: float | None) -> bool:
        """Transient failures are retried; measurements are repeated until the interval is narrow enough."""
        last = runs[-1]
        if last.failure:
            return last.failure.kind not in RETRIED_FAILURES
        measured = _pool_runs(runs)
        assert measured is not None
        ahead_s = (against_s or measured.step_time_s) - measured.step_time_s
        difference = abs(ahead_s) / 2 / measured.step_time_s
        needed = min(difference, NEW_BEST) if ahead_s > 0 else difference
        return measured.uncertainty <= max(RESOLUTION, needed)


def _submit(launcher: Launcher, key: str, job: Job) -> Handle:
    """Retries while the engine is unreachable: the key makes this idempotent."""
    for _ in range(SUBMIT_ATTEMPTS - 1):
        try:
            return launcher.submit(key, job)
        except LaunchError:
            time.sleep(SUBMIT_BACKOFF_S)
    return launcher.submit(key, job)


def _pool_runs(runs: list[Run]) -> Measurement | None:
    measurements = [run.measurement for run in runs if run.measurement]
    return pooled(measurements) if measurements else None


def _trial_result(order: TrialOrder, template: Template, runs: list[Run]) -> TrialResult:
    measured = _pool_runs(runs)
    traces = next((run.traces for run in runs if run.traces), None)
    last = runs[-1] if runs else None
    status: Status = "cancelled" if last and last.cancelled else "measured" if measured else "failed"
    failure = last.failure if last and not measured else None
    if last is None:
        says = "the device-hours left do not allow another run"
        failure = TrialFailure(kind="no_budget", confidence=1.0, evidence=[says])
    result = TrialResult(
        key=order.key,
        status=status,
        template=template.name,
        runs=[run.key for run in runs],
        failure=failure,
        device_hours=sum(run.device_hours for run in runs),
        seconds=sum(run.seconds for run in runs),
        traces=traces,
        terms=_terms(traces, order.plan),
    )
    return _with_figures(result, measured) if measured else result


def _terms(traces: str | None, plan: Plan) -> dict[str, float] | None:
    """Seconds of the parts of a step, if there is a profile."""
    return read_terms(Path(traces), plan) if traces else None


def _with_figures(result: TrialResult, measured: Measurement) -> TrialResult:
    return result.model_copy(
        update={
            "step_time_s": measured.step_time_s,
            "interval_s": measured.interval_s,
            "confidence": measured.confidence,
            "noise": measured.noise,
            "uncertainty": measured.uncertainty,
            "steps": len(measured.step_times_s),
            "peak_memory_bytes": measured.peak_memory_bytes,
            "nodes": list(measured.nodes),
            "losses": list(measured.losses),
            "fingerprint": dict(measured.fingerprint),
        }
    )
