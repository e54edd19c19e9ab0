"""ARCHITECTURE.md is true to the tree: what it names is there, and every part is named."""

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "ARCHITECTURE.md").read_text()
TREE = PAGE.partition("## The tree")[2].partition("\n## ")[0]
NAMED = [
    path
    for cell in re.findall(r"^\| (`.+?`) \|", TREE, re.MULTILINE)
    for path in re.findall(r"`([^`]+)`", cell)
]


def parts(folder: str) -> list[str]:
    """The folders with code and the modules directly below this one."""
    found = [path for path in (REPO / folder).iterdir() if not path.name.startswith("_")]
    folders = [f"{folder}/{path.name}/" for path in found if path.is_dir() and any(path.glob("*.py"))]
    return sorted(folders + [f"{folder}/{path.name}" for path in found if path.suffix == ".py"])


def test_what_is_named_exists() -> None:
    assert len(NAMED) > 30
    assert [path for path in NAMED if not (REPO / path).exists()] == []


@pytest.mark.parametrize("folder", ["service", "graph", "tools"])
def test_every_part_is_named(folder: str) -> None:
    assert [part for part in parts(folder) if part not in NAMED] == []
