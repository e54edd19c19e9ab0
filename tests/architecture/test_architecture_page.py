"""ARCHITECTURE.md is true to the tree: what it names is there, and every part is named."""

import re
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "ARCHITECTURE.md").read_text()
NAMED = [
    path
    for cell in re.findall(r"^\| (`.+?`) \|", PAGE, re.MULTILINE)
    for path in re.findall(r"`([^`]+)`", cell)
]
ORDER = re.findall(r"^```\n(validate .+?)\n```$", PAGE, re.MULTILINE | re.DOTALL)[0]


def parts(folder: str) -> list[str]:
    """The folders with code and the modules directly below this one."""
    found = [one for one in (REPO / folder).iterdir() if not one.name.startswith("_")]
    folders = [f"{folder}/{one.name}/" for one in found if one.is_dir() and any(one.glob("*.py"))]
    return sorted(folders + [f"{folder}/{one.name}" for one in found if one.suffix == ".py"])


def is_part_of_the_client(path: str) -> bool:
    return path.startswith("service/client_")


def test_what_is_named_exists() -> None:
    assert len(NAMED) > 30
    assert [path for path in NAMED if not (REPO / path).exists()] == []


@pytest.mark.parametrize("folder", ["service", "graph", "tools"])
def test_every_part_is_named(folder: str) -> None:
    missing = [part for part in parts(folder) if part not in NAMED]
    assert [part for part in missing if not is_part_of_the_client(part)] == []


def test_the_order_inside_tools_is_the_one_that_is_held() -> None:
    contracts = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    held = next(one["layers"] for one in contracts if one["id"] == "tools")
    assert ORDER.splitlines() == [re.sub(r"\(?tools\.(\w+)\)?", r"\1", line) for line in held]


def test_every_part_of_tools_has_its_place_in_the_order() -> None:
    placed = {f"tools/{name}" for name in re.findall(r"\w+", ORDER)}
    assert [part for part in parts("tools") if part.rstrip("/").removesuffix(".py") not in placed] == []
