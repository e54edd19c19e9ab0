"""Launchers whose templates run small programs of the test's own, on this machine and on a real Slurm."""

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launch.slurm_cluster import SlurmCluster, missing_part, running_cluster
from tests.integration.launch.waiting import processes_of
from tools.launch.job import Job
from tools.launch.local import LocalLauncher
from tools.launch.slurm import SlurmLauncher
from tools.launch.template import Template, parse_templates

MakeLauncher = Callable[..., LocalLauncher]


def local_template(*command: str, wall_s: int = 60, **fields: object) -> dict[str, Template]:
    table = {
        "name": "test",
        "launcher": "local",
        "command": list(command),
        "limits": {"wall_s": wall_s, "devices": 8},
        "environment_inherited": ["PATH"],
    }
    return parse_templates({"template": [table | fields]})


@pytest.fixture
def run_python(tmp_path: Path) -> Iterator[MakeLauncher]:
    """A launcher that runs this Python program with the job's folder for results as its argument."""
    root = tmp_path / "jobs"

    def make(code: str, **options: object) -> LocalLauncher:
        grace_s = float(str(options.pop("grace_s", 5.0)))
        templates = local_template(sys.executable, "-c", code, "{out}", **options)  # type: ignore[arg-type]
        return LocalLauncher(root, templates, dict(os.environ), grace_s=grace_s)

    yield make
    assert processes_of(root) == []


@pytest.fixture
def tiny_scenario() -> dict[str, Any]:
    """Two ranks of the reference trainer, seconds long."""
    return {
        "model": {
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "vocab_size": 64,
        },
        "cluster": {"device": "cpu", "num_devices": 2, "devices_per_node": 1},
        "training": {
            "seq_len": 16,
            "global_batch_size": 4,
            "precision": "fp32",
            "framework": "torch-fsdp2",
            "flash_attention": True,
        },
        "plan": {
            "tp": 1,
            "pp": 1,
            "cp": 1,
            "ep": 1,
            "dp": 2,
            "dp_shard": 2,
            "zero_stage": 3,
            "micro_batch_size": 1,
        },
    }


@pytest.fixture
def job() -> Job:
    return Job("test", {"model": {}})


@pytest.fixture
def key() -> str:
    """Unlike every other test's: a cluster serves them all."""
    return f"k{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """One for the whole run."""
    reason = missing_part()
    if reason:
        pytest.skip(reason)
    with running_cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def run(cluster: SlurmCluster, tmp_path: Path) -> Callable[..., SlurmLauncher]:
    """A launcher whose template runs these words on Slurm."""

    def make(*command: str, **fields: object) -> SlurmLauncher:
        table = {
            "name": "test",
            "launcher": "slurm",
            "command": list(command),
            "limits": {"wall_s": 600, "devices": 16, "nodes": 4},
            "slurm": {"partition": "main", "gres": "gpu"},
        }
        templates = parse_templates({"template": [table | fields]})
        return SlurmLauncher(tmp_path / "jobs", templates, cluster.environment, poll_s=0.2)

    return make
