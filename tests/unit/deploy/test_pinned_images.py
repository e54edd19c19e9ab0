"""scripts/pin_images.py on copies of our files, with a stand-in for the registry, which no test reaches."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
ANSWERS = """#!/bin/sh
for image; do :; done
printf 'sha256:'; printf '%s' "$image" | sha256sum | cut -c1-64
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("Dockerfile", "docker-compose.yml"):
        shutil.copy(REPO / name, tmp_path)
    shutil.copytree(REPO / "deploy", tmp_path / "deploy")
    return tmp_path


def run(folder: Path, *words: str, skopeo: str = ANSWERS) -> subprocess.CompletedProcess[str]:
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "skopeo").write_text(skopeo)
    (programs / "skopeo").chmod(0o755)
    command = [sys.executable, str(REPO / "scripts/pin_images.py"), "--folder", str(folder), *words]
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_images_without_digest_are_refused_and_pinned_ones_are_not(folder: Path) -> None:
    refused = run(folder)
    assert refused.returncode == 1
    assert "Dockerfile: python:3.11-slim-bookworm; the registry has @sha256:" in refused.stdout
    assert "docker-compose.yml: postgres:18; " in refused.stdout
    written = run(folder, "--write")
    assert (written.returncode, run(folder).returncode) == (0, 0)
    lines = (folder / "Dockerfile").read_text().splitlines()
    assert sum("bookworm@sha256:" in line for line in lines) == 2
    assert "image: asap-sharding\n" in (folder / "docker-compose.yml").read_text()
    moved = run(folder, skopeo=ANSWERS.replace('"$image"', '"$image moved"'))
    assert moved.returncode == 1


def test_without_a_registry_nothing_is_claimed(folder: Path) -> None:
    silent = run(folder, "--write", skopeo="#!/bin/sh\nexit 1\n")
    assert silent.returncode == 3
    assert "no registry answers" in silent.stderr
    assert (folder / "Dockerfile").read_text() == (REPO / "Dockerfile").read_text()
