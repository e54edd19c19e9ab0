"""The batch script under a real /bin/sh, and sbatch's options."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.launch.folder import JobFolder
from tools.launch.slurm import FENCED, make_script, sbatch_options
from tools.launch.status import Intent
from tools.launch.template import SlurmSettings

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['CHOSEN'], os.getcwd()]))"
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


def intent(command: list[str], workdir: str, **environment: str) -> Intent:
    return Intent("k1", "slurm", "test", "d" * 64, "k1.mark", command, environment, workdir, 2, 4, 61)


def run_script(script: str, job_id: str = "17") -> subprocess.CompletedProcess[str]:
    """With a stand-in for scontrol, which names the job's hosts."""
    variables = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": job_id, "SLURM_JOB_NODELIST": "n[1-2]"}
    stand_in = "scontrol() { echo n1; echo n2; }\n"
    words = ["/bin/sh", "-c", script.replace("\n", f"\n{stand_in}", 1)]
    return subprocess.run(words, env=variables, capture_output=True, text=True, check=False)


@settings(max_examples=25)
@given(st.lists(texts, max_size=4), texts)
def test_every_word_and_variable_arrives_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, rest: list[str], value: str
) -> None:
    folder = JobFolder(tmp_path_factory.mktemp("it's a $(folder)"))
    command = [sys.executable, "-c", SHOW, *rest]
    result = run_script(make_script(folder, intent(command, str(folder.path), CHOSEN=value)))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [rest, value, str(folder.path)]


def test_the_meeting_point_is_the_first_host_and_a_port_of_the_job(tmp_path: Path) -> None:
    script = make_script(JobFolder(tmp_path), intent(["echo", "{rendezvous}", "{other}"], str(tmp_path)))
    assert run_script(script, "12345").stdout == "n1:22345 {other}\n"


def test_the_exit_status_is_the_commands_and_is_written_down(tmp_path: Path) -> None:
    script = make_script(JobFolder(tmp_path), intent(["sh", "-c", "exit 9"], str(tmp_path)))
    assert run_script(script).returncode == 9
    assert (tmp_path / "exit_status").read_text() == "9"


def test_a_second_job_is_stopped_and_the_same_one_may_start_again(tmp_path: Path) -> None:
    script = make_script(JobFolder(tmp_path), intent(["echo", "ran"], str(tmp_path)))
    assert run_script(script, "17").stdout == "ran\n"
    second = run_script(script, "18")
    assert (second.returncode, second.stdout) == (FENCED, "")
    assert "job 17 runs this trial already" in second.stderr
    assert run_script(script, "17").stdout == "ran\n"


def test_a_missing_folder_to_work_in_is_a_failure(tmp_path: Path) -> None:
    script = make_script(JobFolder(tmp_path), intent(["echo", "ran"], str(tmp_path / "none")))
    result = run_script(script)
    assert result.returncode != 0
    assert result.stdout == ""


def test_options_carry_key_digest_size_and_limit(tmp_path: Path) -> None:
    settings = SlurmSettings(partition="gpu", gres="gpu:h100", memory_mib_per_node=1000, exclusive=True)
    options = sbatch_options(JobFolder(tmp_path / "100%"), intent(["run"], "x"), settings)
    assert "--parsable" in options
    assert "--no-requeue" in options
    assert "--exclusive" in options
    assert "--job-name=asap-k1" in options
    assert f"--comment=asap:k1:{'d' * 16}" in options
    assert "--nodes=2" in options
    assert "--gres=gpu:h100:4" in options
    assert "--partition=gpu" in options
    assert "--mem=1000M" in options
    assert "--time=2" in options, "61 seconds are two of Slurm's minutes"
    assert f"--output={tmp_path}/100%%/log.txt" in options
    assert not any(option.startswith(("--account", "--qos")) for option in options)
