"""asap-client as people install it: its wheel and httpx, nothing else of ours."""

import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

REPO = Path(__file__).resolve().parents[3]
MODULES = "client, async_client, schedules, capture, run_script, upload"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the client in it."""
    folder, source = tmp_path_factory.mktemp("trainer"), tmp_path_factory.mktemp("source") / "asap_client"
    copytree(REPO / "asap_client", source, ignore=ignore_patterns("build", "*.egg-info", "__pycache__"))
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = ["-c", str(REPO / "constraints.txt")]
    result = subprocess.run(
        [*install, *constraints, str(source)], capture_output=True, text=True, check=False
    )
    if "Could not find a version" in result.stderr or "Connection" in result.stderr:
        pytest.skip("no package index to install httpx from")
    assert result.returncode == 0, result.stderr
    return python


def run(python: Path, script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = [str(python), "-I", "-c", script]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def test_it_imports_alone(python: Path, tmp_path: Path) -> None:
    script = f"""
import importlib.util
from asap_client import __version__, {MODULES}
assert client.Client("http://127.0.0.1:9")
for name in ("service", "graph", "tools", "kb_seed", "pydantic", "msgspec", "numpy"):
    assert importlib.util.find_spec(name) is None, name
print(__version__)
"""
    result = run(python, script, tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip()


def test_capture_without_torch_fails_in_one_clear_line(python: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    words = [str(python), "-m", "asap_client.run_script", "--out", "traces", "train.py"]
    result = subprocess.run(words, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("asap_client: profile capture needs PyTorch in this environment")
