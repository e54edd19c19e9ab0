"""One job of a trial, from when it is submitted: waited for within its limits, and read when it has ended."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.launch.classify import classify
from tools.launch.errors import LaunchError
from tools.launch.evidence import gather_evidence
from tools.launch.launcher import Launcher
from tools.launch.status import Handle, JobStatus, State
from tools.trials.measurement import TRACES, Measurement, MeasurementError, read_measurement
from tools.trials.order import Watch

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
