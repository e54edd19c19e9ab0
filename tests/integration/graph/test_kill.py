"""A process killed at any moment: the session goes on where it was, and repeats no finished node."""

import json
import os
import random
import signal
import sqlite3
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from graph.context import Context
from graph.events import SessionEvent
from graph.request import parse_request
from graph.session import Session
from service.checkpoints import KEY_BYTES, open_checkpoints
from service.settings import Settings
from tests.unit.graph.cases import small
from tools.kb import open_seed

Told = list[dict[str, Any]]


def work(folder: Path) -> None:
    """One process's attempt: tells its events in a file, and its report when it gets that far."""
    context = Context(open_seed())
    with (folder / "events.jsonl").open("a") as log, open_checkpoints(Settings(data_dir=folder)) as store:

        def tell(event: SessionEvent) -> None:
            log.write(event.model_dump_json(include={"key", "kind"}) + "\n")
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


def killed(folder: Path, after_events: int, then_s: float) -> bool:
    """Whether the session had told something and not yet all of it.

    The moment is counted in events, not on the clock: the first process of a loaded machine is far slower
    than the next ones, and a kill after the end is no fault.
    """
    pid = start(folder)
    at_once = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while len(events(folder)) < after_events and os.waitid(os.P_PID, pid, at_once) is None:
        time.sleep(0.0005)
    time.sleep(then_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return not (folder / "report.json").exists()


@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_a_session_killed_at_random_moments_completes_and_repeats_no_finished_node(
    tmp_path: Path, kills: int
) -> None:
    (tmp_path / "whole").mkdir()
    finish(tmp_path / "whole")
    expected = json.loads((tmp_path / "whole" / "report.json").read_text())
    told = len(events(tmp_path / "whole"))
    chance = random.Random(7)
    interrupted = 0
    for number in range(kills):
        folder = tmp_path / str(number)
        folder.mkdir()
        interrupted += killed(folder, chance.randrange(1, told), chance.uniform(0, 0.005))
        finish(folder)
        check(folder)
        report = json.loads((folder / "report.json").read_text())
        assert report["proposals"] == expected["proposals"]
        assert [visit["step"] for visit in report["route"]] == [visit["step"] for visit in expected["route"]]
    assert interrupted > kills / 2


def test_the_checkpoint_holds_plain_data_only(tmp_path: Path) -> None:
    with open_checkpoints(Settings(data_dir=tmp_path)) as store:
        Session("s1", Context(open_seed()), store).run(parse_request(small()))
    query = "select type, checkpoint from checkpoints"
    rows = sqlite3.connect(tmp_path / "checkpoints.db").execute(query).fetchall()
    assert len(rows) > 1
    assert all(kind.startswith("msgpack") for kind, _ in rows)
    contents = [zlib.decompress(blob[KEY_BYTES:]) if "zlib" in kind else blob for kind, blob in rows]
    assert not any(b"pydantic" in content for content in contents)
