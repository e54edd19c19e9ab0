"""The example of a GitHub Action: its own shell step, run on a repository with two commits."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

REPO = Path(__file__).resolve().parents[3]
WORKFLOW = yaml.safe_load((REPO / "examples/github-action.yml").read_text())
TOML = (
    "[training]\nlocal_batch_size = 1\nglobal_batch_size = 128\nseq_len = 8192\n"
    'mixed_precision_param = "bfloat16"\n[parallelism]\ntensor_parallel_degree = {tp}\n'
    'data_parallel_shard_degree = {dp}\n[activation_checkpoint]\nmode = "{recompute}"\n'
)


def step(name: str) -> dict[str, Any]:
    steps = WORKFLOW["jobs"]["predict"]["steps"]
    return next(dict(one) for one in steps if one.get("name") == name)


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A pull request's checkout, with ASAP beside it as the action has it."""
    (tmp_path / "configs").mkdir()
    model = (REPO / "examples/llama-3.1-70b.config.json").read_text()
    (tmp_path / "configs/model.json").write_text(model)
    (tmp_path / "configs/train.toml").write_text(TOML.format(tp=8, dp=8, recompute="full"))
    git(tmp_path, "init")
    git(tmp_path, "add", "configs")
    git(tmp_path, "commit", "-m", "before")
    (tmp_path / "asap").symlink_to(REPO)
    return tmp_path


def predicted(repository: Path) -> str:
    """What the step of the action writes; it fails as the action would."""
    environment = {
        **os.environ,
        **WORKFLOW["env"],
        "BASE": git(repository, "rev-parse", "HEAD"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPO),
    }
    script = ["bash", "-e", "-o", "pipefail", "-c", step("Predict both")["run"]]
    done = subprocess.run(script, cwd=repository, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (repository / "comment.md").read_text()


def test_a_better_plan_is_praised_with_its_interval(repository: Path) -> None:
    (repository / "configs/train.toml").write_text(TOML.format(tp=2, dp=32, recompute="selective"))
    text = predicted(repository)
    assert text.startswith("### Predicted effect: 1.")
    assert "tp 8 → 2" in text
    assert "recompute full → selective" in text
    assert text.count("GiB |") == 2


def test_a_plan_that_does_not_fit_is_told_and_fails_nothing(repository: Path) -> None:
    (repository / "configs/train.toml").write_text(TOML.format(tp=1, dp=64, recompute="none"))
    assert "does not fit" in predicted(repository)


def test_an_unchanged_plan_is_told_as_such(repository: Path) -> None:
    text = predicted(repository)
    assert "no change of speed" in text
    assert "nothing of the plan" in text
