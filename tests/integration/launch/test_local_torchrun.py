"""torchrun under the local launcher: real failures are told apart, and nothing of it is left behind."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launch.waiting import processes_of, until
from tools.launch.failures import Failure, FailureKind, classify, gather_evidence
from tools.launch.folder import JobFolder
from tools.launch.job import Job
from tools.launch.local import LocalLauncher
from tools.launch.processes import find_marked
from tools.launch.status import Cause, State
from tools.launch.template import parse_templates

pytestmark = pytest.mark.slow
REPO = Path(__file__).resolve().parents[3]
WAIT_S = 300.0
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{nproc}"]
TRAINER = [
    *TORCHRUN,
    "-m",
    "testbed.trainer",
    "{scenario}",
    "--steps",
    "{steps}",
    "--warmup",
    "1",
    "--out",
    "{out}",
]
# A collective that waits three seconds for its peers; rank 1 has something else in mind.
COLLECTIVE = """
import datetime, os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))
if dist.get_rank() == 1:
    exec(sys.argv[1])
dist.all_reduce(torch.ones(4))
"""


class Launch:
    """A launcher in a folder of its own."""

    def __init__(self, root: Path, command: list[str], wall_s: int) -> None:
        table = {
            "name": "test",
            "launcher": "local",
            "command": command,
            "workdir": str(REPO),
            "environment": {"OMP_NUM_THREADS": "1"},
            "environment_inherited": ["PATH", "HOME"],
            "limits": {"wall_s": wall_s, "devices": 2},
        }
        self.root = root
        self.launcher = LocalLauncher(root, parse_templates({"template": [table]}), dict(os.environ))

    def failure(self, job: Job) -> Failure | None:
        """Why it failed, if it did."""
        handle = self.launcher.submit("k1", job)
        self.launcher.wait(handle, WAIT_S)
        return classify(gather_evidence(self.launcher, handle, self.root.parent / "gathered"))


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    yield lambda command, wall_s=240: Launch(tmp_path / "jobs", command, wall_s)
    assert processes_of(tmp_path / "jobs") == []


def collective(second_rank: str, tmp_path: Path) -> list[str]:
    script = tmp_path / "collective.py"
    script.write_text(COLLECTIVE)
    return [*TORCHRUN, str(script), second_rank]


def test_the_reference_trainer_succeeds_and_leaves_its_result(
    launch: Callable[..., Launch], tiny_scenario: dict[str, Any], tmp_path: Path
) -> None:
    job = Job("test", tiny_scenario, nproc=2, steps=2)
    running = launch(TRAINER)
    assert running.failure(job) is None
    handle = running.launcher.find("k1")
    assert handle is not None
    assert Path("result.json") in running.launcher.artefacts(handle, tmp_path / "copy")


def test_a_plan_that_the_trainer_refuses_is_a_bad_configuration(
    launch: Callable[..., Launch], tiny_scenario: dict[str, Any]
) -> None:
    wrong = tiny_scenario | {"plan": tiny_scenario["plan"] | {"tp": 3}}
    failure = launch(TRAINER).failure(Job("test", wrong, nproc=2))
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
    launch: Callable[..., Launch], tmp_path: Path, second_rank: str, kind: FailureKind
) -> None:
    failure = launch(collective(second_rank, tmp_path)).failure(Job("test", {}, nproc=2))
    assert failure is not None
    assert failure.kind is kind, failure.evidence


def test_a_hung_trial_is_ended_at_its_limit_and_told_as_a_hang(
    launch: Callable[..., Launch], tmp_path: Path
) -> None:
    command = collective("time.sleep(600)", tmp_path)
    (tmp_path / "collective.py").write_text(COLLECTIVE.replace("seconds=3", "seconds=600"))
    running = launch(command, wall_s=12)
    failure = running.failure(Job("test", {}, nproc=2))
    assert failure is not None
    assert failure.kind is FailureKind.HANG
    handle = running.launcher.find("k1")
    assert handle is not None
    assert running.launcher.status(handle).cause is Cause.WALL_LIMIT


def test_cancel_leaves_no_worker_of_torchrun(
    launch: Callable[..., Launch], tiny_scenario: dict[str, Any], tmp_path: Path
) -> None:
    running = launch(TRAINER)
    handle = running.launcher.submit("k1", Job("test", tiny_scenario, nproc=2, steps=1_000_000))
    until(lambda: (tmp_path / "jobs/k1/out/progress.jsonl").exists())
    intent = JobFolder.of(tmp_path / "jobs", "k1").find_intent()
    assert intent is not None
    assert len(list(find_marked(intent.mark))) >= 3, "torchrun and two workers"
    assert running.launcher.cancel(handle).state is State.CANCELLED
    assert list(find_marked(intent.mark)) == []
