"""TrainJobs and pods in our words."""

from typing import Any

import pytest

from tools.launch.status import Cause, State
from tools.launch.trainjob import read_trainjob


def trainjob(kind: str | None = None, reason: str = "", status: str = "True") -> dict[str, Any]:
    if kind is None:
        return {"metadata": {"name": "asap-k1"}}
    condition = {"type": kind, "status": status, "reason": reason, "message": "m"}
    return {"status": {"conditions": [condition | {"lastTransitionTime": "2026-11-16T08:00:10Z"}]}}


def pod(phase: str, state: dict[str, Any] | None = None, **status: object) -> dict[str, Any]:
    containers = [{"name": "sidecar", "state": {"terminated": {"exitCode": 99}}}]
    containers += [{"name": "node", "state": state}] if state else []
    more = {"phase": phase, "containerStatuses": containers, "startTime": "2026-11-16T08:00:00Z"}
    return {"metadata": {"name": "p"}, "spec": {"nodeName": "w1"}, "status": more | status}


def ended(code: int, reason: str = "Error", at: str = "2026-11-16T08:00:05Z", **more: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at, **more}}


def test_a_new_trainjob_waits() -> None:
    assert read_trainjob(trainjob(), []).state is State.QUEUED


def test_a_suspended_trainjob_waits_and_a_resumed_one_may_run() -> None:
    suspended = read_trainjob(trainjob("Suspended", "Suspended"), [])
    assert (suspended.state, suspended.detail) == (State.QUEUED, "suspended")
    resumed = read_trainjob(trainjob("Suspended", "Resumed", status="False"), [pod("Running")])
    assert resumed.state is State.RUNNING


def test_what_keeps_a_pod_waiting_is_told() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    status = read_trainjob(trainjob(), [pod("Pending", waiting)])
    assert (status.state, status.detail) == (State.QUEUED, "ImagePullBackOff: no such image")


def test_complete_is_success_and_the_exit_status_is_the_containers_or_unknown() -> None:
    done = read_trainjob(trainjob("Complete"), [pod("Succeeded", ended(0)), pod("Succeeded", ended(0))])
    assert (done.state, done.exit_status, done.nodes) == (State.SUCCEEDED, 0, ("w1",))
    assert (done.started_unix_s, done.ended_unix_s) == (1794816000.0, 1794816010.0)
    assert read_trainjob(trainjob("Complete"), []).exit_status is None


def test_the_first_container_to_fail_gives_the_exit_status() -> None:
    first = pod("Failed", ended(3, at="2026-11-16T08:00:01Z"))
    later = pod("Failed", ended(143, at="2026-11-16T08:00:02Z"))
    status = read_trainjob(trainjob("Failed", "FailedJobs"), [later, first])
    assert (status.state, status.cause, status.exit_status) == (State.FAILED, Cause.EXIT, 3)
    assert status.detail == "FailedJobs: m"


@pytest.mark.parametrize("state", [ended(137), ended(137, signal=9)])
def test_death_by_a_signal_is_told_as_such(state: dict[str, Any]) -> None:
    status = read_trainjob(trainjob("Failed"), [pod("Failed", state)])
    assert (status.exit_status, status.signal) == (None, 9)


def test_a_large_exit_code_is_no_signal() -> None:
    """255 is what `exit(-1)` gives; there is no signal 127."""
    status = read_trainjob(trainjob("Failed"), [pod("Failed", ended(255))])
    assert (status.exit_status, status.signal) == (255, None)


def disruption(reason: str) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return pod("Failed", ended(143), conditions=[condition])


@pytest.mark.parametrize(
    ("reason", "pods", "cause"),
    [
        ("DeadlineExceeded", [pod("Failed", ended(143))], Cause.WALL_LIMIT),
        ("FailedJobs", [pod("Failed", ended(137, "OOMKilled"))], Cause.OUT_OF_MEMORY),
        ("FailedJobs", [disruption("PreemptionByScheduler")], Cause.PREEMPTED),
        ("FailedJobs", [disruption("DeletionByTaintManager")], Cause.NODE_FAILURE),
        ("FailedJobs", [disruption("TerminationByKubelet")], Cause.NODE_FAILURE),
        ("FailedJobs", [pod("Failed", reason="Evicted")], Cause.NODE_FAILURE),
        ("FailedJobs", [pod("Failed", reason="NodeLost")], Cause.NODE_FAILURE),
        ("FailedJobs", [pod("Failed", ended(128, "StartError"))], Cause.START_FAILURE),
        ("FailedJobs", [pod("Pending", {"waiting": {"reason": "InvalidImageName"}})], Cause.START_FAILURE),
        ("TrainingRuntimeNotSupported", [], Cause.START_FAILURE),
        ("FailedJobs", [pod("Failed", ended(1))], Cause.EXIT),
        ("FailedJobs", [], Cause.EXIT),
    ],
)
def test_each_way_to_fail_has_its_cause(reason: str, pods: list[dict[str, Any]], cause: Cause) -> None:
    status = read_trainjob(trainjob("Failed", reason), pods)
    assert (status.state, status.cause) == (State.FAILED, cause)
