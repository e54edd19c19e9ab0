"""The batch script under a real /bin/sh, sbatch's options, and which of squeue's jobs belongs to a key."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.launch.builders import make_intent, templates
from tools.errors import InputError
from tools.launch.folder import JobFolder
from tools.launch.launcher import Job
from tools.launch.slurm import FENCED, SlurmLauncher, make_script, sbatch_options
from tools.launch.status import JobState, LaunchError
from tools.launch.template import SlurmSettings

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['CHOSEN'], os.getcwd()]))"
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


def run_script(
    folder: Path, *command: str, job_id: str = "17", workdir: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """With a stand-in for scontrol, which names the job's hosts."""
    intent = make_intent(*command, workdir=str(workdir or folder), environment=environment)
    script = make_script(JobFolder(folder), intent)
    variables = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": job_id, "SLURM_JOB_NODELIST": "n[1-2]"}
    words = ["/bin/sh", "-c", script.replace("\n", "\nscontrol() { echo n1; echo n2; }\n", 1)]
    return subprocess.run(words, env=variables, capture_output=True, text=True, check=False)


@settings(max_examples=25)
@given(st.lists(texts, max_size=4), texts)
def test_every_word_and_variable_arrives_unchanged(
    tmp_path_factory: pytest.TempPathFactory, rest: list[str], value: str
) -> None:
    folder = tmp_path_factory.mktemp("it's a $(folder)")
    result = run_script(folder, sys.executable, "-c", SHOW, *rest, CHOSEN=value)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [rest, value, str(folder)]


def test_the_meeting_point_is_the_first_host_and_a_port_of_the_job(tmp_path: Path) -> None:
    result = run_script(tmp_path, "echo", "{rendezvous}", "{other}", job_id="12345")
    assert result.stdout == "n1:22345 {other}\n"


def test_the_exit_status_is_the_commands_and_a_missing_working_directory_is_a_failure(tmp_path: Path) -> None:
    assert run_script(tmp_path, "sh", "-c", "exit 9").returncode == 9
    assert (tmp_path / "exit_status").read_text() == "9"
    result = run_script(tmp_path, "echo", "ran", workdir=tmp_path / "none")
    assert result.returncode != 0
    assert result.stdout == ""


def test_a_second_job_is_stopped_and_the_same_one_may_start_again(tmp_path: Path) -> None:
    assert run_script(tmp_path, "echo", "ran").stdout == "ran\n"
    second = run_script(tmp_path, "echo", "ran", job_id="18")
    assert (second.returncode, second.stdout) == (FENCED, "")
    assert "job 17 runs this trial already" in second.stderr
    assert run_script(tmp_path, "echo", "ran").stdout == "ran\n"


def test_options_carry_key_digest_size_and_limit(tmp_path: Path) -> None:
    chosen = SlurmSettings(partition="gpu", gres="gpu:h100", memory_mib_per_node=1000, exclusive=True)
    options = sbatch_options(JobFolder(tmp_path / "100%"), make_intent(wall_s=61), chosen)
    expected = ["--parsable", "--no-requeue", "--exclusive", "--job-name=asap-k1", "--nodes=2"]
    expected += ["--gres=gpu:h100:4", "--partition=gpu", "--mem=1000M", f"--comment=asap:k1:{'d' * 16}"]
    expected += ["--time=2", f"--output={tmp_path}/100%%/log.txt"]  # 61 seconds are two of Slurm's minutes
    assert set(expected) <= set(options)
    assert not any(option.startswith(("--account", "--qos")) for option in options)


def launcher(folder: Path, **commands: str) -> SlurmLauncher:
    """With stand-ins for Slurm's commands, as lines of shell; nothing else of Slurm is there."""
    for name, script in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return SlurmLauncher(folder / "jobs", templates("slurm"), {"PATH": str(folder)})


@pytest.mark.parametrize("queue", ["7|\n", "7|a comment of the site\n", "12|x y\n7|a b\n"])
def test_the_first_job_of_the_keys_name_is_found_whatever_its_comment(tmp_path: Path, queue: str) -> None:
    found = launcher(tmp_path, squeue=f"printf '%s' '{queue}'").submit("k1", Job("test", {}))
    assert found.reference == "7"


def test_another_installations_job_of_the_keys_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another job of yours, 7"):
        launcher(tmp_path, squeue="echo '7|asap:k1:0000'").submit("k1", Job("test", {}))


def test_a_refusal_of_sbatch_is_an_error_in_its_own_words(tmp_path: Path) -> None:
    refusing = launcher(tmp_path, squeue="", sacct="", sbatch="echo 'invalid partition' >&2; exit 1")
    with pytest.raises(LaunchError, match="sbatch failed: invalid partition"):
        refusing.submit("k1", Job("test", {}))


def test_a_job_that_the_controller_forgot_is_found_by_sacct_or_known_by_its_scripts_mark(
    tmp_path: Path,
) -> None:
    ended = 'case "$*" in *JobIDRaw*) echo "7|" ;; *) echo "FAILED|3:0|NonZeroExitCode|n1|1|2" ;; esac'
    forgets = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    accounted = launcher(tmp_path, squeue="", sacct=ended, scontrol=forgets)
    handle = accounted.submit("k1", Job("test", {}))
    assert handle.reference == "7", "nothing is launched again"
    assert (accounted.status(handle).exit_status, accounted.status(handle).source) == (3, "sacct")
    plain, folder = launcher(tmp_path, sacct="exit 1"), JobFolder.of(tmp_path / "jobs", "k1")
    for mark, state in (("5", JobState.FAILED), ("", JobState.LOST)):
        (folder.path / "final.json").unlink()
        (folder.path / "exit_status").write_text(mark)
        assert plain.status(handle).state is state
