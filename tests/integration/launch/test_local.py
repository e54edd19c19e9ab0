"""Real processes under real supervisors."""

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.integration.launch.waiting import WAIT_S, Run, processes_of, until
from tools.launch.launcher import Job
from tools.launch.status import FailureCause, JobState
from tools.launch.supervisor import LOCK, PROCESS, ProcessIdentity, identify

MakeRun = Callable[..., Run]
COUNTER = "import sys, pathlib; open(pathlib.Path(sys.argv[1]) / 'runs', 'a').write('x')"
# Ignores SIGTERM, and so does a child of it in a session of its own, as torchrun's workers have.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"],
                 start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def counter(run_python: MakeRun) -> Run:
    """A job that counts how often it runs."""
    return run_python(COUNTER)


def runs_of(run: Run) -> str:
    return (run.folder.out / "runs").read_text()


def start(run: Run) -> None:
    run.submit()
    until(lambda: run.folder.log.exists() and "up" in run.folder.log.read_text())


def kill_supervisor(run: Run) -> None:
    supervisor = ProcessIdentity(**json.loads(run.folder.read(PROCESS) or ""))
    os.kill(supervisor.pid, signal.SIGKILL)
    until(lambda: not supervisor.is_alive())


def submit_in_child(run: Run, then: Callable[[], None] = lambda: None) -> int:
    """The process that submits the job."""
    submitter = os.fork()
    if not submitter:
        with suppress(BaseException):
            run.submit()
            then()
        os._exit(0)
    return submitter


def test_a_job_runs_and_leaves_its_output_results_and_exit_status(
    run_python: MakeRun, tmp_path: Path
) -> None:
    run = run_python(
        "import sys, pathlib; print('hello'); pathlib.Path(sys.argv[1], 'a.json').write_text('{}')"
    )
    status = run.finish()
    assert (status.state, status.cause, status.exit_status) == (JobState.SUCCEEDED, FailureCause.EXIT, 0)
    assert status.source == "supervisor"
    assert run.output() == "hello"
    assert run.launcher.artefacts(run.handle, tmp_path / "copy") == [Path("a.json")]
    assert (tmp_path / "copy/a.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("code", "exit_status", "number"),
    [("raise SystemExit(7)", 7, None), ("import os; os.kill(os.getpid(), 9)", None, 9)],
)
def test_a_failed_job_has_the_exit_status_or_signal_of_its_process(
    run_python: MakeRun, code: str, exit_status: int | None, number: int | None
) -> None:
    status = run_python(code).finish()
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.EXIT)
    assert (status.exit_status, status.signal) == (exit_status, number)


def test_many_submitters_at_once_start_one_job(counter: Run) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: counter.submit(), range(4)))) == 1
    counter.finish()
    assert runs_of(counter) == "x"


def test_a_supervisor_that_has_claimed_the_job_is_waited_for(counter: Run) -> None:
    """It has the lock and is about to record itself: a second submitter gets the same job, not an error."""
    folder, own = counter.folder, identify(os.getpid())
    assert own is not None
    folder.make()
    with (folder.path / LOCK).open("w") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        submitted = pool.submit(counter.submit)
        until(lambda: (folder.path / "supervisor.txt").exists())
        time.sleep(1.0)
        folder.write(PROCESS, asdict(own))
        assert submitted.result(WAIT_S).reference.startswith(f"{own.pid}:")


def test_a_job_survives_the_process_that_submitted_it(run_python: MakeRun) -> None:
    run = run_python("import time; time.sleep(1); print('done')")
    submitter = submit_in_child(run, then=lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert os.WTERMSIG(os.waitpid(submitter, 0)[1]) == signal.SIGKILL
    handle = run.handle
    assert not run.launcher.status(handle).has_ended
    assert run.launcher.wait(handle, WAIT_S).exit_status == 0
    assert run.output() == "done"


def test_a_submitter_killed_at_any_moment_neither_loses_nor_doubles_a_job(counter: Run) -> None:
    moments = []  # files that there were when a submitter was killed that had not ended
    for number in range(12):
        run = replace(counter, key=f"k{number}")
        submitter = submit_in_child(run)
        time.sleep(0.03 * number)
        os.kill(submitter, signal.SIGKILL)
        if os.WIFSIGNALED(os.waitpid(submitter, 0)[1]):
            moments.append(sum(1 for _ in run.folder.path.glob("*")))
        assert run.finish().exit_status == 0
        assert runs_of(run) == "x"
    assert sum(map(bool, moments)) > 1, "few were killed between the first file and the last"


def test_a_crash_after_the_intent_is_recovered_by_submitting_again(
    counter: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(folder: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(counter.launcher, "_start_supervisor", die)
        with pytest.raises(KeyboardInterrupt):
            counter.submit()
    assert counter.launcher.find("k1") is None
    counter.finish()
    assert runs_of(counter) == "x"


def test_cancel_ends_every_process_of_a_stubborn_job(run_python: MakeRun) -> None:
    run = run_python(STUBBORN, grace_s=0.5)
    start(run)
    until(lambda: len(processes_of(run.root)) == 2)
    status = run.launcher.cancel(run.handle)
    assert (status.state, status.cause, status.signal) == (
        JobState.CANCELLED,
        FailureCause.CANCELLED,
        signal.SIGKILL,
    )
    assert processes_of(run.root) == []
    assert run.launcher.cancel(run.handle) == status


def test_a_killed_supervisor_leaves_neither_a_process_nor_a_guess(run_python: MakeRun) -> None:
    run = run_python(STUBBORN)
    start(run)
    kill_supervisor(run)
    handle, status = run.handle, run.launcher.status(run.handle)
    assert (status.state, status.cause) == (JobState.LOST, FailureCause.LOST)
    assert (status.exit_status, status.signal) == (None, None)
    assert run.submit() == handle
    assert run.launcher.status(handle) == status


def test_a_job_cancelled_before_it_started_never_starts(counter: Run) -> None:
    counter.folder.make()
    counter.folder.mark_cancelled()
    assert counter.finish().state is JobState.CANCELLED
    assert not (counter.folder.out / "runs").exists()


def test_a_job_sees_only_the_environment_that_its_template_names(
    run_python: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVICE", "x")
    monkeypatch.setenv("WANTED", "inherited")
    run = run_python(
        "import json, os; print(json.dumps(dict(os.environ)))",
        environment={"FIXED": "1"},
        environment_allowed=["CHOSEN"],
        environment_inherited=["WANTED"],
    )
    run.job = Job("test", {}, environment={"CHOSEN": "$(id) ; `id`"})
    run.finish()
    seen = json.loads(run.output())
    assert seen.keys() - {"LC_CTYPE"} == {"FIXED", "CHOSEN", "WANTED", "ASAP_JOB"}
    assert seen["CHOSEN"] == "$(id) ; `id`"
