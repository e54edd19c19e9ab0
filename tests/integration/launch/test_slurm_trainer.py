"""The reference trainer over two nodes of a real Slurm, through srun and torchrun."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.launch.job import Job
from tools.launch.slurm import SlurmLauncher
from tools.launch.status import State

REPO = Path(__file__).resolve().parents[3]
MakeLauncher = Callable[..., SlurmLauncher]


@pytest.mark.real
@pytest.mark.slow
def test_the_reference_trainer_runs_over_two_nodes(
    run: MakeLauncher, tmp_path: Path, tiny_scenario: dict[str, Any]
) -> None:
    launcher = run(
        "srun", sys.executable, "-m", "torch.distributed.run", "--nnodes", "{nnodes}",
        "--nproc-per-node", "{nproc}", "--rdzv-backend", "c10d", "--rdzv-id", "{key}",
        "--rdzv-endpoint", "{rendezvous}", "-m", "testbed.trainer", "{scenario}", "--steps", "{steps}",
        "--warmup", "{warmup}", "--out", "{out}",
        workdir=str(REPO), environment={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    job = Job("test", tiny_scenario, nnodes=2, nproc=1, steps=2, warmup=1)
    handle = launcher.submit("two-nodes", job)
    status = launcher.wait(handle, 300)
    log = "".join(chunk.text for chunk in launcher.logs(handle))
    assert (status.state, status.exit_status) == (State.SUCCEEDED, 0), log
    assert Path("result.json") in launcher.artefacts(handle, tmp_path / "copy")
    result = json.loads((tmp_path / "copy/result.json").read_text())
    assert len(result["nodes"]) == 2
    assert len(result["step_times_s"]) == 2
