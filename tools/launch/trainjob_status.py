"""What a TrainJob and its pods say about a job, in ASAP's words.

Conditions: trainjob_types.go of kubeflow/trainer. Reasons of pods: the Kubernetes documentation on pod
lifecycle and disruptions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tools.launch.status import Cause, JobStatus, State
from tools.launch.trainjob import NODE

Object = dict[str, Any]
_NO_START = {"StartError", "ContainerCannotRun", "InvalidImageName", "ErrImageNeverPull"}
_PREEMPTED = {"PreemptionByScheduler", "PreemptionByKubeScheduler", "Preempting"}
_NODE_GONE = {"NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Evicted", "UnexpectedAdmissionError"}
_SIGNAL_BASE, _LAST_SIGNAL = 128, 64
_TEXT_LENGTH = 300


@dataclass(frozen=True)
class _Ended:
    """A container that has ended."""

    exit_code: int
    signal: int | None
    reason: str
    finished_at: str


def read_trainjob(trainjob: Object, pods: Sequence[Object]) -> JobStatus:
    """A failure's exit code is that of the container that failed first; others died because it did."""
    status = trainjob.get("status") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or [] if item["status"] == "True"}
    nodes = tuple(sorted({node for pod in pods if (node := pod.get("spec", {}).get("nodeName"))}))
    times: dict[str, Any] = {"nodes": nodes, "started_unix_s": _started(pods), "source": "TrainJob"}
    if "Complete" in conditions:
        codes = {ended.exit_code for ended in _ended(pods)}
        ended_s = _time(conditions["Complete"].get("lastTransitionTime"))
        exit_status = 0 if codes == {0} else None
        return JobStatus(State.SUCCEEDED, Cause.EXIT, exit_status, ended_unix_s=ended_s, **times)
    if "Failed" in conditions:
        return _failed(conditions["Failed"], pods, times)
    state = State.RUNNING if any(_phase(pod) == "Running" for pod in pods) else State.QUEUED
    detail = "suspended" if "Suspended" in conditions else "; ".join(sorted(set(_waiting(pods))))
    return JobStatus(state, detail=detail[:_TEXT_LENGTH], **times)


def _failed(condition: Object, pods: Sequence[Object], times: dict[str, Any]) -> JobStatus:
    wrong = sorted((item for item in _ended(pods) if item.exit_code), key=lambda item: item.finished_at)
    first = wrong[0] if wrong else None
    reason = str(condition.get("reason", ""))
    return JobStatus(
        State.FAILED,
        _cause(reason, first, pods),
        exit_status=first.exit_code if first and first.signal is None else None,
        signal=first.signal if first else None,
        detail=f"{reason}: {condition.get('message', '')}"[:_TEXT_LENGTH],
        ended_unix_s=_time(condition.get("lastTransitionTime")),
        **times,
    )


def _cause(reason: str, first: _Ended | None, pods: Sequence[Object]) -> Cause:
    disruptions = set(_disruptions(pods))
    if reason == "DeadlineExceeded":
        return Cause.WALL_LIMIT
    if any(ended.reason == "OOMKilled" for ended in _ended(pods)):
        return Cause.OUT_OF_MEMORY
    if disruptions & _PREEMPTED:
        return Cause.PREEMPTED
    if disruptions:
        return Cause.NODE_FAILURE
    never_ran = first is not None and first.reason in _NO_START
    if never_ran or reason == "TrainingRuntimeNotSupported" or any(map(_cannot_start, pods)):
        return Cause.START_FAILURE
    return Cause.EXIT


def _disruptions(pods: Sequence[Object]) -> Iterator[str]:
    for pod in pods:
        status = pod.get("status", {})
        if status.get("reason") in _NODE_GONE | _PREEMPTED:
            yield status["reason"]
        for condition in status.get("conditions") or []:
            if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
                yield condition.get("reason", "DisruptionTarget")


def _containers(pod: Object) -> Iterator[Object]:
    for container in pod.get("status", {}).get("containerStatuses") or []:
        if container.get("name") == NODE:
            yield container.get("state") or {}


def _ended(pods: Sequence[Object]) -> Iterator[_Ended]:
    for pod in pods:
        for state in _containers(pod):
            end = state.get("terminated")
            if end:
                code = int(end.get("exitCode", 0))
                # The runtime reports the signal itself where it can, else as a shell does.
                died = _SIGNAL_BASE < code <= _SIGNAL_BASE + _LAST_SIGNAL
                signal = end.get("signal") or (code - _SIGNAL_BASE if died else None)
                yield _Ended(code, signal, end.get("reason", ""), end.get("finishedAt") or "")


def _waiting(pods: Sequence[Object]) -> Iterator[str]:
    for pod in pods:
        for state in _containers(pod):
            waiting = state.get("waiting")
            if waiting:
                yield f"{waiting.get('reason', '')}: {waiting.get('message', '')}".strip(": ")


def _cannot_start(pod: Object) -> bool:
    return any((state.get("waiting") or {}).get("reason") in _NO_START for state in _containers(pod))


def _phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _started(pods: Sequence[Object]) -> float | None:
    times = [_time(pod.get("status", {}).get("startTime")) for pod in pods]
    return min((time for time in times if time is not None), default=None)


def _time(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
