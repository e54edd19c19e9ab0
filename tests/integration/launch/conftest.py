"""Jobs that run small programs of the test's own, on this machine and on a real Slurm."""

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launch.slurm_cluster import SlurmCluster, missing_part, running_cluster
from tests.integration.launch.waiting import Run, processes_of
from tests.integration.trials.conftest import scenario
from tests.unit.launch.builders import templates
from tools.launch.local import LocalLauncher
from tools.launch.slurm import SlurmLauncher

MakeRun = Callable[..., Run]


@pytest.fixture
def run_local(tmp_path: Path) -> Iterator[MakeRun]:
    """A job that runs these words on this machine."""
    root = tmp_path / "jobs"

    def make(*command: str, wall_s: int = 60, grace_s: float = 5.0, **fields: object) -> Run:
        fields = {"limits": {"wall_s": wall_s, "devices": 8}, "environment_inherited": ["PATH"]} | fields
        registered = templates("local", command=list(command), **fields)
        return Run(LocalLauncher(root, registered, dict(os.environ), grace_s=grace_s), root)

    yield make
    assert processes_of(root) == []


@pytest.fixture
def run_python(run_local: MakeRun) -> MakeRun:
    """A job that runs this Python program with its folder for results as its argument."""
    return lambda code, **options: run_local(sys.executable, "-c", code, "{out}", **options)


@pytest.fixture
def tiny_scenario() -> dict[str, Any]:
    """Two ranks of the reference trainer on two nodes, seconds long."""
    return scenario() | {"cluster": {"device": "cpu", "num_devices": 2, "devices_per_node": 1}}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """One for the whole run."""
    reason = missing_part()
    if reason:
        pytest.skip(reason)
    with running_cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def run_slurm(cluster: SlurmCluster, tmp_path: Path) -> MakeRun:
    """A job that runs these words on Slurm, with a key unlike every other test's: they share the cluster."""
    return lambda *command, **fields: slurm_run(cluster, tmp_path / "jobs", *command, **fields)


def slurm_run(cluster: SlurmCluster, root: Path, *command: str, **fields: object) -> Run:
    fields = {
        "limits": {"wall_s": 600, "devices": 16, "nodes": 4},
        "slurm": {"partition": "main", "gres": "gpu"},
    } | fields
    registered = templates("slurm", command=list(command), **fields)
    launcher = SlurmLauncher(root, registered, cluster.environment, poll_s=0.2)
    return Run(launcher, root, f"k{uuid.uuid4().hex[:12]}")
