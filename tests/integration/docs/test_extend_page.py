"""docs/extend.md is followed: each change is made in a copy of the repo, by the blocks as shown, and used."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.integration.docs.pages import fenced_blocks

REPO = Path(__file__).resolve().parents[3]
PAGE = (REPO / "docs/extend.md").read_text()
WHERE = re.compile(
    r'# (?P<file>\S+), (?:(?P<how>at the end|new)|(?P<beside>after|before|in place of) "(?P<line>.+)")'
)
USES = """
from graph.build import build
from graph.context import Context
from graph.events import Warned, parse_event
from graph.tools import ANALYZER_TOOLS, Toolbox
from service.schedules.config import Recipients
from service.schedules.deliver import ReportSender
from service.settings import Settings
from tests.unit.service.served import SCENARIO
from tools.kb import open_seed
from tools.nightly.result import NightReport
from tools.scenario import parse_scenario

def test_an_endpoint(served):
    assert round(served.client.get("/v1/hardware/h100-sxm-80gb/memory").json()) == 79

def test_a_page(served):
    answer = served.client.get("/hardware/largest/memory", headers={"Accept": "text/html"})
    assert answer.status_code == 200 and "<h1>" in answer.text

def test_an_event():
    assert parse_event("warned", Warned(subject="rank 3").content).line == "warned: look at rank 3"

def test_an_agents_tool():
    assert "device_memory" in ANALYZER_TOOLS
    assert Toolbox(Context(open_seed()), parse_scenario(SCENARIO)).device_memory()["memory_gib"] > 70

def test_a_node():
    assert "greet" in build().compile().nodes

def test_a_delivery(tmp_path):
    lost = {"lost_device_hours_per_day": 0, "gained_device_hours_per_day": 0, "workloads": []}
    night = NightReport(asap="0", run_id=None, title="", at=0, made_at=0, outcome="quiet", summary="", **lost)
    file = tmp_path / "outcomes"
    sent = ReportSender(Settings(), "run").send(night, Recipients(files=[str(file)]))
    assert [(one.kind, one.ok) for one in sent] == [("file", True)]
    assert file.read_text().strip() == "quiet"
"""
FILES = {
    "An endpoint": 1, "A page": 2, "An event": 1, "An agent's tool": 1, "A node": 2, "A delivery": 2,
}  # fmt: skip
"""How many each touches, by the blocks that are shown."""


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def apply(block: str, root: Path) -> str:
    """Makes the change that a block shows; the file that it touched."""
    first, _, text = block.partition("\n")
    place = WHERE.fullmatch(first)
    assert place, f"the first line says where the block goes: {first}"
    file = root / place["file"]
    if place["how"] == "new":
        assert not file.exists()
        file.write_text(text + "\n")
        return place["file"]
    before = file.read_text()
    if place["how"]:
        file.write_text(f"{before}\n\n{text}\n")
        return place["file"]
    lines = before.splitlines()
    [number] = [number for number, line in enumerate(lines) if line.startswith(place["line"])]
    if place["beside"] == "before":
        lines[number:number] = [*text.splitlines(), "", ""]
    elif place["beside"] == "in place of":
        lines[number : number + 1] = text.splitlines()
    else:  # behind the docstring of a class, or behind a line
        end = number + 1
        while lines[number].startswith("class") and not re.match(r"    \w", lines[end]):
            end += 1
        lines[end:end] = (
            text.splitlines() if lines[number].startswith("class") else ["", "", *text.splitlines()]
        )
    file.write_text("\n".join(lines) + "\n")
    return place["file"]


def test_what_the_page_adds_works_and_touches_as_few_files_as_it_says(tmp_path: Path) -> None:
    for room in ("service", "graph", "tools", "kb_seed", "asap_client", "tests"):
        shutil.copytree(REPO / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__", "museum"))
    shutil.copy(REPO / "pyproject.toml", tmp_path)
    for name, files in FILES.items():
        shown = fenced_blocks(sections()[name])
        touched = {apply(block.text, tmp_path) for block in shown if block.kind in ("py", "jinja")}
        assert len(touched) == files, f"{name}: {touched}"
    used = tmp_path / "tests/unit/service/test_followed.py"
    used.write_text(USES)
    program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(used)]
    result = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:]
    assert f"{len(FILES)} passed" in result.stdout
