"""TrainJobs against an API server that stores and streams objects; nothing runs."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubeflow_trainer_api", reason="needs the extra 'kubernetes'")
pytest.importorskip("kmock", reason="needs the development packages")

from tests.integration.launch.kube_cluster import NAMESPACE, KubeCluster, running_api_server
from tests.integration.launch.waiting import WAIT_S, until
from tools.errors import InputError
from tools.launch.folder import JobFolder
from tools.launch.job import Job
from tools.launch.kubernetes import KubernetesLauncher
from tools.launch.status import Cause, LaunchError, State
from tools.launch.template import parse_templates

RUNNING = {"phase": "Running", "startTime": "2026-11-16T08:00:00Z"}


@pytest.fixture
def kube() -> Iterator[KubeCluster]:
    with running_api_server() as cluster:
        yield cluster


@pytest.fixture
def launcher(kube: KubeCluster, tmp_path: Path) -> KubernetesLauncher:
    table = {
        "name": "test",
        "launcher": "kubernetes",
        "command": ["torchrun", "-m", "testbed.trainer", "{scenario}", "--out", "{out}"],
        "image": "registry.example/trainer:1",
        "limits": {"wall_s": 600, "devices": 16, "nodes": 4},
        "kubernetes": {"namespace": NAMESPACE, "claim": "trials", "device_resource": "nvidia.com/gpu"},
    }
    templates = parse_templates({"template": [table]})
    return KubernetesLauncher(tmp_path / "jobs", templates, kube.api_client, poll_s=0.05)


def ended(exit_code: int, reason: str = "Error", finished: str = "2026-11-16T08:00:05Z") -> dict[str, object]:
    terminated = {"exitCode": exit_code, "reason": reason, "finishedAt": finished}
    container = {"name": "node", "image": "trainer:1", "imageID": "", "ready": False, "restartCount": 0}
    return {
        "phase": "Failed" if exit_code else "Succeeded",
        "startTime": "2026-11-16T08:00:00Z",
        "containerStatuses": [container | {"state": {"terminated": terminated}}],
    }


def test_a_submitted_job_is_one_trainjob_with_the_paths_of_its_pods(
    launcher: KubernetesLauncher, kube: KubeCluster, job: Job, tmp_path: Path
) -> None:
    handle = launcher.submit("k1", job)
    assert handle.reference == "ml/asap-k1"
    [created] = kube.trainjobs()
    assert created["metadata"]["name"] == "asap-k1"
    trainer = created["spec"]["trainer"]
    assert trainer["command"][-3:] == ["/asap/k1/inputs/scenario.json", "--out", "/asap/k1/out"]
    assert (tmp_path / "jobs/k1/inputs/scenario.json").exists()
    assert (tmp_path / "jobs/k1/out").stat().st_mode & 0o777 == 0o777
    assert launcher.status(handle).state is State.QUEUED


def test_the_same_key_is_created_once(launcher: KubernetesLauncher, kube: KubeCluster, job: Job) -> None:
    handle = launcher.submit("k1", job)
    assert launcher.submit("k1", job) == handle
    assert launcher.find("k1") == handle
    assert len(kube.trainjobs()) == 1
    with pytest.raises(InputError, match="key"):
        launcher.submit("k1", Job("test", {"other": 1}))


def test_a_crash_between_creation_and_record_finds_the_object_again(
    launcher: KubernetesLauncher, kube: KubeCluster, job: Job, tmp_path: Path
) -> None:
    handle = launcher.submit("k1", job)
    (tmp_path / "jobs/k1/trainjob.json").unlink()
    assert launcher.find("k1") == handle
    assert launcher.submit("k1", job) == handle
    assert len(kube.trainjobs()) == 1


def test_a_strangers_object_of_the_same_name_is_refused(
    launcher: KubernetesLauncher, kube: KubeCluster, job: Job, tmp_path: Path
) -> None:
    launcher.submit("k1", job)
    other = KubernetesLauncher(tmp_path / "elsewhere", launcher._templates, kube.api_client)
    with pytest.raises(InputError, match="another TrainJob"):
        other.submit("k1", Job("test", {"other": 1}))


def test_a_deleted_object_is_not_created_again(
    launcher: KubernetesLauncher, kube: KubeCluster, job: Job
) -> None:
    handle = launcher.submit("k1", job)
    kube.delete("asap-k1")
    assert launcher.submit("k1", job) == handle
    assert kube.trainjobs() == []
    assert launcher.status(handle).state is State.LOST


def test_a_completed_trainjob_is_a_success_and_stays_known(
    launcher: KubernetesLauncher, kube: KubeCluster, job: Job
) -> None:
    handle = launcher.submit("k1", job)
    kube.add_pod("asap-k1-node-0-0-x", ended(0, "Completed"))
    kube.set_condition("asap-k1", "Complete", "AllJobsCompleted")
    status = launcher.status(handle)
    assert (status.state, status.exit_status, status.nodes) == (State.SUCCEEDED, 0, ("worker-1",))
    assert status.ended_unix_s == pytest.approx(1794816010.0)
    kube.delete("asap-k1")
    assert launcher.status(handle) == status


def test_waiting_ends_with_the_change_that_the_watch_brings(
    launcher: KubernetesLauncher, kube: KubeCluster, job: Job
) -> None:
    handle = launcher.submit("k1", job)
    found: list[State] = []
    waiter = threading.Thread(target=lambda: found.append(launcher.wait(handle, WAIT_S).state))
    waiter.start()
    until(lambda: any("watch" in str(request.url) for request in kube.server))
    kube.set_condition("asap-k1", "Failed", "DeadlineExceeded", "TrainJob exceeded its active deadline")
    waiter.join(WAIT_S)
    assert found == [State.FAILED]
    assert launcher.status(handle).cause is Cause.WALL_LIMIT


def test_waiting_ends_when_its_time_is_over(launcher: KubernetesLauncher, job: Job) -> None:
    handle = launcher.submit("k1", job)
    assert launcher.wait(handle, 0.3).state is State.QUEUED


def test_cancel_deletes_the_object_and_keeps_it_from_coming_back(
    launcher: KubernetesLauncher, kube: KubeCluster, job: Job
) -> None:
    handle = launcher.submit("k1", job)
    status = launcher.cancel(handle)
    assert (status.state, status.cause) == (State.CANCELLED, Cause.CANCELLED)
    assert kube.trainjobs() == []
    assert launcher.submit("k1", job) == handle
    assert kube.trainjobs() == []
    assert launcher.cancel(handle) == status


def test_a_job_cancelled_before_its_creation_is_never_created(
    launcher: KubernetesLauncher, kube: KubeCluster, job: Job, tmp_path: Path
) -> None:
    folder = JobFolder.of(tmp_path / "jobs", "k1")
    folder.make()
    folder.mark_cancelled()
    handle = launcher.submit("k1", job)
    assert launcher.status(handle).state is State.CANCELLED
    assert kube.trainjobs() == []


def test_logs_come_from_the_first_pod_and_go_on_from_an_offset(
    launcher: KubernetesLauncher, kube: KubeCluster, job: Job
) -> None:
    handle = launcher.submit("k1", job)
    kube.add_pod("asap-k1-node-0-1-x", ended(0), log=b"second node\n")
    kube.add_pod("asap-k1-node-0-0-x", ended(0), log=b"one\ntwo\nthree")
    kube.set_condition("asap-k1", "Complete")
    assert "".join(chunk.text for chunk in launcher.logs(handle)) == "one\ntwo\nthree"
    assert [chunk.text for chunk in launcher.logs(handle, 4)] == ["two\n", "three"]


def test_logs_follow_a_job_that_runs(launcher: KubernetesLauncher, kube: KubeCluster, job: Job) -> None:
    handle = launcher.submit("k1", job)
    kube.add_pod("asap-k1-node-0-0-x", RUNNING, log=b"early\n")
    stream = launcher.logs(handle)
    assert next(stream).text == "early\n"
    assert launcher.status(handle).state is State.RUNNING
    kube.set_condition("asap-k1", "Complete")
    assert list(stream) == []


def test_what_the_server_refuses_is_an_error_in_its_own_words(
    launcher: KubernetesLauncher, kube: KubeCluster, job: Job
) -> None:
    kube.server[f"post /apis/trainer.kubeflow.org/v1alpha1/namespaces/{NAMESPACE}/trainjobs"] << 403
    with pytest.raises(LaunchError, match="403"):
        launcher.submit("k1", job)


def test_a_server_out_of_reach_is_an_error(
    launcher: KubernetesLauncher, kube: KubeCluster, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.api_client.configuration.host = "http://127.0.0.1:1"
    kube.api_client.configuration.retries = 0
    with pytest.raises(LaunchError, match="cannot be reached"):
        launcher.submit("k1", job)
