"""TrainJobs against an API server that stores and streams objects; nothing runs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("kubeflow_trainer_api", reason="needs the extra 'kubernetes'")
pytest.importorskip("kmock", reason="needs the development packages")

from tests.integration.launch.kube_cluster import NAMESPACE, KubeCluster, running_api_server
from tests.integration.launch.waiting import Run
from tests.unit.launch.builders import templates
from tools.errors import InputError
from tools.launch.kubernetes import KubernetesLauncher
from tools.launch.launcher import Job
from tools.launch.status import FailureCause, JobState


@pytest.fixture
def kube() -> Iterator[KubeCluster]:
    with running_api_server() as cluster:
        yield cluster


@pytest.fixture
def run(kube: KubeCluster, tmp_path: Path) -> Run:
    registered = templates(
        "kubernetes",
        command=["torchrun", "-m", "testbed.trainer", "{scenario}", "--out", "{out}"],
        limits={"wall_s": 600, "devices": 16, "nodes": 4},
        kubernetes={"namespace": NAMESPACE, "claim": "trials", "device_resource": "nvidia.com/gpu"},
    )
    root = tmp_path / "jobs"
    return Run(KubernetesLauncher(root, registered, kube.api_client, poll_s=0.05), root)


def ended(exit_code: int, reason: str = "Error") -> dict[str, object]:
    terminated = {"exitCode": exit_code, "reason": reason, "finishedAt": "2026-11-16T08:00:05Z"}
    container = {"name": "node", "image": "trainer:1", "imageID": "", "ready": False, "restartCount": 0}
    return {
        "phase": "Failed" if exit_code else "Succeeded",
        "startTime": "2026-11-16T08:00:00Z",
        "containerStatuses": [container | {"state": {"terminated": terminated}}],
    }


def test_a_submitted_job_is_one_trainjob_with_the_paths_of_its_pods(run: Run, kube: KubeCluster) -> None:
    handle = run.submit()
    assert handle.reference == "ml/asap-k1"
    [created] = kube.trainjobs()
    assert created["metadata"]["name"] == "asap-k1"
    trainer = created["spec"]["trainer"]
    assert trainer["command"][-3:] == ["/asap/k1/inputs/scenario.json", "--out", "/asap/k1/out"]
    assert (run.folder.inputs / "scenario.json").exists()
    assert run.folder.out.stat().st_mode & 0o777 == 0o777
    assert run.launcher.wait(handle, 0.3).state is JobState.QUEUED, "waiting ends when its time is over"


def test_a_key_creates_one_object_even_after_a_crash_before_its_record(run: Run, kube: KubeCluster) -> None:
    handle = run.submit()
    assert run.submit() == run.handle == handle
    (run.folder.path / "trainjob.json").unlink()
    assert run.handle == run.submit() == handle
    assert len(kube.trainjobs()) == 1


def test_another_job_under_the_key_is_refused_here_and_elsewhere(
    run: Run, kube: KubeCluster, tmp_path: Path
) -> None:
    run.submit()
    other = Job("test", {"other": 1})
    with pytest.raises(InputError, match="key"):
        replace(run, job=other).submit()
    elsewhere = KubernetesLauncher(tmp_path / "elsewhere", run.launcher.templates, kube.api_client)
    with pytest.raises(InputError, match="another TrainJob"):
        elsewhere.submit("k1", other)


def test_a_deleted_object_is_not_created_again(run: Run, kube: KubeCluster) -> None:
    handle = run.submit()
    kube.delete("asap-k1")
    assert run.submit() == handle
    assert kube.trainjobs() == []
    assert run.launcher.status(handle).state is JobState.LOST


def test_a_completed_trainjob_is_a_success_and_stays_known(run: Run, kube: KubeCluster) -> None:
    handle = run.submit()
    kube.add_pod("asap-k1-node-0-0-x", ended(0, "Completed"))
    kube.set_condition("asap-k1", "Complete", "AllJobsCompleted")
    status = run.launcher.status(handle)
    assert (status.state, status.exit_status, status.nodes) == (JobState.SUCCEEDED, 0, ("worker-1",))
    assert status.ended_unix_s == pytest.approx(1794816010.0)
    kube.delete("asap-k1")
    assert run.launcher.status(handle) == status


def test_cancel_deletes_the_object_and_keeps_it_from_coming_back(run: Run, kube: KubeCluster) -> None:
    handle = run.submit()
    status = run.launcher.cancel(handle)
    assert (status.state, status.cause) == (JobState.CANCELLED, FailureCause.CANCELLED)
    assert kube.trainjobs() == []
    assert run.submit() == handle
    assert kube.trainjobs() == []
    assert run.launcher.cancel(handle) == status
