"""What is not Python is packed too: an installed ASAP has its templates, devices and playbooks."""

import subprocess
import tomllib
from glob import glob
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SETUPTOOLS = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["setuptools"]
ROOMS = ("asap", "service", "graph", "tools", "kb_seed")


def packed(room: str) -> set[str]:
    """The files that the patterns of pyproject.toml take, as setuptools reads them."""
    patterns = SETUPTOOLS["package-data"].get(room, [])
    return {
        f"{room}/{file}"
        for pattern in patterns
        for file in glob(pattern, root_dir=REPO / room, recursive=True)
    }


@pytest.mark.parametrize("room", ROOMS)
def test_every_data_file_of_a_room_is_packed(room: str) -> None:
    if not (REPO / ".git").exists():
        pytest.skip("not a git checkout, so there is no list of the repo's files")
    command = ["git", "-c", "safe.directory=*", "ls-files", room]
    files = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [file for file in files if not file.endswith(".py") and file not in packed(room)] == []


def test_every_package_has_its_marker() -> None:
    """setuptools finds packages by it; a folder without one is left out in silence."""
    folders = {file.parent for room in ROOMS for file in (REPO / room).rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("room", ROOMS)
def test_type_checkers_of_other_projects_see_our_types(room: str) -> None:
    """PEP 561: without the marker they take everything for Any, and complain."""
    assert f"{room}/py.typed" in packed(room)
