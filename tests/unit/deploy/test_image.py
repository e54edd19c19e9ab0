"""The Dockerfile, judged without an engine."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.lock import UNUSED

REPO = Path(__file__).resolve().parents[3]
WITHOUT = """
import sys
from pathlib import Path
for name in sys.argv[2:]:
    sys.modules[name] = None
import graph.agents, langchain_openai, service.server, service.mcp, service.web, service.schedules.night
import service.jobs.worker, opentelemetry.sdk.trace, tokenizers, langsmith
from tools.kb import open_folder
print("found" if open_folder(Path(sys.argv[1]), None).search("the pipeline bubble", limit=1) else "nothing")
for name in sys.argv[2:]:
    try:
        __import__(name)
    except ModuleNotFoundError:
        print(name)
"""
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


def test_the_service_does_without_what_its_lock_leaves_out(tmp_path: Path) -> None:
    """In a process in which these packages cannot be imported; the last line proves that."""
    names = [name.replace("-", "_") for name in UNUSED]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path), *names],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["found", *names], done.stderr[-2000:]
