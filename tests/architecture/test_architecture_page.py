"""ARCHITECTURE.md is true to the tree: what it names is there, and every part is named."""

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "ARCHITECTURE.md").read_text()
NAMED = [
    path
    for cell in re.findall(r"^\| (`.+?`) \|", PAGE, re.MULTILINE)
    for path in re.findall(r"`([^`]+)`", cell)
]


def parts(folder: str) -> list[str]:
    """The folders with code directly below this one."""
    return sorted(
        f"{folder}/{one.name}/"
        for one in (REPO / folder).iterdir()
        if one.is_dir() and any(one.glob("*.py")) and not one.name.startswith("_")
    )


def test_what_is_named_exists() -> None:
    assert len(NAMED) > 30
    assert [path for path in NAMED if not (REPO / path).exists()] == []


@pytest.mark.parametrize("folder", ["service", "graph", "tools"])
def test_every_part_is_named(folder: str) -> None:
    assert [part for part in parts(folder) if part not in NAMED] == []
