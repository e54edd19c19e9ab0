"""Real processes under real supervisors."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.integration.launch.waiting import WAIT_S, until
from tools.errors import InputError
from tools.launch import local
from tools.launch.folder import JobFolder
from tools.launch.job import Job
from tools.launch.local import LocalLauncher
from tools.launch.processes import ProcessIdentity, find_marked, identify
from tools.launch.status import Cause, LaunchError, State
from tools.launch.supervisor import LOCK, PROCESS

MakeLauncher = Callable[..., LocalLauncher]
REPO = Path(__file__).resolve().parents[3]
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
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


def supervisor_of(root: Path, key: str) -> ProcessIdentity:
    content = JobFolder.of(root, key).read("process.json")
    assert content is not None
    return ProcessIdentity(**json.loads(content))


def is_up(folder: Path) -> bool:
    log = folder / "log.txt"
    return log.exists() and "up" in log.read_text()


def test_a_job_runs_and_leaves_its_output_results_and_exit_status(
    run_python: MakeLauncher, job: Job, tmp_path: Path
) -> None:
    code = "import sys, pathlib; print('hello'); pathlib.Path(sys.argv[1], 'result.json').write_text('{}')"
    launcher = run_python(code)
    handle = launcher.submit("k1", job)
    status = launcher.wait(handle, WAIT_S)
    assert (status.state, status.cause, status.exit_status) == (State.SUCCEEDED, Cause.EXIT, 0)
    assert status.source == "supervisor"
    assert [chunk.text for chunk in launcher.logs(handle)] == ["hello\n"]
    assert launcher.artefacts(handle, tmp_path / "copy") == [Path("result.json")]
    assert (tmp_path / "copy/result.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("code", "exit_status", "number"),
    [("raise SystemExit(7)", 7, None), ("import os; os.kill(os.getpid(), 9)", None, 9)],
)
def test_a_failed_job_has_the_exit_status_or_signal_of_its_process(
    run_python: MakeLauncher, job: Job, code: str, exit_status: int | None, number: int | None
) -> None:
    launcher = run_python(code)
    status = launcher.wait(launcher.submit("k1", job), WAIT_S)
    assert (status.state, status.cause) == (State.FAILED, Cause.EXIT)
    assert (status.exit_status, status.signal) == (exit_status, number)


def test_a_program_that_is_not_there_is_a_failure_to_start(
    run_python: MakeLauncher, job: Job, tmp_path: Path
) -> None:
    launcher = run_python("", command=["no-such-program-of-this-test", "{out}"])
    status = launcher.wait(launcher.submit("k1", job), WAIT_S)
    assert (status.state, status.cause, status.exit_status) == (State.FAILED, Cause.START_FAILURE, None)
    assert "no-such-program-of-this-test" in status.detail


def test_the_same_key_and_job_run_once(run_python: MakeLauncher, job: Job, tmp_path: Path) -> None:
    launcher = run_python(COUNTER)
    first = launcher.submit("k1", job)
    assert launcher.submit("k1", job) == first
    launcher.wait(first, WAIT_S)
    assert launcher.submit("k1", job) == first
    assert launcher.find("k1") == first
    assert (tmp_path / "jobs/k1/out/runs").read_text() == "x"


def test_another_job_under_a_used_key_is_refused(run_python: MakeLauncher, job: Job) -> None:
    launcher = run_python(COUNTER)
    launcher.wait(launcher.submit("k1", job), WAIT_S)
    with pytest.raises(InputError, match="key"):
        launcher.submit("k1", Job("test", {"model": {"other": 1}}))


def test_many_submitters_at_once_start_one_job(run_python: MakeLauncher, job: Job, tmp_path: Path) -> None:
    launcher = run_python(COUNTER)
    with ThreadPoolExecutor(4) as pool:
        handles = set(pool.map(lambda _: launcher.submit("k1", job), range(4)))
    assert len(handles) == 1
    launcher.wait(handles.pop(), WAIT_S)
    assert (tmp_path / "jobs/k1/out/runs").read_text() == "x"


def test_a_supervisor_that_has_claimed_the_job_is_waited_for(
    run_python: MakeLauncher, job: Job, tmp_path: Path
) -> None:
    """It has the lock and is about to say who it is: a second submitter gets the same job, not an error."""
    launcher, own = run_python(COUNTER), identify(os.getpid())
    assert own is not None
    folder = JobFolder.of(tmp_path / "jobs", "k1")
    folder.make()
    with (folder.path / LOCK).open("w") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        submitted = pool.submit(launcher.submit, "k1", job)
        until(lambda: (folder.path / "supervisor.txt").exists())
        time.sleep(1.0)
        folder.write(PROCESS, asdict(own))
        assert submitted.result(WAIT_S).reference.startswith(f"{own.pid}:")


def test_a_supervisor_that_fails_says_why(run_python: MakeLauncher, job: Job, tmp_path: Path) -> None:
    launcher = run_python(COUNTER)
    folder = JobFolder.of(tmp_path / "jobs", "k1")
    folder.make()
    (folder.path / LOCK).mkdir()
    with pytest.raises(LaunchError, match="left no record"):
        launcher.submit("k1", job)
    assert "IsADirectoryError" in (folder.path / "supervisor.txt").read_text()


def test_a_supervisor_that_does_not_start_in_time_is_told(
    run_python: MakeLauncher, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = run_python(COUNTER)
    with monkeypatch.context() as patch:
        patch.setattr(local, "_START_S", 0.01)
        with pytest.raises(LaunchError, match="did not start within"):
            launcher.submit("k1", job)
    assert launcher.wait(launcher.submit("k1", job), WAIT_S).exit_status == 0


def test_a_job_survives_the_process_that_submitted_it(
    run_python: MakeLauncher, job: Job, tmp_path: Path
) -> None:
    launcher = run_python("import time; time.sleep(1); print('done')")
    script = (
        "import os, signal, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]);"
        "from tools.launch.local import LocalLauncher; from tools.launch.job import Job;"
        "from tools.launch.template import parse_templates; import json;"
        "templates = parse_templates(json.loads(sys.argv[3]));"
        "LocalLauncher(Path(sys.argv[2]), templates, {}).submit('k1', Job('test', {'model': {}}));"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    template = {
        "name": "test",
        "launcher": "local",
        "command": [sys.executable, "-c", "import time; time.sleep(1); print('done')"],
        "limits": {"wall_s": 60},
    }
    tables = json.dumps({"template": [template]})
    words = [sys.executable, "-c", script, str(REPO), str(tmp_path / "jobs"), tables]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    handle = launcher.find("k1")
    assert handle is not None
    assert not launcher.status(handle).has_ended
    assert launcher.wait(handle, WAIT_S).exit_status == 0
    assert [chunk.text for chunk in launcher.logs(handle)] == ["done\n"]


def test_a_submitter_killed_at_any_moment_neither_loses_nor_doubles_a_job(
    run_python: MakeLauncher, job: Job, tmp_path: Path
) -> None:
    launcher = run_python(COUNTER)
    for number in range(12):
        key = f"k{number}"
        submitter = os.fork()
        if not submitter:
            with suppress(BaseException):
                launcher.submit(key, job)
            os._exit(0)
        time.sleep(0.03 * number)
        os.kill(submitter, signal.SIGKILL)
        os.waitpid(submitter, 0)
        status = launcher.wait(launcher.submit(key, job), WAIT_S)
        assert status.exit_status == 0
        assert (tmp_path / f"jobs/{key}/out/runs").read_text() == "x"


def test_a_crash_after_the_intent_is_made_good_by_submitting_again(
    run_python: MakeLauncher, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = run_python(COUNTER)

    def die(folder: JobFolder) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(launcher, "_start_supervisor", die)
        with pytest.raises(KeyboardInterrupt):
            launcher.submit("k1", job)
    assert launcher.find("k1") is None
    launcher.wait(launcher.submit("k1", job), WAIT_S)
    assert (tmp_path / "jobs/k1/out/runs").read_text() == "x"


def test_cancel_ends_every_process_of_a_stubborn_job(
    run_python: MakeLauncher, job: Job, tmp_path: Path
) -> None:
    launcher = run_python(STUBBORN, grace_s=0.5)
    handle = launcher.submit("k1", job)
    until(lambda: is_up(tmp_path / "jobs/k1"))
    intent = JobFolder.of(tmp_path / "jobs", "k1").find_intent()
    assert intent is not None
    until(lambda: len(list(find_marked(intent.mark))) == 2)
    status = launcher.cancel(handle)
    assert (status.state, status.cause, status.signal) == (State.CANCELLED, Cause.CANCELLED, signal.SIGKILL)
    assert list(find_marked(intent.mark)) == []
    assert launcher.cancel(handle) == status


def test_a_job_that_ends_leaves_no_process_behind(run_python: MakeLauncher, job: Job, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; "
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
    )
    launcher = run_python(code)
    assert launcher.wait(launcher.submit("k1", job), WAIT_S).exit_status == 0
    intent = JobFolder.of(tmp_path / "jobs", "k1").find_intent()
    assert intent is not None
    assert list(find_marked(intent.mark)) == []


def test_a_job_is_ended_at_its_wall_limit(run_python: MakeLauncher, job: Job) -> None:
    launcher = run_python(SLEEPER, wall_s=1)
    status = launcher.wait(launcher.submit("k1", job), WAIT_S)
    assert (status.state, status.cause, status.signal) == (State.FAILED, Cause.WALL_LIMIT, signal.SIGTERM)


def test_a_killed_supervisor_leaves_neither_a_process_nor_a_guess(
    run_python: MakeLauncher, job: Job, tmp_path: Path
) -> None:
    launcher = run_python(STUBBORN)
    handle = launcher.submit("k1", job)
    until(lambda: is_up(tmp_path / "jobs/k1"))
    supervisor = supervisor_of(tmp_path / "jobs", "k1")
    os.kill(supervisor.pid, signal.SIGKILL)
    until(lambda: not supervisor.is_alive())
    status = launcher.status(handle)
    assert (status.state, status.cause) == (State.LOST, Cause.LOST)
    assert (status.exit_status, status.signal) == (None, None)
    assert launcher.submit("k1", job) == handle
    assert launcher.status(handle) == status


def test_a_record_of_an_earlier_boot_is_not_taken_for_a_running_job(
    run_python: MakeLauncher, job: Job, tmp_path: Path
) -> None:
    launcher = run_python(SLEEPER)
    handle = launcher.submit("k1", job)
    os.kill(supervisor_of(tmp_path / "jobs", "k1").pid, signal.SIGKILL)
    alive = identify(os.getpid())
    assert alive is not None
    record = tmp_path / "jobs/k1/process.json"
    record.write_text(json.dumps(asdict(alive) | {"boot_id": "another"}))
    assert launcher.status(handle).state is State.LOST


def test_a_job_cancelled_before_it_started_never_starts(
    run_python: MakeLauncher, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = run_python(COUNTER)
    with monkeypatch.context() as patch:
        patch.setattr(launcher, "_start_supervisor", lambda folder: None)
        with pytest.raises(Exception, match="left no record"):
            launcher.submit("k1", job)
    JobFolder.of(tmp_path / "jobs", "k1").mark_cancelled()
    handle = launcher.submit("k1", job)
    assert launcher.status(handle).state is State.CANCELLED
    assert not (tmp_path / "jobs/k1/out/runs").exists()


def test_a_job_sees_only_the_environment_that_its_template_names(
    run_python: MakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVICE", "x")
    monkeypatch.setenv("WANTED", "inherited")
    launcher = run_python(
        "import os; print(sorted(os.environ.items()))",
        environment={"FIXED": "1"},
        environment_allowed=["CHOSEN"],
        environment_inherited=["WANTED"],
    )
    job = Job("test", {}, environment={"CHOSEN": "$(id) ; `id`"})
    handle = launcher.submit("k1", job)
    launcher.wait(handle, WAIT_S)
    seen = eval("".join(chunk.text for chunk in launcher.logs(handle)))
    names = {name for name, _ in seen} - {"LC_CTYPE"}
    assert names == {"FIXED", "CHOSEN", "WANTED", "ASAP_JOB"}
    assert dict(seen)["CHOSEN"] == "$(id) ; `id`"


def test_logs_stream_while_the_job_runs_and_go_on_from_an_offset(
    run_python: MakeLauncher, job: Job, tmp_path: Path
) -> None:
    code = (
        "import sys, time, pathlib; print('first', flush=True); go = pathlib.Path(sys.argv[1], 'go')\n"
        "while not go.exists(): time.sleep(0.05)\n"
        "print('second')"
    )
    launcher = run_python(code)
    handle = launcher.submit("k1", job)
    stream = launcher.logs(handle)
    first = next(stream)
    assert first.text == "first\n"
    assert not launcher.status(handle).has_ended
    (tmp_path / "jobs/k1/out/go").touch()
    assert [chunk.text for chunk in stream] == ["second\n"]
    assert [chunk.text for chunk in launcher.logs(handle, first.next_offset)] == ["second\n"]
