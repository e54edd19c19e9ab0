"""torchrun under the local launcher: real failures are classified, and nothing of it is left behind."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launch.waiting import Run
from tests.unit.launch.builders import REPO
from tools.launch.launcher import Job
from tools.launch.status import FailureCause, FailureKind

pytestmark = pytest.mark.slow
WAIT_S = 300.0
TRAINER = ("-m", "testbed.trainer", "{scenario}", "--steps", "{steps}", "--warmup", "1", "--out", "{out}")
# A collective that waits for its peers; rank 1 does something else first.
COLLECTIVE = """
import datetime, os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(sys.argv[2])))
if dist.get_rank() == 1:
    exec(sys.argv[1])
dist.all_reduce(torch.ones(4))
"""
TorchRun = Callable[..., Run]


@pytest.fixture
def torchrun(run_local: Callable[..., Run]) -> TorchRun:
    """Two ranks of this program."""

    def make(*program: str, scenario: dict[str, Any] | None = None, steps: int = 2, wall_s: int = 240) -> Run:
        run = run_local(
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{nproc}"),
            *program,
            wall_s=wall_s,
            workdir=str(REPO),
            environment={"OMP_NUM_THREADS": "1"},
            environment_inherited=["PATH", "HOME"],
        )
        run.job = Job("test", scenario or {}, nproc=2, steps=steps)
        return run

    return make


@pytest.fixture
def collective(torchrun: TorchRun, tmp_path: Path) -> TorchRun:
    script = tmp_path / "collective.py"
    script.write_text(COLLECTIVE)
    return lambda second_rank, timeout_s=3, **options: torchrun(
        str(script), second_rank, str(timeout_s), **options
    )


def test_a_plan_that_the_trainer_refuses_is_a_bad_configuration(
    torchrun: TorchRun, tiny_scenario: dict[str, Any]
) -> None:
    run = torchrun(*TRAINER, scenario=tiny_scenario | {"plan": tiny_scenario["plan"] | {"tp": 3}})
    run.finish(WAIT_S)
    failure = run.failure()
    assert failure is not None
    assert (failure.kind, failure.confidence) == (FailureKind.BAD_CONFIGURATION, 0.95)
    assert "plan.dp" in failure.evidence[0]


@pytest.mark.parametrize(
    ("second_rank", "kind"),
    [
        ("time.sleep(20)", FailureKind.COMMUNICATION_TIMEOUT),
        ("torch.empty(2**50)", FailureKind.OUT_OF_MEMORY),
        ("raise FloatingPointError('loss')", FailureKind.NUMERICS),
        ("import no_such_module_of_this_test", FailureKind.BAD_CONFIGURATION),
    ],
)
def test_what_one_rank_does_is_the_cause_and_not_what_its_peer_sees(
    collective: TorchRun, second_rank: str, kind: FailureKind
) -> None:
    run = collective(second_rank)
    run.finish(WAIT_S)
    failure = run.failure()
    assert failure is not None
    assert failure.kind is kind, failure.evidence


def test_a_hung_trial_is_ended_at_its_limit_and_classified_as_a_hang(collective: TorchRun) -> None:
    run = collective("print('hangs', flush=True); time.sleep(600)", timeout_s=600, wall_s=12)
    assert run.finish(WAIT_S).cause is FailureCause.WALL_LIMIT
    assert "hangs" in run.output(), "the limit came before the hang"
    failure = run.failure()
    assert failure is not None
    assert failure.kind is FailureKind.HANG
