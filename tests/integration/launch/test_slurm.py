"""A real Slurm of four nodes on this machine; skipped if it is not installed (`make test-slurm` does)."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launch.slurm_cluster import SlurmCluster
from tests.integration.launch.waiting import Run, until
from tests.integration.trials.conftest import Patient
from tests.unit.launch.builders import REPO, templates
from tools.errors import InputError
from tools.launch.folder import JobFolder
from tools.launch.launcher import Job
from tools.launch.slurm import FENCED
from tools.launch.status import FailureCause, FailureKind, Handle, JobState, LaunchError
from tools.scenario import parse_scenario
from tools.trials.gate import compare
from tools.trials.order import RunLength, TrialOrder
from tools.trials.run import LaunchedTrials

pytestmark = pytest.mark.real
MakeRun = Callable[..., Run]
FORGOTTEN = "999999"
"""An id that no job has."""
COUNTER = ("sh", "-c", "printf x >> runs")


def runs_of(run: Run) -> str:
    return (run.folder.path / "runs").read_text()


def test_a_job_runs_and_slurm_reports_how_it_ended(run_slurm: MakeRun, tmp_path: Path) -> None:
    run = run_slurm("sh", "-c", 'echo "on $(hostname)"; echo result > "$1/result.json"', "sh", "{out}")
    status = run.finish()
    assert (status.state, status.cause, status.exit_status) == (JobState.SUCCEEDED, FailureCause.EXIT, 0)
    assert (status.source, status.detail) == ("scontrol", "COMPLETED")
    assert status.nodes[0].startswith("n")
    assert status.started_unix_s is not None
    assert abs(status.started_unix_s - time.time()) < 3600
    assert run.output().startswith("on n")
    assert run.launcher.artefacts(run.handle, tmp_path / "copy") == [Path("result.json")]


def test_a_key_is_submitted_once_and_the_fence_stops_a_second_job_with_its_script(
    run_slurm: MakeRun, cluster: SlurmCluster
) -> None:
    run = run_slurm(*COUNTER)
    first = run.submit()
    assert run.submit() == run.handle == first
    assert run.finish().exit_status == 0
    assert run.submit() == first
    assert cluster.jobs_named(run.key) == [first.reference]
    with pytest.raises(InputError, match="key"):
        replace(run, job=Job("test", {"other": 1})).submit()
    script = str(run.folder.path / "job.sh")
    second = cluster.call("sbatch", "--parsable", "--output=/dev/null", script).strip()
    until(lambda: "JobState=FAILED" in cluster.call("scontrol", "show", "job", second))
    assert f"ExitCode={FENCED}:0" in cluster.call("scontrol", "show", "job", second)
    assert runs_of(run) == "x"


def killed_while_submitting(run: Run, delay_s: float | None) -> bool:
    """In a process of its own, killed by itself between sbatch and the record, or by us after a while.

    Whether it had not ended before.
    """
    submitter = os.fork()
    if not submitter:
        with suppress(BaseException):
            if delay_s is None:
                write = JobFolder.write
                JobFolder.write = partialmethod(die_at_record, write)  # type: ignore[assignment,method-assign]
            run.submit()
        os._exit(0)
    if delay_s is not None:
        time.sleep(delay_s)
        os.kill(submitter, signal.SIGKILL)
    _, status = os.waitpid(submitter, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def die_at_record(
    folder: JobFolder, write: Callable[..., None], name: str, *rest: object, **options: object
) -> None:
    if name == "slurm.json":
        os.kill(os.getpid(), signal.SIGKILL)
    write(folder, name, *rest, **options)


def test_a_submitter_killed_between_sbatch_and_its_record_launches_nothing_twice(
    run_slurm: MakeRun, cluster: SlurmCluster
) -> None:
    run = run_slurm("sh", "-c", "printf x >> runs; sleep 1")
    assert killed_while_submitting(run, None)
    submitted = cluster.jobs_named(run.key)
    assert len(submitted) == 1
    assert not (run.folder.path / "slurm.json").exists()
    assert run.submit().reference == submitted[0]
    assert run.finish().exit_status == 0
    assert cluster.jobs_named(run.key) == submitted
    assert runs_of(run) == "x"


def test_a_submitter_killed_at_any_moment_neither_loses_nor_doubles_a_job(
    run_slurm: MakeRun, cluster: SlurmCluster
) -> None:
    counter, kills = run_slurm(*COUNTER), 0
    for number in range(10):
        run = replace(counter, key=f"{counter.key}-{number}")
        kills += killed_while_submitting(run, 0.005 * number)
        assert run.finish().exit_status == 0
        assert len(cluster.jobs_named(run.key)) == 1
        assert runs_of(run) == "x"
    assert kills > 2, "most had submitted before they were killed"


def test_cancel_ends_a_running_job(run_slurm: MakeRun) -> None:
    run = run_slurm("srun", "sleep", "600")
    handle = run.start()
    status = run.launcher.cancel(handle)
    assert (status.state, status.cause) == (JobState.CANCELLED, FailureCause.CANCELLED)
    assert run.submit() == handle
    assert run.launcher.status(handle) == status


def test_a_node_that_goes_down_is_reported_as_such(run_slurm: MakeRun, cluster: SlurmCluster) -> None:
    run = run_slurm("srun", "sleep", "600")
    cluster.set_node(run.launcher.status(run.start()).nodes[0], "down")
    try:
        status = run.finish()
    finally:
        cluster.resume_all()
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.NODE_FAILURE)


def test_a_job_over_its_memory_is_recognized_by_slurms_own_lines(run_slurm: MakeRun) -> None:
    """Without control groups Slurm has no state for it: the step daemon writes into the job's output."""
    code = "import time; buffer = bytearray(400_000_000); time.sleep(60)"
    run = run_slurm("srun", sys.executable, "-c", code, slurm={"memory_mib_per_node": 200})
    status = run.finish()
    assert (status.state, status.exit_status) == (JobState.FAILED, 137)
    failure = run.failure()
    assert failure is not None
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert any("exceeded memory limit" in line for line in failure.evidence)


@pytest.mark.slow
def test_two_plans_are_measured_over_two_nodes_and_compared(
    run_slurm: MakeRun, tmp_path: Path, tiny_scenario: dict[str, Any]
) -> None:
    """Whole trials of the reference trainer, through srun and torchrun."""
    command = [
        "srun", sys.executable, "-m", "torch.distributed.run", "--nnodes", "{nnodes}",
        "--nproc-per-node", "{nproc}", "--rdzv-backend", "c10d", "--rdzv-id", "{key}",
        "--rdzv-endpoint", "{rendezvous}", "-m", "testbed.trainer", "{scenario}", "--steps", "{steps}",
        "--warmup", "{warmup}", "--out", "{out}",
    ]  # fmt: skip
    fields = {"workdir": str(REPO), "environment": {"OMP_NUM_THREADS": "1"}}
    run = run_slurm(*command, **fields)
    limits = {"wall_s": 600, "devices": 16, "nodes": 4}
    trials = LaunchedTrials(
        lambda name: run.launcher,
        templates("slurm", **{"command": command, "limits": limits, **fields}),
        "test",
        tmp_path / "results",
        RunLength(steps=6, warmup=1, profile_steps=0),
        max_runs=1,
    )
    scenario = parse_scenario(tiny_scenario)
    assert scenario.plan is not None
    plans = (scenario.plan, scenario.plan.model_copy(update={"dp_shard": 1, "zero_stage": 0}))
    outcomes = [
        trials.run(TrialOrder(f"{run.key}-{number}", scenario, plan, device_hours=1.0), Patient())
        for number, plan in enumerate(plans)
    ]
    assert [outcome.status for outcome in outcomes] == ["measured", "measured"], outcomes
    assert len(outcomes[0].nodes) == 2
    assert outcomes[0].device_hours >= 0
    comparison = compare(*outcomes)
    assert all(refusal.entry == "nodes" for refusal in comparison.refusals), comparison


def test_every_word_and_variable_arrives_unchanged(run_slurm: MakeRun) -> None:
    nasty = ["a b", "$(touch pwned)", "`id`", "'", '"', "\\", "; exit 9", "*", "~", "é\n-", "--", "{}"]
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    fields = {"environment": {"FIXED": "$HOME 'x'"}, "environment_allowed": ["CHOSEN"]}
    run = run_slurm("srun", sys.executable, "-c", code, *nasty, **fields)
    run.job = Job("test", {}, environment={"CHOSEN": nasty[1]})
    assert run.finish().exit_status == 0
    words, environment = json.loads(run.output())
    assert words == nasty
    assert (environment["FIXED"], environment["CHOSEN"]) == ("$HOME 'x'", nasty[1])
    names = {name for name in environment if not name.startswith(("SLURM", "SRUN", "ASAP"))}
    assert names <= {"FIXED", "CHOSEN", "PATH", "PWD", "LC_ALL", "LC_CTYPE", "HOSTNAME", "ENVIRONMENT",
                     "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TMPDIR",
                     "OLDPWD", "SHLVL", "_", "HOME", "USER", "SHELL", "LOGNAME"}  # fmt: skip


def test_a_job_cancelled_before_sbatch_is_never_submitted(run_slurm: MakeRun, cluster: SlurmCluster) -> None:
    run = run_slurm("true")
    run.folder.make()
    run.folder.mark_cancelled()
    assert run.finish().state is JobState.CANCELLED
    assert cluster.jobs_named(run.key) == []


def test_a_refusal_of_sbatch_is_an_error_in_its_own_words(run_slurm: MakeRun, cluster: SlurmCluster) -> None:
    run = run_slurm("true", slurm={"partition": "no-such-partition"})
    with pytest.raises(LaunchError, match="invalid partition"):
        run.submit()
    assert run.launcher.find(run.key) is None
    assert cluster.jobs_named(run.key) == []


def test_a_forgotten_job_is_known_by_its_scripts_mark_or_lost(run_slurm: MakeRun) -> None:
    run = run_slurm("sh", "-c", "exit 3")
    handle = run.submit()
    until((run.folder.path / "exit_status").exists)
    (run.folder.path / "claim").write_text(FORGOTTEN)
    status = run.launcher.status(handle)
    assert (status.state, status.exit_status, status.source) == (JobState.FAILED, 3, "job script")
    for name in ("exit_status", "final.json"):
        (run.folder.path / name).unlink()
    status = run.launcher.status(Handle("slurm", run.key, FORGOTTEN))
    assert (status.state, status.exit_status) == (JobState.LOST, None)


@pytest.mark.slow
def test_a_job_is_ended_at_its_wall_limit(run_slurm: MakeRun) -> None:
    """Slurm counts minutes, and looks at the clock now and then."""
    run = run_slurm("srun", "sleep", "600")
    run.job = Job("test", {}, wall_s=5)
    status = run.finish(240)
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.WALL_LIMIT)
    assert status.detail.startswith("TIMEOUT")
