"""A tuning session killed with -9 during its trials: none is lost, launched twice, or left behind."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graph.context import Context, Limits
from graph.request import parse_request
from graph.session import Session
from service.checkpoints import open_checkpoints
from service.settings import Settings
from tests.integration.launch.waiting import processes_of
from tests.integration.trials.conftest import QUICK, scenario, trials_in
from tools.kb import open_seed

TUNE = {**scenario(), "mode": "tune"}
TRIALS = 3
WAIT_S = 300.0


def work(folder: Path, command: list[str]) -> None:
    """One process's attempt at the session; a report where it gets that far."""
    context = Context(open_seed(), trials=trials_in(folder, command), limits=Limits(trials=TRIALS))
    with open_checkpoints(Settings(data_dir=folder)) as store:
        outcome = Session("s1", context, store).run(parse_request(TUNE))
    part = folder / ".report"
    part.write_text(outcome.report.model_dump_json() if outcome.report else "null")
    part.rename(folder / "report.json")


def start(folder: Path, command: list[str]) -> int:
    """Forked, so that twenty processes do not import everything twenty times."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work(folder, command)
    finally:
        os._exit(0)


def job_folders(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / "jobs").glob("*/intent.json"))


def running(folder: Path, number: int) -> Callable[[], bool]:
    """Whether the session's job of this number has begun and not ended."""
    job = folder / "jobs" / f"s1-{number}"
    return lambda: (job / "out" / "starts.txt").exists() and not (job / "final.json").exists()


def kill_while(folder: Path, command: list[str], fact: Callable[[], bool], after_s: float) -> bool:
    """Kills the session's process once the fact holds, and returns whether it had not ended before."""
    pid, deadline_s = start(folder, command), time.monotonic() + WAIT_S
    while not fact() and not (folder / "report.json").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return not (folder / "report.json").exists()


def finish(folder: Path, command: list[str]) -> dict[str, Any]:
    os.waitpid(start(folder, command), 0)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def check(folder: Path, report: dict[str, Any]) -> None:
    jobs = job_folders(folder)
    assert [job.name for job in jobs] == [trial["key"] for trial in report["trials"]], "lost, or one too many"
    assert [trial["status"] for trial in report["trials"]] == ["measured"] * len(jobs)
    for job in jobs:
        assert len((job / "out" / "starts.txt").read_text().split()) == 1, "launched twice"
    assert processes_of(folder / "jobs") == [], "left behind"


def test_a_session_killed_in_each_of_its_trials_loses_none_and_launches_none_twice(tmp_path: Path) -> None:
    command = [*QUICK, "1.5"]
    for number in range(TRIALS):
        assert kill_while(tmp_path, command, running(tmp_path, number), 0.0)
    report = finish(tmp_path, command)
    assert len(report["trials"]) == TRIALS
    check(tmp_path, report)
