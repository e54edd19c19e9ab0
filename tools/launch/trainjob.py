"""A job as a TrainJob of Kubeflow Trainer v2, and what a TrainJob and its pods report.

Conditions: trainjob_types.go of kubeflow/trainer. Does not import the Kubernetes client.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tools.launch.status import MARK, Cause, Intent, JobStatus, State
from tools.launch.template import KubernetesSettings

GROUP, VERSION, PLURAL = "trainer.kubeflow.org", "v1alpha1", "trainjobs"
DIGEST = "asap-digest"
NODE = "node"
"""What every training runtime calls its replicated job and its container."""
_VOLUME = "asap-jobs"
_MANAGER = "asap/launcher"
_NO_START = {"StartError", "ContainerCannotRun", "InvalidImageName", "ErrImageNeverPull"}
_PREEMPTED = {"PreemptionByScheduler", "PreemptionByKubeScheduler", "Preempting"}
_NODE_GONE = {"NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Evicted", "UnexpectedAdmissionError"}
_SIGNAL_BASE, _LAST_SIGNAL = 128, 64
_TEXT_LENGTH = 300
Object = dict[str, Any]
"""A Kubernetes object as the API takes and returns it."""


def object_name(key: str) -> str:
    """A DNS label; pods add a few characters to it."""
    return f"asap-{key}"


def make_trainjob(intent: Intent, settings: KubernetesSettings, image: str) -> Object:
    """The manifest, as the API takes it."""
    manifest = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainJob",
        "metadata": {
            "name": object_name(intent.key),
            "namespace": settings.namespace,
            "labels": {"app.kubernetes.io/managed-by": "asap", "asap-key": intent.key},
            "annotations": {DIGEST: intent.digest},
        },
        "spec": {
            "runtimeRef": {"apiGroup": GROUP, "kind": settings.runtime_kind, "name": settings.runtime},
            "activeDeadlineSeconds": intent.wall_s,
            "trainer": _trainer(intent, settings, image),
            "runtimePatches": [_patch(_pod(settings))],
        },
    }
    return _check_manifest(manifest)


def _trainer(intent: Intent, settings: KubernetesSettings, image: str) -> Object:
    environment = {**intent.environment, MARK: intent.mark}
    trainer: Object = {
        "image": image,
        "command": list(map(_literal, intent.command)),
        "env": [{"name": name, "value": _literal(value)} for name, value in environment.items()],
        "numNodes": intent.nnodes,
        "numProcPerNode": intent.nproc,
    }
    resources = {"cpu": settings.cpu, "memory": settings.memory}
    if settings.device_resource:
        resources[settings.device_resource] = str(intent.nproc)
    requested = {name: value for name, value in resources.items() if value}
    if requested:
        # Requests equal to limits: neighbours must not disturb a measurement.
        trainer["resourcesPerNode"] = {"limits": requested, "requests": requested}
    return trainer


def _literal(text: str) -> str:
    """Kubernetes would replace `$(NAME)` in commands and variables; a doubled dollar is a dollar to it."""
    return text.replace("$", "$$")


def _pod(settings: KubernetesSettings) -> Object:
    claim = {"claimName": settings.claim}
    mount = {"name": _VOLUME, "mountPath": settings.mount_path}
    return {
        "volumes": [{"name": _VOLUME, "persistentVolumeClaim": claim}],
        "containers": [{"name": NODE, "volumeMounts": [mount]}],
    }


def _patch(pod: Object) -> Object:
    job = {"name": NODE, "template": {"spec": {"template": {"spec": pod}}}}
    return {"manager": _MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}


def _check_manifest(manifest: Object) -> Object:
    """Through the models and back: they drop what they do not know, and nothing may be dropped."""
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    checked: Object = TrainerV1alpha1TrainJob.from_dict(manifest).to_dict()
    assert checked == manifest, "the TrainJob models do not know a field of the manifest"
    return checked


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
    common = JobStatus(State.QUEUED, source="TrainJob", nodes=nodes, started_unix_s=_started_at(pods))
    if "Complete" in conditions:
        codes = {ended.exit_code for ended in _ended(pods)}
        ended_s = _time(conditions["Complete"].get("lastTransitionTime"))
        exit_status = 0 if codes == {0} else None
        return replace(
            common, state=State.SUCCEEDED, cause=Cause.EXIT, exit_status=exit_status, ended_unix_s=ended_s
        )
    if "Failed" in conditions:
        return _failed_status(conditions["Failed"], pods, common)
    state = State.RUNNING if any(_phase(pod) == "Running" for pod in pods) else State.QUEUED
    detail = "suspended" if "Suspended" in conditions else "; ".join(sorted(set(_waiting(pods))))
    return replace(common, state=state, detail=detail[:_TEXT_LENGTH])


def _failed_status(condition: Object, pods: Sequence[Object], common: JobStatus) -> JobStatus:
    wrong = sorted((item for item in _ended(pods) if item.exit_code), key=lambda item: item.finished_at)
    first = wrong[0] if wrong else None
    reason = str(condition.get("reason", ""))
    return replace(
        common,
        state=State.FAILED,
        cause=_cause(reason, first, pods),
        exit_status=first.exit_code if first and first.signal is None else None,
        signal=first.signal if first else None,
        detail=f"{reason}: {condition.get('message', '')}"[:_TEXT_LENGTH],
        ended_unix_s=_time(condition.get("lastTransitionTime")),
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
                # The runtime reports the signal itself if it can, else as a shell does.
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


def _started_at(pods: Sequence[Object]) -> float | None:
    times = [_time(pod.get("status", {}).get("startTime")) for pod in pods]
    return min((time for time in times if time is not None), default=None)


def _time(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
