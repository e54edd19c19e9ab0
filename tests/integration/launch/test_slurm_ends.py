"""How jobs of a real Slurm end when not by themselves, and what is known when Slurm has forgotten them."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.launch.slurm_cluster import SlurmCluster
from tests.integration.launch.waiting import WAIT_S, until
from tools.launch.failures import FailureKind, classify, read_evidence
from tools.launch.job import Job
from tools.launch.slurm import SlurmLauncher
from tools.launch.status import Cause, Handle, LaunchError, State

pytestmark = pytest.mark.real
MakeLauncher = Callable[..., SlurmLauncher]


def test_a_node_that_goes_down_is_told_as_such(
    run: MakeLauncher, job: Job, tmp_path: Path, cluster: SlurmCluster, key: str
) -> None:
    launcher = run("srun", "sleep", "600")
    handle = launcher.submit(key, job)
    until(lambda: launcher.status(handle).state is State.RUNNING)
    node = launcher.status(handle).nodes[0]
    cluster.set_node(node, "down")
    try:
        status = launcher.wait(handle, WAIT_S)
    finally:
        cluster.resume_all()
    assert (status.state, status.cause) == (State.FAILED, Cause.NODE_FAILURE)


def test_a_job_over_its_memory_is_told_by_slurms_own_lines(
    run: MakeLauncher, job: Job, tmp_path: Path, key: str
) -> None:
    """Without control groups Slurm has no state for it: the step daemon writes into the job's output."""
    code = "import time; held = bytearray(400_000_000); time.sleep(60)"
    launcher = run("srun", sys.executable, "-c", code, slurm={"memory_mib_per_node": 200})
    handle = launcher.submit(key, job)
    status = launcher.wait(handle, WAIT_S)
    assert (status.state, status.exit_status) == (State.FAILED, 137)
    folder = tmp_path / "jobs" / handle.key
    failure = classify(read_evidence(status, folder / "out", folder / "log.txt"))
    assert failure is not None
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert any("exceeded memory limit" in line for line in failure.evidence)


def test_what_sbatch_refuses_is_an_error_in_its_own_words(
    run: MakeLauncher, job: Job, tmp_path: Path, cluster: SlurmCluster, key: str
) -> None:
    launcher = run("true", slurm={"partition": "no-such-partition"})
    with pytest.raises(LaunchError, match="invalid partition"):
        launcher.submit(key, job)
    assert launcher.find(key) is None
    assert cluster.jobs_named(key) == []


def test_a_forgotten_job_is_told_by_its_script_or_not_at_all(
    run: MakeLauncher, job: Job, tmp_path: Path, key: str
) -> None:
    launcher = run("sh", "-c", "exit 3")
    handle = launcher.submit(key, job)
    until(lambda: (tmp_path / "jobs" / handle.key / "exit_status").exists())
    (tmp_path / "jobs" / handle.key / "claim").write_text("999999")
    status = launcher.status(handle)
    assert (status.state, status.exit_status, status.source) == (State.FAILED, 3, "job script")


def test_a_forgotten_job_without_a_mark_of_its_script_is_lost(
    run: MakeLauncher, job: Job, tmp_path: Path, key: str
) -> None:
    launcher = run("true")
    launcher.wait(launcher.submit(key, job), WAIT_S)
    folder = tmp_path / "jobs" / key
    (folder / "claim").write_text("999999")
    (folder / "exit_status").unlink()
    (folder / "final.json").unlink()
    status = launcher.status(Handle("slurm", key, "999999"))
    assert (status.state, status.exit_status) == (State.LOST, None)


@pytest.mark.slow
def test_a_job_is_ended_at_its_wall_limit(run: MakeLauncher, tmp_path: Path, key: str) -> None:
    """Slurm counts minutes, and looks at the clock now and then."""
    launcher = run("srun", "sleep", "600")
    handle = launcher.submit(key, Job("test", {}, wall_s=5))
    status = launcher.wait(handle, 240)
    assert (status.state, status.cause) == (State.FAILED, Cause.WALL_LIMIT)
    assert status.detail.startswith("TIMEOUT")
