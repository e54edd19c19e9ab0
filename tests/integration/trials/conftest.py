"""Trials as real jobs of this machine: small programs of the test's own, or the reference trainer."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launch.waiting import processes_of
from tools.launch.local import LocalLauncher
from tools.launch.template import parse_templates
from tools.scenario import parse_scenario
from tools.trials.order import RunLength, TrialOrder, TrialProgress
from tools.trials.run import LaunchedTrials

REPO = Path(__file__).resolve().parents[3]
QUICK = [sys.executable, str(Path(__file__).with_name("quick_trainer.py")), "{scenario}", "{out}", "{steps}"]
TORCHRUN = [
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{nproc}",
    "-m", "testbed.trainer", "{scenario}", "--steps", "{steps}", "--warmup", "{warmup}",
    "--profile-steps", "{profile_steps}", "--seed", "{seed}", "--out", "{out}",
]  # fmt: skip


class Patient:
    """Waits for a trial to its end."""

    def emit(self, progress: TrialProgress) -> None:
        """Progress is of no interest here."""

    def must_cancel(self) -> bool:
        return False


def scenario(**plan: object) -> dict[str, Any]:
    """Two ranks of the reference trainer, seconds long."""
    degrees = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": 2, "dp_shard": 2, "zero_stage": 3}
    return {
        "model": {
            "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
            "vocab_size": 64,
        },
        "cluster": {"device": "cpu", "num_devices": 2, "devices_per_node": 2},
        "training": {
            "seq_len": 16, "global_batch_size": 4, "precision": "fp32", "framework": "torch-fsdp2",
            "flash_attention": True,
        },
        "plan": {**degrees, "micro_batch_size": 1, "recompute": "none", **plan},
    }  # fmt: skip


def order(key: str = "t1", device_hours: float = 1.0, **changed: Any) -> TrialOrder:  # noqa: ANN401 - its fields
    described = parse_scenario(changed.pop("described", scenario()))
    return TrialOrder(
        **{"key": key, "scenario": described, "plan": described.plan, **changed}, device_hours=device_hours
    )


def template(command: list[str], wall_s: int = 120) -> dict[str, Any]:
    return {
        "name": "test",
        "launcher": "local",
        "command": command,
        "workdir": str(REPO),
        "environment": {"OMP_NUM_THREADS": "1"},
        "environment_inherited": ["PATH", "HOME"],
        "limits": {"wall_s": wall_s, "devices": 2},
    }


def trials_in(folder: Path, command: list[str], wall_s: int = 120, **options: Any) -> LaunchedTrials:  # noqa: ANN401
    templates = parse_templates({"template": [template(command, wall_s)]})
    launcher = LocalLauncher(folder / "jobs", templates, dict(os.environ), grace_s=2.0)
    length = RunLength(steps=6, warmup=1, profile_steps=0)
    settings = {"length": length, "max_runs": 1, **options}
    return LaunchedTrials(lambda name: launcher, templates, "test", folder / "results", **settings)


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Callable[..., LaunchedTrials]]:
    """Trials that run this Python program with the folder for results as its argument."""

    def make(code: str, wall_s: int = 60, **options: object) -> LaunchedTrials:
        return trials_in(tmp_path, [sys.executable, "-c", code, "{out}"], wall_s, **options)

    yield make
    assert processes_of(tmp_path / "jobs") == []
