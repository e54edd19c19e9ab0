"""A job as a TrainJob of Kubeflow Trainer v2, and what a TrainJob and its pods report.

Conditions: trainjob_types.go of kubeflow/trainer. Does not import the Kubernetes client.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tools.launch.status import MARK, FailureCause, Intent, JobState, JobStatus
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
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    def literal(text: str) -> str:
        """Kubernetes would replace `$(NAME)`; a doubled dollar is a dollar to it."""
        return text.replace("$", "$$")

    environment = {**intent.environment, MARK: intent.mark}
    trainer: Object = {
        "image": image,
        "command": [literal(word) for word in intent.command],
        "env": [{"name": name, "value": literal(value)} for name, value in environment.items()],
        "numNodes": intent.nnodes,
        "numProcPerNode": intent.nproc,
    }
    resources = {"cpu": settings.cpu, "memory": settings.memory}
    if settings.device_resource:
        resources[settings.device_resource] = str(intent.nproc)
    if requested := {name: value for name, value in resources.items() if value}:
        # Requests equal to limits: neighbours must not disturb a measurement.
        trainer["resourcesPerNode"] = {"limits": requested, "requests": requested}
    pod = {
        "volumes": [{"name": _VOLUME, "persistentVolumeClaim": {"claimName": settings.claim}}],
        "containers": [{"name": NODE, "volumeMounts": [{"name": _VOLUME, "mountPath": settings.mount_path}]}],
    }
    job = {"name": NODE, "template": {"spec": {"template": {"spec": pod}}}}
    patch = {"manager": _MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}
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
            "trainer": trainer,
            "runtimePatches": [patch],
        },
    }
    # Through the models and back: they drop what they do not know, and nothing may be dropped.
    checked: Object = TrainerV1alpha1TrainJob.from_dict(manifest).to_dict()
    assert checked == manifest, "the TrainJob models do not know a field of the manifest"
    return checked


@dataclass(frozen=True)
class _Ended:
    exit_code: int
    signal: int | None
    reason: str
    finished_at: str


def read_trainjob(trainjob: Object, pods: Sequence[Object]) -> JobStatus:
    """A failure's exit code is that of the container that failed first; others died because it did."""
    conditions = {
        item["type"]: item
        for item in (trainjob.get("status") or {}).get("conditions") or []
        if item["status"] == "True"
    }
    statuses = [pod.get("status", {}) for pod in pods]
    nodes = tuple(sorted({node for pod in pods if (node := pod.get("spec", {}).get("nodeName"))}))
    started_s = min((_time(pod["startTime"]) for pod in statuses if pod.get("startTime")), default=None)
    common = JobStatus(JobState.QUEUED, source="TrainJob", nodes=nodes, started_unix_s=started_s)
    states = [state for status in statuses for state in _container_states(status)]
    ended = [_ended(state["terminated"]) for state in states if state.get("terminated")]
    waiting = [state["waiting"] for state in states if state.get("waiting")]
    end = conditions.get("Complete") or conditions.get("Failed")
    if end is None:
        is_running = any(status.get("phase") == "Running" for status in statuses)
        reasons = {f"{item.get('reason', '')}: {item.get('message', '')}".strip(": ") for item in waiting}
        detail = "suspended" if "Suspended" in conditions else "; ".join(sorted(reasons))
        state = JobState.RUNNING if is_running else JobState.QUEUED
        return replace(common, state=state, detail=detail[:_TEXT_LENGTH])
    common = replace(
        common, ended_unix_s=_time(end["lastTransitionTime"]) if end.get("lastTransitionTime") else None
    )
    if "Complete" in conditions:
        exit_status = 0 if {item.exit_code for item in ended} == {0} else None
        return replace(common, state=JobState.SUCCEEDED, cause=FailureCause.EXIT, exit_status=exit_status)
    first = min((item for item in ended if item.exit_code), key=lambda item: item.finished_at, default=None)
    reason, disruptions = str(end.get("reason", "")), set(_disruptions(statuses))
    refused = {first.reason if first else "", *(item.get("reason") for item in waiting)} & _NO_START
    if reason == "DeadlineExceeded":
        cause = FailureCause.WALL_LIMIT
    elif any(item.reason == "OOMKilled" for item in ended):
        cause = FailureCause.OUT_OF_MEMORY
    elif disruptions & _PREEMPTED:
        cause = FailureCause.PREEMPTED
    elif disruptions:
        cause = FailureCause.NODE_FAILURE
    elif refused or reason == "TrainingRuntimeNotSupported":
        cause = FailureCause.START_FAILURE
    else:
        cause = FailureCause.EXIT
    return replace(
        common,
        state=JobState.FAILED,
        cause=cause,
        exit_status=first.exit_code if first and first.signal is None else None,
        signal=first.signal if first else None,
        detail=f"{reason}: {end.get('message', '')}"[:_TEXT_LENGTH],
    )


def _container_states(status: Object) -> list[Object]:
    containers = status.get("containerStatuses") or []
    return [container.get("state") or {} for container in containers if container.get("name") == NODE]


def _ended(end: Object) -> _Ended:
    code = int(end.get("exitCode", 0))
    # The runtime reports the signal itself if it can, else as a shell does.
    died = _SIGNAL_BASE < code <= _SIGNAL_BASE + _LAST_SIGNAL
    signal = end.get("signal") or (code - _SIGNAL_BASE if died else None)
    return _Ended(code, signal, end.get("reason", ""), end.get("finishedAt") or "")


def _disruptions(statuses: Sequence[Object]) -> Iterator[str]:
    for status in statuses:
        if status.get("reason") in _NODE_GONE | _PREEMPTED:
            yield status["reason"]
        for condition in status.get("conditions") or []:
            if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
                yield condition.get("reason", "DisruptionTarget")


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
