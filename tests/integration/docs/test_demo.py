"""What `make demo` runs once everything is installed: for a pipe, and for a person at a terminal."""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

REPO = Path(__file__).resolve().parents[3]
COMMAND = [str(REPO / "scripts/demo.sh"), str(Path(sys.executable).with_name("asap"))]
ADDRESS = re.compile(r"In the browser: (http://127\.0\.0\.1:\d+)")

pytestmark = [pytest.mark.real, pytest.mark.slow]


def environment(folder: Path) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ASAP_")}
    return {**plain, "ASAP_DATA_DIR": str(folder), "PORT": "0", "PYTHONPATH": str(REPO)}


def listens(address: str) -> bool:
    try:
        return httpx.get(f"{address}/healthz").is_success
    except httpx.TransportError:
        return False


def test_the_demo_shows_a_diagnosis_two_reports_and_an_address(tmp_path: Path) -> None:
    done = subprocess.run(
        COMMAND, cwd=REPO, env=environment(tmp_path), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = ADDRESS.search(done.stdout)
    assert found
    for part in ("Stragglers", "### Measured in the traces", "proposal 1", "completed"):
        assert part in done.stdout
    assert not listens(found[1])
