"""The environment is read in one place: ruff bans it everywhere else."""

import json
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
READS = """\
import os
from os import environ
from os import getenv as read
home = os.environ["HOME"]
home = os.getenv("HOME")
"""


def banned_lines(filename: str) -> list[int]:
    """The lines of READS that ruff refuses in a file of this name."""
    words = ["--no-cache", "--select", "TID251", "--output-format", "json", "--stdin-filename", filename, "-"]
    command = [sys.executable, "-m", "ruff", "check", *words]
    result = subprocess.run(command, cwd=REPO, input=READS, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stderr
    return sorted(finding["location"]["row"] for finding in json.loads(result.stdout))


def test_reading_the_environment_is_refused_but_in_the_settings() -> None:
    for filename in ("tools/physics/step.py", "graph/build.py", "service/cli/main.py"):
        assert banned_lines(filename) == [2, 3, 4, 5], filename
    assert banned_lines("service/settings.py") == []
