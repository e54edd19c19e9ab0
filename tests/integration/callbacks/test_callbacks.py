"""Real trainers with ASAP's callback, and a real server that takes their profiles."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asap_client.client import Client
from tests.integration.service.api_process import REPO, ApiProcess, api_process

PROGRAMS = Path(__file__).with_name("programs.py")

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with api_process(tmp_path_factory.mktemp("server")) as process:
        yield process


def run(
    program: str, server: str, folder: Path, *more: str, processes: int = 1
) -> list[dict[str, str | None]]:
    """What each rank printed in the end; trainers print more."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(processes),
        "--standalone",
    ]
    words = command[:1] if processes == 1 else command
    finished = subprocess.run(
        [*words, str(PROGRAMS), program, server, str(folder), *more],
        cwd=REPO, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return [json.loads(line) for line in finished.stdout.splitlines() if line.startswith('{"trace"')]


def test_every_rank_sends_its_profile_into_one_upload_and_a_session_explains_it(
    server: ApiProcess, tmp_path: Path
) -> None:
    scenario = REPO / "examples/traces/gpt-ddp-gloo/base.json"
    told = run("plain", server.address, tmp_path, str(scenario), processes=2)
    trace = next(one["trace"] for one in told if one["trace"])
    session = next(one["session"] for one in told if one["session"])
    with Client(server.address) as client:
        ended = client.wait(session, timeout_s=120)
        uploaded = client.trace(trace.removeprefix("trace:"))
        report = client.report(session)
    assert ended.state == "completed"
    assert [file.name for file in uploaded.files] == ["rank0.summary.json", "rank1.summary.json"]
    assert report["profile"]["ranks"] == 2


@pytest.mark.parametrize("trainer", ["hugging-face", "lightning"])
def test_a_trainer_sends_the_profile_of_its_optimizer_steps(
    trainer: str, server: ApiProcess, tmp_path: Path
) -> None:
    [told] = run(trainer, server.address, tmp_path)
    assert told["trace"]
    with Client(server.address) as client:
        uploaded = client.trace(told["trace"].removeprefix("trace:"))
    assert uploaded.name == trainer
    assert uploaded.state == "complete"
    assert (tmp_path / "summaries/rank0.summary.json").exists()
    assert not list(tmp_path.glob("*.json.gz")), "raw traces are kept only when asked for"


def test_training_goes_on_when_nobody_takes_the_profile(tmp_path: Path) -> None:
    assert run("hugging-face", "http://127.0.0.1:9", tmp_path) == [{"trace": None, "session": None}]
