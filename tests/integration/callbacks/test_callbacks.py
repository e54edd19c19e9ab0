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
TRAINERS = ["hugging-face", "lightning"]
NOBODY = "http://127.0.0.1:9"

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with api_process(tmp_path_factory.mktemp("server")) as process:
        yield process


def run(
    server: str, folder: Path, *programs: str, ranks: int = 1, logged: str = ""
) -> list[dict[str, str | None]]:
    """What each program printed in the end, on each rank; trainers print more. They must have logged this."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    finished = subprocess.run(
        [sys.executable, *(torchrun if ranks > 1 else []), str(PROGRAMS), str(folder), server, *programs],
        cwd=REPO, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert logged in finished.stderr
    return [json.loads(line) for line in finished.stdout.splitlines() if line.startswith('{"run"')]


def test_every_rank_sends_its_profile_into_one_upload_and_a_session_explains_it(
    server: ApiProcess, tmp_path: Path
) -> None:
    ranks = run(server.address, tmp_path, "plain", ranks=2)
    trace = next(rank["trace"] for rank in ranks if rank["trace"])
    session = next(rank["session"] for rank in ranks if rank["session"])
    with Client(server.address) as client:
        ended = client.wait(session, timeout_s=120)
        uploaded = client.trace(trace.removeprefix("trace:"))
        report = client.report(session)
    assert ended.state == "completed"
    assert [file.name for file in uploaded.files] == ["rank0.summary.json", "rank1.summary.json"]
    assert report["profile"]
    assert report["profile"]["ranks"] == 2


def test_trainers_send_the_profile_of_their_optimizer_steps_and_go_on_if_nobody_takes_it(
    server: ApiProcess, tmp_path: Path
) -> None:
    programs = [*TRAINERS, f"hugging-face={NOBODY}"]
    tried = f"{NOBODY} does not accept a profile"
    *taken, refused = run(server.address, tmp_path, *programs, logged=tried)
    assert (refused["trace"], refused["session"]) == (None, None)
    assert (tmp_path / "2" / "summaries/rank0.summary.json").exists(), "there was nothing to send"
    assert [sent["run"] for sent in taken] == TRAINERS
    with Client(server.address) as client:
        for number, sent in enumerate(taken):
            assert sent["trace"]
            uploaded = client.trace(sent["trace"].removeprefix("trace:"))
            assert (uploaded.name, uploaded.state) == (sent["run"], "complete")
            assert (tmp_path / str(number) / "summaries/rank0.summary.json").exists()
    assert not list(tmp_path.rglob("*.json.gz")), "raw traces are kept only when asked for"
