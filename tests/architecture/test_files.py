"""What holds for every file of the repo, whatever it contains."""

import re
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]

# Written in pieces, so that this file does not hold what it looks for.
FOLDERS = ["work", "tmp", "root", "opt", "home"]
MACHINE_PATH = re.compile(r"(?<![\w.~/*-])/(?:" + "|".join(FOLDERS) + r")(?![\w-])")
REGISTRY = re.compile(
    "|".join([r"\bindex" + "-url", r"python" + r"hosted\.org", r"/simple" + "/", "file:" + "///"])
)


def repo_files() -> list[Path]:
    """Everything that is or would be committed."""
    listed = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    command = ["git", "-c", "safe.directory=*", *listed]
    listing = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout
    files = [REPO / name for name in listing.split("\0") if name]
    return [file for file in files if file.is_file()]


def places(pattern: re.Pattern[str]) -> list[str]:
    texts = {file: file.read_text(encoding="utf-8", errors="replace") for file in repo_files()}
    return [
        f"{file.relative_to(REPO)}:{number}: {line.strip()[:100]}"
        for file, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


@pytest.fixture(autouse=True)
def _needs_git() -> None:
    if not (REPO / ".git").exists():
        pytest.skip("not a git checkout, so there is no list of the repo's files")


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY], ids=["machine path", "package registry"])
def test_no_file_names_a_path_of_one_machine_or_a_package_registry(pattern: re.Pattern[str]) -> None:
    assert places(pattern) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_machine_path_would_be_found(folder: str) -> None:
    for text in (f"cd /{folder}/x", f'open("/{folder}/x")', f"DIR=/{folder}", f"`/{folder}/x`"):
        assert MACHINE_PATH.search(text)


@pytest.mark.parametrize(
    "text", ["https://example.org/opt/in", "a/work/b", "../tmp/x", "/optimizer/state", "tmp/x"]
)
def test_what_only_resembles_a_machine_path_is_left_alone(text: str) -> None:
    assert not MACHINE_PATH.search(text)


def test_there_is_no_package_marker_under_tests() -> None:
    markers = [file for file in repo_files() if file.name == "__init__.py"]
    assert [str(file) for file in markers if REPO / "tests" in file.parents] == []


def test_no_module_is_a_drawer_for_everything() -> None:
    drawers = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
    names = (file.relative_to(REPO) for file in repo_files() if file.suffix == ".py")
    assert [str(name) for name in names if drawers & {name.stem, *name.parts}] == []
