"""TrainJobs against an API server that stores and streams objects; nothing runs."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("kubeflow_trainer_api", reason="needs the extra 'kubernetes'")
pytest.importorskip("kmock", reason="needs the development packages")

from tests.integration.launch.kube_cluster import NAMESPACE, KubeCluster, running_api_server
from tests.integration.launch.waiting import WAIT_S, Run, until
from tests.unit.launch.builders import templates
from tools.errors import InputError
from tools.launch.kubernetes import KubernetesLauncher
from tools.launch.launcher import Job
from tools.launch.status import Cause, LaunchError, State

RUNNING = {"phase": "Running", "startTime": "2026-11-16T08:00:00Z"}


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
    assert run.launcher.wait(handle, 0.3).state is State.QUEUED, "waiting ends when its time is over"


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
    assert isinstance(run.launcher, KubernetesLauncher)
    elsewhere = KubernetesLauncher(tmp_path / "elsewhere", run.launcher._templates, kube.api_client)
    with pytest.raises(InputError, match="another TrainJob"):
        elsewhere.submit("k1", other)


def test_a_deleted_object_is_not_created_again(run: Run, kube: KubeCluster) -> None:
    handle = run.submit()
    kube.delete("asap-k1")
    assert run.submit() == handle
    assert kube.trainjobs() == []
    assert run.launcher.status(handle).state is State.LOST


def test_a_completed_trainjob_is_a_success_and_stays_known(run: Run, kube: KubeCluster) -> None:
    handle = run.submit()
    kube.add_pod("asap-k1-node-0-0-x", ended(0, "Completed"))
    kube.set_condition("asap-k1", "Complete", "AllJobsCompleted")
    status = run.launcher.status(handle)
    assert (status.state, status.exit_status, status.nodes) == (State.SUCCEEDED, 0, ("worker-1",))
    assert status.ended_unix_s == pytest.approx(1794816010.0)
    kube.delete("asap-k1")
    assert run.launcher.status(handle) == status


def test_waiting_ends_with_the_change_that_the_watch_reports(run: Run, kube: KubeCluster) -> None:
    run.submit()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run.finish)
        until(lambda: any("watch" in str(request.url) for request in kube.server))
        kube.set_condition("asap-k1", "Failed", "DeadlineExceeded", "TrainJob exceeded its active deadline")
        status = waiting.result(WAIT_S)
    assert (status.state, status.cause) == (State.FAILED, Cause.WALL_LIMIT)


def test_cancel_deletes_the_object_and_keeps_it_from_coming_back(run: Run, kube: KubeCluster) -> None:
    handle = run.submit()
    status = run.launcher.cancel(handle)
    assert (status.state, status.cause) == (State.CANCELLED, Cause.CANCELLED)
    assert kube.trainjobs() == []
    assert run.submit() == handle
    assert kube.trainjobs() == []
    assert run.launcher.cancel(handle) == status


def test_a_job_cancelled_before_its_creation_is_never_created(run: Run, kube: KubeCluster) -> None:
    run.folder.make()
    run.folder.mark_cancelled()
    assert run.finish().state is State.CANCELLED
    assert kube.trainjobs() == []


def test_logs_come_from_the_first_pod_and_resume_at_an_offset(run: Run, kube: KubeCluster) -> None:
    handle = run.submit()
    kube.add_pod("asap-k1-node-0-1-x", ended(0), log=b"second node\n")
    kube.add_pod("asap-k1-node-0-0-x", ended(0), log=b"one\ntwo\nthree")
    kube.set_condition("asap-k1", "Complete")
    assert run.output() == "one\ntwo\nthree"
    assert [chunk.text for chunk in run.launcher.logs(handle, 4)] == ["two\n", "three"]


def test_logs_follow_a_running_job(run: Run, kube: KubeCluster) -> None:
    handle = run.submit()
    kube.add_pod("asap-k1-node-0-0-x", RUNNING, log=b"early\n")
    stream = run.launcher.logs(handle)
    assert next(stream).text == "early\n"
    assert run.launcher.status(handle).state is State.RUNNING
    kube.set_condition("asap-k1", "Complete")
    assert list(stream) == []


def test_a_refusal_of_the_server_is_an_error_in_its_own_words(run: Run, kube: KubeCluster) -> None:
    kube.server[f"post /apis/trainer.kubeflow.org/v1alpha1/namespaces/{NAMESPACE}/trainjobs"] << 403
    with pytest.raises(LaunchError, match="403"):
        run.submit()


def test_an_unreachable_server_is_an_error(run: Run, kube: KubeCluster) -> None:
    kube.api_client.configuration.host = "http://127.0.0.1:1"
    kube.api_client.configuration.retries = 0
    with pytest.raises(LaunchError, match="cannot be reached"):
        run.submit()
