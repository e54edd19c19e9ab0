"""Runs a trial: submits a job from a template, waits, reads it, and repeats it if the result is uncertain.

Local trials run one at a time (file lock): two on one machine would measure each other.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tools.errors import InputError
from tools.launch.failures import classify, gather_evidence
from tools.launch.job import Job
from tools.launch.launcher import Launcher
from tools.launch.status import Handle, JobStatus, LaunchError, State
from tools.launch.template import Template
from tools.scenario import Plan, did_you_mean, parse_scenario
from tools.trials.measure import TRACES, Measurement, MeasurementError, pooled, read_measurement
from tools.trials.order import (
    DESCRIBED,
    SECONDS_AN_HOUR,
    RunLength,
    TrialOrder,
    Watch,
    check_cluster,
    make_job,
    run_key,
)

PAUSE_S = 0.5


@contextmanager
def own_turn(lock: Path, watch: Watch) -> Iterator[bool]:
    """True when it is ours; False where the trial was cancelled while it waited."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _is_taken(descriptor):
            if watch.must_cancel():
                yield False
                return
            time.sleep(PAUSE_S)
        yield True
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


POLL_S = 1.0
GRACE_S = 120.0
"""Beyond its limit, in which the engine should have ended a job by itself."""
OUTAGE_S = 600.0
"""An engine may be out of reach so long while a job runs."""


@dataclass(frozen=True)
class RunTrouble:
    """Why the run says nothing about the plan's speed; the words are the job's own, so they are only data."""

    kind: str
    confidence: float
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    key: str
    measurement: Measurement | None = None
    failure: dict[str, Any] | None = None
    cancelled: bool = False
    device_hours: float = 0.0
    seconds: float = 0.0
    traces: str | None = None


CANCELLED = RunTrouble("cancelled", 1.0, ("the session was cancelled, and its trial with it",))


def follow(
    launcher: Launcher, handle: Handle, wall_s: float, queue_s: float, watch: Watch
) -> RunTrouble | None:
    """Waits for the end of the job; what ASAP ended it for, where it did."""
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
            watch.tell(f"{status.state} {handle.key}", job=handle.key, nodes=list(status.nodes))
        trouble = CANCELLED if watch.must_cancel() else _overdue(status, since_s, wall_s, queue_s)
        if trouble:
            launcher.cancel(handle)
            return trouble


def _overdue(status: JobStatus, since_s: float, wall_s: float, queue_s: float) -> RunTrouble | None:
    elapsed_s = time.monotonic() - since_s
    if status.state is State.QUEUED and elapsed_s > queue_s:
        return RunTrouble("not_started", 1.0, (f"the engine let it wait for {elapsed_s:.0f} s",))
    if status.state is State.RUNNING and elapsed_s > wall_s + GRACE_S:
        says = f"it ran {elapsed_s:.0f} s, where {wall_s:.0f} s are allowed, and the engine did not end it"
        return RunTrouble("hang", 0.8, (says,))
    return None


def finish_run(
    launcher: Launcher, handle: Handle, folder: Path, devices: int, trouble: RunTrouble | None
) -> Run:
    """Reads what the ended job left; a failure is told from evidence, and logs are evidence only."""
    evidence = gather_evidence(launcher, handle, folder)
    status = evidence.status
    seconds = max(0.0, (status.ended_unix_s or 0.0) - (status.started_unix_s or status.ended_unix_s or 0.0))
    spent: dict[str, Any] = {"device_hours": seconds * devices / 3600, "seconds": seconds}
    if trouble:
        return Run(handle.key, failure=asdict(trouble), cancelled=trouble is CANCELLED, **spent)
    failure = classify(evidence)
    if failure:
        told = RunTrouble(str(failure.kind), failure.confidence, failure.evidence)
        return Run(handle.key, failure=asdict(told), **spent)
    try:
        measurement = read_measurement(folder)
    except MeasurementError as error:
        told = RunTrouble("bad_configuration", 0.9, (str(error),))
        return Run(handle.key, failure=asdict(told), **spent)
    traces = folder / TRACES
    return Run(handle.key, measurement, traces=str(traces) if traces.is_dir() else None, **spent)


TURN = "local-turn.lock"
RESOLUTION = 0.02
"""Half an interval that is no wider than this share of the median is sure enough, whatever is compared."""
NEW_BEST = 0.05
"""Half an interval of a plan faster than all before: what later ones are told apart from must be sure."""
RETRIED = ("node_down",)
"""Failures that say nothing about the plan."""
SUBMIT_TRIES, SUBMIT_PAUSE_S = 3, 5.0
Json = dict[str, Any]


@dataclass(frozen=True)
class LaunchedTrials:
    """The trials of an installation: its launchers, its templates, and how long each run is."""

    launcher: Callable[[str], Launcher]
    """Opens the engine of that name, or gives the one that is open."""
    templates: Mapping[str, Template]
    default_template: str
    results: Path
    """Where what jobs leave behind is copied to, one folder a job."""
    length: RunLength = field(default_factory=RunLength)
    most_runs: int = 3
    queue_s: float = 4 * SECONDS_AN_HOUR
    """A job that an engine lets wait so long is given up."""

    def check(self, scenario: Mapping[str, Any], template: str | None = None) -> None:
        """Raises InputError for a scenario that could not be measured here; before anything is launched."""
        described = {name: scenario[name] for name in DESCRIBED}
        check_cluster(self._template(template), parse_scenario(described, need_plan=False))

    def run(self, order: TrialOrder, watch: Watch) -> Json:
        """Returns when the plan is measured, or it is clear that it will not be."""
        runs: list[Run] = []
        while len(runs) < self.most_runs:
            left_hours = order.device_hours - sum(one.device_hours for one in runs)
            one = self._run_once(order, len(runs) + 1, left_hours, watch)
            if one is None:
                break
            runs.append(one)
            if one.cancelled or self._is_enough(runs, order.against_s):
                break
        return _told(order, self._template(order.template), runs)

    def _template(self, name: str | None) -> Template:
        wanted = name or self.default_template
        if wanted not in self.templates:
            raise InputError("template", wanted, did_you_mean(wanted, tuple(self.templates)))
        return self.templates[wanted]

    def _run_once(self, order: TrialOrder, number: int, left_hours: float, watch: Watch) -> Run | None:
        """Nothing where the budget does not even allow a second of it."""
        template, key = self._template(order.template), run_key(order.key, number)
        launcher = self.launcher(template.launcher)
        devices = int(order.scenario["cluster"]["num_devices"])
        wall_s = min(template.limits.wall_s, int(left_hours * SECONDS_AN_HOUR / devices))
        with self._turn(template, watch) as is_ours:
            handle = launcher.find(key)
            if handle is None and not is_ours:
                return Run(key, failure=asdict(CANCELLED), cancelled=True)
            if handle is None and wall_s < 1:
                return None
            if handle is None:
                length = self.length if number == 1 else replace(self.length, profile_steps=0)
                job = make_job(template, order.scenario, order.plan, length, wall_s)
                handle = _submitted(launcher, key, job)
            watch.tell(f"launched {key}", job=key, launcher=launcher.name, template=template.name)
            trouble = follow(launcher, handle, wall_s, self.queue_s, watch)
        return finish_run(launcher, handle, self.results / key, devices, trouble)

    def _turn(self, template: Template, watch: Watch) -> AbstractContextManager[bool]:
        return own_turn(self.results / TURN, watch) if template.launcher == "local" else nullcontext(True)

    def _is_enough(self, runs: list[Run], against_s: float | None) -> bool:
        """A failure that may pass is tried again; a measurement, until its interval tells the difference."""
        last = runs[-1]
        if last.failure:
            return last.failure["kind"] not in RETRIED
        measured = _measured(runs)
        assert measured is not None
        ahead_s = (against_s or measured.step_time_s) - measured.step_time_s
        told_apart = abs(ahead_s) / 2 / measured.step_time_s
        matters = min(told_apart, NEW_BEST) if ahead_s > 0 else told_apart
        return measured.uncertainty <= max(RESOLUTION, matters)


def _submitted(launcher: Launcher, key: str, job: Job) -> Handle:
    """An engine that is out of reach for a moment is asked again: the key keeps it from launching twice."""
    for _ in range(SUBMIT_TRIES - 1):
        try:
            return launcher.submit(key, job)
        except LaunchError:
            time.sleep(SUBMIT_PAUSE_S)
    return launcher.submit(key, job)


def _measured(runs: list[Run]) -> Measurement | None:
    found = [one.measurement for one in runs if one.measurement]
    return pooled(found) if found else None


def _told(order: TrialOrder, template: Template, runs: list[Run]) -> Json:
    measured = _measured(runs)
    traces = next((one.traces for one in runs if one.traces), None)
    last = runs[-1] if runs else None
    cancelled = bool(last and last.cancelled)
    failure = last.failure if last and not measured else None
    if last is None:
        failure = asdict(RunTrouble("no_budget", 1.0, ("the device-hours left do not allow another run",)))
    status = "cancelled" if cancelled else "measured" if measured else "failed"
    return {
        "key": order.key,
        "status": status,
        "template": template.name,
        "runs": [one.key for one in runs],
        "failure": None if status == "measured" else failure,
        "device_hours": sum(one.device_hours for one in runs),
        "seconds": sum(one.seconds for one in runs),
        "traces": traces,
        "terms": _terms(traces, order.plan),
        **(_figures(measured) if measured else {}),
    }


def _terms(traces: str | None, plan: Mapping[str, Any]) -> dict[str, float] | None:
    """Seconds of the parts of a step, where a profile tells them."""
    if traces is None:
        return None
    from tools.trials.calibrate import read_terms

    return read_terms(Path(traces), Plan.model_validate(dict(plan)))


def _figures(measured: Measurement) -> Json:
    return {
        "step_time_s": measured.step_time_s,
        "interval_s": list(measured.interval_s),
        "confidence": measured.confidence,
        "noise": measured.noise,
        "uncertainty": measured.uncertainty,
        "steps": len(measured.step_times_s),
        "peak_memory_bytes": measured.peak_memory_bytes,
        "nodes": list(measured.nodes),
        "losses": list(measured.losses),
        "fingerprint": dict(measured.fingerprint),
    }
