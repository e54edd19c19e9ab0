"""Workloads whose nights are metrics files, written in a line; and a session that answers what it is told."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from service.db.engine import Database
from service.nightly.reoptimize import Answer
from service.nightly.review import Desk
from service.settings import Settings
from service.traces import Uploads

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
BASE = EXAMPLES / "traces/gpt-ddp-gloo"
DAY_S = 86_400.0
FIRST_S = 1_790_000_000.0
PATTERN = (0.3, -0.8, 0.5, -0.2, 0.9, -0.6, 0.1, -0.4, 0.7, -0.5)


def scenario() -> dict[str, Any]:
    described: dict[str, Any] = json.loads((BASE / "base.json").read_text())
    return described


def wobble(number: int, level_s: float) -> float:
    return level_s * (1 + 0.01 * PATTERN[number % len(PATTERN)])


def add_night(folder: Path, number: int, level_s: float = 2.0, **content: Any) -> None:  # noqa: ANN401 - any JSON
    """Night by night a day later, as a job that logs would leave it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:03}.json"
    path.write_text(json.dumps({"night": number, "step_times_s": [wobble(number, level_s)] * 3, **content}))
    at = FIRST_S + number * DAY_S
    os.utime(path, (at, at))


def add_nights(folder: Path, numbers: range, level_s: float = 2.0, **content: Any) -> None:  # noqa: ANN401 - any JSON
    for number in numbers:
        add_night(folder, number, level_s, **content)


def add_profile(folder: Path, number: int, round: str = "round4") -> Path:
    night = Path(shutil.copytree(BASE / round / "base", folder / f"{number:03}"))
    at = FIRST_S + number * DAY_S
    for file in night.iterdir():
        os.utime(file, (at, at))
    return night


def add_trace(folder: Path, number: int, step_us: float) -> Path:
    """A night of a job with one rank: four marked steps, a matrix product in each."""
    night = folder / f"{number:03}"
    night.mkdir(parents=True)
    events: list[dict[str, Any]] = []
    for step in range(4):
        start = 1000 + step * step_us
        mark = {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1}
        work = {"cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}
        events += [
            {"ph": "X", "ts": start, "dur": step_us, **mark},
            {"ph": "X", "ts": start, "dur": wobble(number, 0.9 * step_us), **work},
        ]
    path = night / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    at = FIRST_S + number * DAY_S
    os.utime(path, (at, at))
    return night


def workload(name: str = "job", **parts: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a workload
    source = {} if {"traces", "uploads"} & parts.keys() else {"metrics": f"{name}/*.json"}
    return {"name": name, "scenario": scenario(), **source, **parts}


class Scripted:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer or Answer(report=report(), session_id="5" * 32)
        self.later = self.answer
        """What a later night finds."""
        self.asked: list[dict[str, Any]] = []

    def run(self, workload: str, request: dict[str, Any]) -> Answer:
        self.asked.append({"workload": workload, **request})
        return self.answer

    def look(self, session_id: str) -> Answer | None:
        assert session_id == self.answer.session_id
        return self.later


def report(speedup: float = 1.3) -> dict[str, Any]:
    defaults = {"vpp": 1, "etp": 1, "sequence_parallel": False, "schedule": "1f1b"}
    plan = {**scenario()["plan"], **defaults, "zero_stage": 1, "dp_shard": 2}
    first = {
        "plan": plan, "speedup": speedup, "speedup_low": speedup - 0.1, "speedup_high": speedup + 0.1,
        "changes": [{"field": "dp_shard", "from": 1, "to": 2}], "rationale": "less of it",
    }  # fmt: skip
    return {"proposals": [first], "verdict": "It can be faster.", "first_step": "Measure it."}


def desk(database: Database, base: Path, again: Scripted | None = None, **parts: Any) -> Desk:  # noqa: ANN401
    settings = Settings(data_dir=base / "data", _env_file=None)
    return Desk(database, "", base, Uploads(settings), again, **parts)
