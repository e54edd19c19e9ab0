"""A process killed at any moment: the session goes on where it was, and repeats no finished node."""

import json
import os
import random
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from graph.context import Context
from graph.request import parse_request
from graph.session import Session
from service.checkpoints import open_checkpoints
from service.settings import Settings
from tests.unit.graph.cases import small
from tools.kb import open_seed

Told = list[dict[str, Any]]


def work(folder: Path) -> None:
    """One process's attempt: tells its events in a file, and its report when it gets that far."""
    context = Context(open_seed())
    with (folder / "events.jsonl").open("a") as log, open_checkpoints(Settings(data_dir=folder)) as store:

        def tell(event: dict[str, Any]) -> None:
            log.write(json.dumps({"key": event["key"], "kind": event["kind"]}) + "\n")
            log.flush()

        outcome = Session("s1", context, store).run(parse_request(small()), tell)
    (folder / "report.json").write_text(outcome.report.model_dump_json() if outcome.report else "null")


def start(folder: Path) -> int:
    """Forked, so that fifty processes do not import everything fifty times."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work(folder)
    finally:
        os._exit(0)


def events(folder: Path) -> Told:
    file = folder / "events.jsonl"
    return (
        [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
        if file.exists()
        else []
    )


def step_of(event: dict[str, Any]) -> int:
    return int(event["key"].split("/")[0])


def finish(folder: Path) -> None:
    os.waitpid(start(folder), 0)
    assert (folder / "report.json").exists()


def check(folder: Path) -> None:
    """Once a later step has begun, its predecessor is in a checkpoint and is never seen again."""
    assert events(folder)
    reached = 0
    for event in events(folder):
        assert step_of(event) >= reached
        reached = max(reached, step_of(event))
    told = [event["key"] for event in events(folder) if event["kind"] == "finished"]
    assert [int(key.split("/")[0]) for key in dict.fromkeys(told)] == list(range(1, reached + 1))


def killed(folder: Path, after_s: float) -> bool:
    """Whether the session had told something and not yet all of it."""
    pid = start(folder)
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return bool(events(folder)) and not (folder / "report.json").exists()


def survive(tmp_path: Path, kills: int) -> None:
    begun = time.monotonic()
    finish(tmp_path / "whole")
    whole_s = time.monotonic() - begun
    expected = json.loads((tmp_path / "whole" / "report.json").read_text())
    chance = random.Random(7)
    interrupted = 0
    for number in range(kills):
        folder = tmp_path / str(number)
        folder.mkdir()
        interrupted += killed(folder, chance.uniform(0, whole_s))
        finish(folder)
        check(folder)
        report = json.loads((folder / "report.json").read_text())
        assert report["proposals"] == expected["proposals"]
        assert [visit["step"] for visit in report["route"]] == [visit["step"] for visit in expected["route"]]
    assert interrupted > kills / 4


def test_a_session_killed_at_random_moments_completes_and_repeats_no_finished_node(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    survive(tmp_path, kills=8)


@pytest.mark.slow
def test_a_session_survives_fifty_kills(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    survive(tmp_path, kills=50)


def test_the_checkpoint_holds_plain_data_only(tmp_path: Path) -> None:
    with open_checkpoints(Settings(data_dir=tmp_path)) as store:
        Session("s1", Context(open_seed()), store).run(parse_request(small()))
    query = "select type, checkpoint from checkpoints"
    rows = sqlite3.connect(tmp_path / "checkpoints.db").execute(query).fetchall()
    assert len(rows) > 1
    assert all(kind == "msgpack" and b"pydantic" not in blob for kind, blob in rows)
