"""Manifests that Kubeflow and Kubernetes accept, and TrainJobs and pods in ASAP's vocabulary."""

import pytest

pytest.importorskip("kubeflow_trainer_api", reason="needs the extra 'kubernetes'")
pytest.importorskip("kubernetes_validate", reason="needs the development packages")

import kubernetes_validate

from tests.unit.launch.builders import EXAMPLES, make_intent
from tools.launch.status import FailureCause, JobState
from tools.launch.template import KubernetesSettings, read_templates
from tools.launch.trainjob import Object, make_trainjob, read_trainjob

FULL = KubernetesSettings(
    namespace="ml", claim="trials", device_resource="nvidia.com/gpu", cpu="8", memory="64Gi"
)
PLAIN = KubernetesSettings(namespace="ml", claim="trials", runtime="mine", runtime_kind="TrainingRuntime")
EXAMPLE = read_templates(EXAMPLES)["reference-kubernetes"]


def as_pod(manifest: Object) -> Object:
    """What the controller makes of ASAP's part: the patch and the trainer in one pod."""
    trainer = manifest["spec"]["trainer"]
    runtime = manifest["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    pod = runtime["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"][0] |= {name: trainer[name] for name in ("image", "command", "env")}
    if "resourcesPerNode" in trainer:
        pod["containers"][0]["resources"] = trainer["resourcesPerNode"]
    metadata = {name: manifest["metadata"][name] for name in ("name", "labels")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}


@pytest.mark.parametrize("settings", [FULL, PLAIN, EXAMPLE.kubernetes])
def test_the_pod_of_a_manifest_is_legal_for_kubernetes(settings: KubernetesSettings) -> None:
    assert EXAMPLE.image is not None
    pod = as_pod(make_trainjob(make_intent(environment=EXAMPLE.environment), settings, EXAMPLE.image))
    kubernetes_validate.validate(pod, "1.37", strict=True)
    pod["spec"]["volumes"][0]["persistentVolumeClaims"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, "1.37", strict=True)


def test_size_limit_and_runtime_are_those_of_job_and_template() -> None:
    spec = make_trainjob(make_intent(wall_s=600), FULL, "trainer:1")["spec"]
    group = {"apiGroup": "trainer.kubeflow.org"}
    assert spec["runtimeRef"] == group | {"kind": "ClusterTrainingRuntime", "name": "torch-distributed"}
    assert spec["activeDeadlineSeconds"] == 600
    assert (spec["trainer"]["numNodes"], spec["trainer"]["numProcPerNode"]) == (2, 4)
    wanted = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "4"}
    assert spec["trainer"]["resourcesPerNode"] == {"limits": wanted, "requests": wanted}
    own = make_trainjob(make_intent(), PLAIN, "trainer:1")["spec"]
    assert (own["runtimeRef"]["name"], own["runtimeRef"]["kind"]) == ("mine", "TrainingRuntime")
    assert "resourcesPerNode" not in own["trainer"]


def trainjob(kind: str | None = None, reason: str = "", status: str = "True") -> Object:
    if kind is None:
        return {"metadata": {"name": "asap-k1"}}
    condition = {"type": kind, "status": status, "reason": reason, "message": "m"}
    return {"status": {"conditions": [condition | {"lastTransitionTime": "2026-11-16T08:00:10Z"}]}}


def pod(phase: str, state: Object | None = None, **status: object) -> Object:
    containers = [{"name": "sidecar", "state": {"terminated": {"exitCode": 99}}}]
    containers += [{"name": "node", "state": state}] if state else []
    more = {"phase": phase, "containerStatuses": containers, "startTime": "2026-11-16T08:00:00Z"}
    return {"metadata": {"name": "p"}, "spec": {"nodeName": "w1"}, "status": more | status}


def ended(code: int, reason: str = "Error", at: str = "2026-11-16T08:00:05Z", **more: int) -> Object:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at, **more}}


def waiting(reason: str, **more: str) -> Object:
    return pod("Pending", {"waiting": {"reason": reason, **more}})


def disrupted(reason: str) -> Object:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return pod("Failed", ended(143), conditions=[condition])


@pytest.mark.parametrize(
    ("job", "pods", "state", "detail"),
    [
        (trainjob(), [], JobState.QUEUED, ""),
        (trainjob("Suspended", "Suspended"), [], JobState.QUEUED, "suspended"),
        (trainjob("Suspended", "Resumed", status="False"), [pod("Running")], JobState.RUNNING, ""),
        (
            trainjob(),
            [waiting("ImagePullBackOff", message="none")],
            JobState.QUEUED,
            "ImagePullBackOff: none",
        ),
    ],
)
def test_a_trainjob_that_waits_or_runs_says_why(
    job: Object, pods: list[Object], state: JobState, detail: str
) -> None:
    status = read_trainjob(job, pods)
    assert (status.state, status.detail) == (state, detail)


def test_complete_is_success_and_the_exit_status_is_the_containers_or_unknown() -> None:
    done = read_trainjob(trainjob("Complete"), [pod("Succeeded", ended(0))] * 2)
    assert (done.state, done.exit_status, done.nodes) == (JobState.SUCCEEDED, 0, ("w1",))
    assert (done.started_unix_s, done.ended_unix_s) == (1794816000.0, 1794816010.0)
    assert read_trainjob(trainjob("Complete"), []).exit_status is None


FIRST, LATER = (pod("Failed", ended(code, at=f"2026-11-16T08:00:0{at}Z")) for code, at in ((3, 1), (143, 2)))


@pytest.mark.parametrize(
    ("pods", "exit_status", "signal"),
    [
        ([LATER, FIRST], 3, None),
        ([pod("Failed", ended(137))], None, 9),
        ([pod("Failed", ended(137, signal=9))], None, 9),
        ([pod("Failed", ended(255))], 255, None),  # what `exit(-1)` gives; there is no signal 127
    ],
)
def test_the_first_container_to_fail_gives_the_exit_status_or_the_signal(
    pods: list[Object], exit_status: int | None, signal: int | None
) -> None:
    status = read_trainjob(trainjob("Failed", "FailedJobs"), pods)
    assert (status.state, status.cause, status.detail) == (
        JobState.FAILED,
        FailureCause.EXIT,
        "FailedJobs: m",
    )
    assert (status.exit_status, status.signal) == (exit_status, signal)


@pytest.mark.parametrize(
    ("reason", "pods", "cause"),
    [
        ("DeadlineExceeded", [pod("Failed", ended(143))], FailureCause.WALL_LIMIT),
        ("FailedJobs", [pod("Failed", ended(137, "OOMKilled"))], FailureCause.OUT_OF_MEMORY),
        ("FailedJobs", [disrupted("PreemptionByScheduler")], FailureCause.PREEMPTED),
        ("FailedJobs", [disrupted("DeletionByTaintManager")], FailureCause.NODE_FAILURE),
        ("FailedJobs", [disrupted("TerminationByKubelet")], FailureCause.NODE_FAILURE),
        ("FailedJobs", [pod("Failed", reason="Evicted")], FailureCause.NODE_FAILURE),
        ("FailedJobs", [pod("Failed", reason="NodeLost")], FailureCause.NODE_FAILURE),
        ("FailedJobs", [pod("Failed", ended(128, "StartError"))], FailureCause.START_FAILURE),
        ("FailedJobs", [waiting("InvalidImageName")], FailureCause.START_FAILURE),
        ("TrainingRuntimeNotSupported", [], FailureCause.START_FAILURE),
        ("FailedJobs", [pod("Failed", ended(1))], FailureCause.EXIT),
        ("FailedJobs", [], FailureCause.EXIT),
    ],
)
def test_each_way_to_fail_has_its_cause(reason: str, pods: list[Object], cause: FailureCause) -> None:
    status = read_trainjob(trainjob("Failed", reason), pods)
    assert (status.state, status.cause) == (JobState.FAILED, cause)
