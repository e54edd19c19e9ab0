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
    return next(dict(step) for step in steps if step.get("name") == name)


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


@pytest.mark.parametrize(
    ("tp", "dp", "recompute", "shown"),
    [
        pytest.param(
            2,
            32,
            "selective",
            ["### Predicted effect: 1.", "tp 8 → 2", "recompute full → selective"],
            id="better",
        ),
        pytest.param(1, 64, "none", ["does not fit"], id="too large, which fails nothing"),
        pytest.param(8, 8, "full", ["no change of speed", "nothing of the plan"], id="unchanged"),
    ],
)
def test_the_comment_shows_the_effect_of_a_changed_plan(
    repository: Path, tp: int, dp: int, recompute: str, shown: list[str]
) -> None:
    (repository / "configs/train.toml").write_text(TOML.format(tp=tp, dp=dp, recompute=recompute))
    text = predicted(repository)
    assert [words for words in shown if words not in text] == []
    if tp == 2:
        assert text.count("GiB |") == 2, "an interval for both plans"
