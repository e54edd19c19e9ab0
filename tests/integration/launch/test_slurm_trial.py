"""Whole trials over two nodes of a real Slurm: measured and compared."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.trials.conftest import Patient
from tools.launch.slurm import SlurmLauncher
from tools.launch.template import parse_templates
from tools.trials.gate import compare
from tools.trials.order import RunLength, TrialOrder
from tools.trials.run import LaunchedTrials

REPO = Path(__file__).resolve().parents[3]
COMMAND = (
    "srun", sys.executable, "-m", "torch.distributed.run", "--nnodes", "{nnodes}",
    "--nproc-per-node", "{nproc}",
    "--rdzv-backend", "c10d", "--rdzv-id", "{key}", "--rdzv-endpoint", "{rendezvous}",
    "-m", "testbed.trainer", "{scenario}", "--steps", "{steps}", "--warmup", "{warmup}", "--out", "{out}",
)  # fmt: skip


@pytest.mark.real
@pytest.mark.slow
def test_two_plans_are_measured_over_two_nodes_and_compared(
    run: Callable[..., SlurmLauncher], tmp_path: Path, tiny_scenario: dict[str, Any], key: str
) -> None:
    fields = {"workdir": str(REPO), "environment": {"OMP_NUM_THREADS": "1"}}
    launcher = run(*COMMAND, **fields)
    table = {"name": "test", "launcher": "slurm", "command": list(COMMAND), **fields}
    table["limits"] = {"wall_s": 600, "devices": 16, "nodes": 4}
    trials = LaunchedTrials(
        lambda name: launcher,
        parse_templates({"template": [table]}),
        "test",
        tmp_path / "results",
        RunLength(steps=6, warmup=1, profile_steps=0),
        max_runs=1,
    )
    ddp = {**tiny_scenario["plan"], "dp_shard": 1, "zero_stage": 0}
    outcomes = [
        trials.run(TrialOrder(f"{key}-{number}", tiny_scenario, plan, device_hours=1.0), Patient())
        for number, plan in enumerate((tiny_scenario["plan"], ddp))
    ]
    assert [one["status"] for one in outcomes] == ["measured", "measured"], outcomes
    assert len(outcomes[0]["nodes"]) == 2
    assert outcomes[0]["device_hours"] >= 0
    found = compare(*outcomes)
    assert all(one["entry"] == "nodes" for one in found["refusals"]), found
