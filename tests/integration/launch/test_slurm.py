"""A real Slurm of four nodes on this machine; skipped where it is not installed (`make test-slurm` does)."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partialmethod
from pathlib import Path

import pytest

from tests.integration.launch.slurm_cluster import SlurmCluster
from tests.integration.launch.waiting import WAIT_S, until
from tools.errors import InputError
from tools.launch.folder import JobFolder
from tools.launch.job import Job
from tools.launch.slurm import FENCED, SlurmLauncher
from tools.launch.status import Cause, State

pytestmark = pytest.mark.real
MakeLauncher = Callable[..., SlurmLauncher]


def test_a_job_runs_and_slurm_says_how_it_ended(
    run: MakeLauncher, job: Job, tmp_path: Path, key: str
) -> None:
    launcher = run("sh", "-c", 'echo "on $(hostname)"; echo result > "$1/result.json"', "sh", "{out}")
    handle = launcher.submit(key, job)
    status = launcher.wait(handle, WAIT_S)
    assert (status.state, status.cause, status.exit_status) == (State.SUCCEEDED, Cause.EXIT, 0)
    assert (status.source, status.detail) == ("scontrol", "COMPLETED")
    assert status.nodes[0].startswith("n")
    assert status.started_unix_s is not None
    assert abs(status.started_unix_s - time.time()) < 3600
    assert "".join(chunk.text for chunk in launcher.logs(handle)).startswith("on n")
    assert launcher.artefacts(handle, tmp_path / "copy") == [Path("result.json")]


def test_a_failing_command_has_the_exit_code_that_scontrol_reports(
    run: MakeLauncher, job: Job, tmp_path: Path, key: str
) -> None:
    launcher = run("sh", "-c", "echo out of memory; exit 7")
    status = launcher.wait(launcher.submit(key, job), WAIT_S)
    assert (status.state, status.cause, status.exit_status) == (State.FAILED, Cause.EXIT, 7)
    assert status.source == "scontrol"


def test_every_word_and_variable_arrives_as_it_was_written(
    run: MakeLauncher, tmp_path: Path, cluster: SlurmCluster, key: str
) -> None:
    nasty = ["a b", "$(touch pwned)", "`id`", "'", '"', "\\", "; exit 9", "*", "~", "é\n-", "--", "{}"]
    launcher = run(
        "srun",
        sys.executable,
        "-c",
        "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))",
        *nasty,
        environment={"FIXED": "$HOME 'x'"},
        environment_allowed=["CHOSEN"],
    )
    handle = launcher.submit(key, Job("test", {}, environment={"CHOSEN": nasty[1]}))
    assert launcher.wait(handle, WAIT_S).exit_status == 0
    words, environment = json.loads("".join(chunk.text for chunk in launcher.logs(handle)))
    assert words == nasty
    assert (environment["FIXED"], environment["CHOSEN"]) == ("$HOME 'x'", nasty[1])
    given = {name for name in environment if not name.startswith(("SLURM", "SRUN", "ASAP"))}
    assert given <= {"FIXED", "CHOSEN", "PATH", "PWD", "LC_ALL", "LC_CTYPE", "HOSTNAME", "ENVIRONMENT",
                     "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TMPDIR",
                     "OLDPWD", "SHLVL", "_", "HOME", "USER", "SHELL", "LOGNAME"}  # fmt: skip


def test_the_same_key_is_submitted_once(
    run: MakeLauncher, job: Job, tmp_path: Path, cluster: SlurmCluster, key: str
) -> None:
    launcher = run("sh", "-c", "printf x >> runs")
    first = launcher.submit(key, job)
    assert launcher.submit(key, job) == first
    assert launcher.find(key) == first
    assert launcher.wait(first, WAIT_S).exit_status == 0
    assert launcher.submit(key, job) == first
    assert cluster.jobs_named(key) == [first.reference]
    with pytest.raises(InputError, match="key"):
        launcher.submit(key, Job("test", {"other": 1}))


def killed_while_submitting(launcher: SlurmLauncher, key: str, job: Job, delay_s: float | None) -> None:
    """In a process of its own, killed by itself between sbatch and the record, or by us after a while."""
    submitter = os.fork()
    if not submitter:
        with suppress(BaseException):
            if delay_s is None:
                write = JobFolder.write
                JobFolder.write = partialmethod(die_at_record, write)  # type: ignore[assignment,method-assign]
            launcher.submit(key, job)
        os._exit(0)
    if delay_s is not None:
        time.sleep(delay_s)
        os.kill(submitter, signal.SIGKILL)
    _, status = os.waitpid(submitter, 0)
    assert delay_s is not None or os.WTERMSIG(status) == signal.SIGKILL


def die_at_record(
    folder: JobFolder, write: Callable[..., None], name: str, *rest: object, **options: object
) -> None:
    if name == "slurm.json":
        os.kill(os.getpid(), signal.SIGKILL)
    write(folder, name, *rest, **options)


def test_a_submitter_killed_between_sbatch_and_its_record_launches_nothing_twice(
    run: MakeLauncher, job: Job, tmp_path: Path, cluster: SlurmCluster, key: str
) -> None:
    launcher = run("sh", "-c", "printf x >> runs; sleep 1")
    killed_while_submitting(launcher, key, job, None)
    submitted = cluster.jobs_named(key)
    assert len(submitted) == 1
    assert not (tmp_path / "jobs" / key / "slurm.json").exists()
    handle = launcher.submit(key, job)
    assert handle.reference == submitted[0]
    assert launcher.wait(handle, WAIT_S).exit_status == 0
    assert cluster.jobs_named(key) == submitted
    assert (tmp_path / "jobs" / key / "runs").read_text() == "x"


def test_a_submitter_killed_at_any_moment_neither_loses_nor_doubles_a_job(
    run: MakeLauncher, job: Job, tmp_path: Path, cluster: SlurmCluster, key: str
) -> None:
    launcher = run("sh", "-c", "printf x >> runs")
    for number in range(10):
        own = f"{key}-{number}"
        killed_while_submitting(launcher, own, job, 0.005 * number)
        assert launcher.wait(launcher.submit(own, job), WAIT_S).exit_status == 0
        assert len(cluster.jobs_named(own)) == 1
        assert (tmp_path / "jobs" / own / "runs").read_text() == "x"


def test_a_second_job_with_the_same_script_is_stopped_by_the_fence(
    run: MakeLauncher, job: Job, tmp_path: Path, cluster: SlurmCluster, key: str
) -> None:
    launcher = run("sh", "-c", "printf x >> runs")
    handle = launcher.submit(key, job)
    assert launcher.wait(handle, WAIT_S).exit_status == 0
    folder = tmp_path / "jobs" / key
    second = cluster.call("sbatch", "--parsable", "--output=/dev/null", str(folder / "job.sh")).strip()
    until(lambda: "JobState=FAILED" in cluster.call("scontrol", "show", "job", second))
    assert f"ExitCode={FENCED}:0" in cluster.call("scontrol", "show", "job", second)
    assert (folder / "runs").read_text() == "x"


def test_cancel_ends_a_running_job(run: MakeLauncher, job: Job, tmp_path: Path, key: str) -> None:
    launcher = run("srun", "sleep", "600")
    handle = launcher.submit(key, job)
    until(lambda: launcher.status(handle).state is State.RUNNING)
    status = launcher.cancel(handle)
    assert (status.state, status.cause) == (State.CANCELLED, Cause.CANCELLED)
    assert launcher.submit(handle.key, job) == handle
    assert launcher.status(handle) == status


def test_cancel_ends_a_waiting_job(
    run: MakeLauncher, job: Job, tmp_path: Path, cluster: SlurmCluster, key: str
) -> None:
    for name in ("n1", "n2", "n3", "n4"):
        cluster.set_node(name, "drain")
    try:
        launcher = run("true")
        handle = launcher.submit(key, job)
        assert launcher.status(handle).state is State.QUEUED
        assert launcher.cancel(handle).state is State.CANCELLED
    finally:
        cluster.resume_all()


def test_a_job_cancelled_before_sbatch_is_never_submitted(
    run: MakeLauncher, job: Job, tmp_path: Path, cluster: SlurmCluster, key: str
) -> None:
    launcher = run("true")
    folder = JobFolder.of(tmp_path / "jobs", key)
    folder.make()
    folder.mark_cancelled()
    handle = launcher.submit(key, job)
    assert launcher.status(handle).state is State.CANCELLED
    assert cluster.jobs_named(key) == []
