"""The environment is read in one place: ruff's ban, and that it bans what it should."""

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def bans(line: str, filename: str) -> bool:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--select",
        "TID251",
        "--stdin-filename",
        filename,
        "-",
    ]
    result = subprocess.run(command, cwd=REPO, input=line + "\n", capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stderr
    return result.returncode == 1


@pytest.mark.parametrize(
    "line",
    [
        'import os\nhome = os.environ["HOME"]',
        'import os\nhome = os.getenv("HOME")',
        "from os import environ",
        "from os import getenv as read",
    ],
)
@pytest.mark.parametrize("filename", ["tools/cost/step.py", "graph/build.py", "service/cli/main.py"])
def test_reading_the_environment_is_refused(line: str, filename: str) -> None:
    assert bans(line, filename)


def test_settings_may_read_the_environment() -> None:
    assert not bans("from os import environ", "service/settings.py")
