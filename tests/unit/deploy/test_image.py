"""The Dockerfile, judged without an engine."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
LINES = (REPO / "Dockerfile").read_text().splitlines()


def last(instruction: str, after: str) -> str:
    """Of the stage that starts with this line."""
    stage = LINES[LINES.index(after) + 1 :]
    return next(line for line in stage if line.startswith(instruction))


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("needs the development packages")
    result = subprocess.run([hadolint, "--no-color", REPO / "Dockerfile"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


def test_nothing_runs_as_root() -> None:
    users = [line.split()[1] for line in LINES if line.startswith("USER")]
    assert users[-1] == "10001"
    assert last("USER", "FROM python:3.11-slim-bookworm AS runtime") == "USER 10001"


def test_what_is_built_without_a_target_is_the_service_with_its_health_check() -> None:
    stages = [line for line in LINES if line.startswith("FROM")]
    assert stages[-1] == "FROM runtime AS service"
    assert last("HEALTHCHECK", stages[-1])


def test_what_is_copied_is_sent_to_the_engine() -> None:
    sent = {
        line[1:].rstrip("/")
        for line in (REPO / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        word
        for line in LINES
        if line.startswith("COPY") and "--from" not in line
        for word in line.split()[1:-1]
    }
    assert copied == sent
    assert all((REPO / name).exists() for name in copied)


def test_what_the_image_leaves_out_of_packages_is_not_imported() -> None:
    used = re.compile(r"^\s*(?:from|import) (scipy\S*|plotly\S*|kubernetes\.aio\S*)", re.MULTILINE)
    folders = ("service", "graph", "tools", "asap_client")
    files = (file for folder in folders for file in (REPO / folder).rglob("*.py"))
    assert {name for file in files for name in used.findall(file.read_text())} == {"scipy.special"}
