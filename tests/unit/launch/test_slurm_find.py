"""Which of the controller's answers is the job of a key."""

from pathlib import Path

import pytest

from tools.errors import InputError
from tools.launch.job import Job
from tools.launch.slurm import SlurmLauncher
from tools.launch.template import parse_templates

TABLE = {"name": "t", "launcher": "slurm", "command": ["run"], "limits": {"wall_s": 60}}


def launcher(folder: Path, queue: str) -> SlurmLauncher:
    """With a stand-in for squeue; nothing else of Slurm is there."""
    squeue = folder / "squeue"
    squeue.write_text(f"#!/bin/sh\nprintf '%s' '{queue}'\n")
    squeue.chmod(0o755)
    return SlurmLauncher(folder / "jobs", parse_templates({"template": [TABLE]}), {"PATH": str(folder)})


@pytest.mark.parametrize("queue", ["7|\n", "7|a comment of the site\n", "12|x y\n7|a b\n"])
def test_the_first_job_of_the_keys_name_is_found_whatever_its_comment(tmp_path: Path, queue: str) -> None:
    assert launcher(tmp_path, queue).submit("k1", Job("t", {})).reference == "7"


def test_another_installations_job_of_the_keys_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another job of yours, 7"):
        launcher(tmp_path, "7|asap:k1:0000\n").submit("k1", Job("t", {}))
