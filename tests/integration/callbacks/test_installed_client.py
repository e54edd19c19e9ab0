"""asap-client as people install it: its wheel and httpx, nothing else of ours."""

import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

REPO = Path(__file__).resolve().parents[3]
MODULES = "client, async_client, capture, run_script, upload"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the client in it."""
    folder, source = tmp_path_factory.mktemp("trainer"), tmp_path_factory.mktemp("source") / "asap_client"
    copytree(REPO / "asap_client", source, ignore=ignore_patterns("build", "*.egg-info", "__pycache__"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--disable-pip-version-check"]
    result = subprocess.run(
        [*pip, "-c", str(REPO / "constraints.txt"), str(source)], capture_output=True, text=True, check=False
    )
    if "Could not find a version" in result.stderr or "Connection" in result.stderr:
        pytest.skip("no package index to install httpx from")
    assert result.returncode == 0, result.stderr
    return python


def run(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, env={}, capture_output=True, text=True, check=False)


def test_it_imports_alone(python: Path, tmp_path: Path) -> None:
    script = f"""
import importlib.util
from asap_client import __version__, {MODULES}
assert client.Client("http://127.0.0.1:9")
for name in ("service", "graph", "tools", "kb_seed", "pydantic", "msgspec", "numpy"):
    assert importlib.util.find_spec(name) is None, name
print(__version__)
"""
    result = run(tmp_path, python, "-I", "-c", script)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip()


def test_capture_without_torch_fails_in_one_clear_line(python: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    result = run(tmp_path, python, "-m", "asap_client.run_script", "--out", "traces", "train.py")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("asap_client: profile capture needs PyTorch in this environment")
