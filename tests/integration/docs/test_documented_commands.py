"""Every command of the documentation is run, each page in a folder of its own with a server of its own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.docs.pages import blocks, fenced_blocks, pages, script
from tests.servers import free_port

REPO = Path(__file__).resolve().parents[3]
LINKED = ("benchmarks", "examples", "runs", "service", "langgraph.json", "pyproject.toml")
MAX_S = 600
MAX_LEFT_OUT = 12
MIN_PAGES, MIN_LINKS = 10, 50
SLOW = {"SKILL", "extend", "nightly", "operations", "trials", "tutorial-nightly", "tutorial-web"}
"""Pages whose commands take longest; `make test-all` runs them."""
WITH_COMMANDS = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in SLOW else [])
    for page in pages(REPO)
    if any(block.reason is None for block in blocks(page.read_text()))
]


def place(folder: Path) -> Path:
    """A checkout as far as commands see it; what they write stays here."""
    for name in LINKED:
        (folder / name).symlink_to(REPO / name)
    (folder / ".venv").symlink_to(Path(sys.executable).parent.parent)
    return folder


def environment(port: int) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ASAP_")}
    return {
        **plain,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPO),
        "ASAP_SERVER": f"http://127.0.0.1:{port}",
        "ASAP_EMBEDDING": "none",
        "ASAP_COMPUTE_PROCESSES": "0",
        "COLUMNS": "100",
    }


@pytest.mark.real
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    port = free_port()
    done = subprocess.run(
        ["bash", "-c", script(page.read_text(), port)],
        cwd=place(tmp_path), env=environment(port), capture_output=True, text=True, timeout=MAX_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


def test_what_is_not_run_says_why_and_is_rare() -> None:
    left_out = [block for page in pages(REPO) for block in fenced_blocks(page.read_text()) if block.reason]
    assert len(WITH_COMMANDS) >= MIN_PAGES, "pages of which nothing is run are not found"
    assert len(left_out) <= MAX_LEFT_OUT
    assert all(len(block.reason or "") > 10 for block in left_out)


def headings(page: Path) -> set[str]:
    """As GitHub makes anchors of them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def leads_somewhere(page: Path, file: str, anchor: str) -> bool:
    target = page.parent / file if file else page
    return target.exists() and (not anchor or anchor in headings(target))


def test_every_link_of_a_page_leads_somewhere() -> None:
    link = re.compile(r"\]\((?!https?://|mailto:)([^)#]*)#?([^)]*)\)")
    links = [
        (page, file, anchor)
        for page in [*pages(REPO), REPO / "ARCHITECTURE.md", REPO / "CHANGELOG.md"]
        for file, anchor in link.findall(page.read_text())
    ]
    assert len(links) >= MIN_LINKS
    assert [(page.name, *place) for page, *place in links if not leads_somewhere(page, *place)] == []


def test_a_command_that_fails_is_found(tmp_path: Path) -> None:
    text = "```sh\ntrue\n```\n\n```sh\nasap predict absent.json\n```\n"
    done = subprocess.run(
        ["bash", "-c", script(text, 1)], cwd=tmp_path, env=environment(1), capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "the block at line 5 failed: asap predict absent.json" in done.stderr


def test_output_that_does_not_come_is_found(tmp_path: Path) -> None:
    right = "```console\n$ echo one two\none ...\n```\n"
    wrong = right.replace("one ...", "three")
    statuses = [
        subprocess.run(["bash", "-c", script(text, 1)], cwd=tmp_path, capture_output=True).returncode
        for text in (right, wrong)
    ]
    assert statuses[0] == 0
    assert statuses[1] != 0
