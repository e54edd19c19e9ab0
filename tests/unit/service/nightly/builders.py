"""Workloads whose nights are metrics files, and a session with scripted answers."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from graph.report import Report, Stopping
from service.db.engine import Database
from service.nightly.reoptimize import Answer, WaitingProposal
from service.nightly.review import NightContext
from service.settings import Settings
from service.traces import Uploads
from tools.nightly.night import Described
from tools.nightly.result import BestPlan
from tools.recommend.report import Change, MeasuredPlan, Proposal
from tools.scenario import Plan

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
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


class ScriptedReoptimizer:
    """Returns a scripted answer, and records its requests."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer or Answer(report=report(), session_id="5" * 32)
        self.later = self.answer
        """What a later night finds."""
        self.requests: list[dict[str, Any]] = []

    def run(self, workload: str, request: Described) -> Answer:
        self.requests.append({"workload": workload, **request})
        return self.answer

    def look(self, session_id: str) -> Answer | None:
        assert session_id == self.answer.session_id
        return self.later


def faster_plan() -> Plan:
    defaults = {"vpp": 1, "etp": 1, "sequence_parallel": False, "schedule": "1f1b"}
    return Plan.model_validate({**scenario()["plan"], **defaults, "zero_stage": 1, "dp_shard": 2})


def proposal(speedup: float = 1.3, measured_speedup: float | None = None) -> Proposal:
    measured: dict[str, Any] = {"speedup": measured_speedup, "speedup_low": None, "speedup_high": None}
    content: dict[str, Any] = {"rank": 1, "plan": faster_plan()}
    return Proposal.model_construct(
        **content,
        speedup=speedup,
        speedup_low=speedup - 0.1,
        speedup_high=speedup + 0.1,
        changes=[Change.model_validate({"field": "dp_shard", "from": 1, "to": 2})],
        rationale="less of it",
        measured=MeasuredPlan.model_construct(**measured) if measured_speedup else None,
    )


def report(*proposals: Proposal, stopping: str | None = None, **parts: Any) -> Report:  # noqa: ANN401
    """Only what a night reads of it."""
    content: dict[str, Any] = {"proposals": list(proposals) or [proposal()], "decisions": [], **parts}
    content |= {"verdict": "It can be faster.", "first_step": "Measure it."}
    reason: dict[str, Any] = {"says": stopping}
    content["stopping"] = Stopping.model_construct(**reason) if stopping else None
    return Report.model_construct(**content)


def waiting(session_id: str | None = None) -> Answer:
    return Answer(waiting_for=[WaitingProposal(rank=1, plan=faster_plan())], session_id=session_id)


def fast(_described: Described, _previous: BestPlan | None) -> BestPlan:
    """In place of a search."""
    return BestPlan(asked="x", plan=faster_plan(), speedup=1.3)


def context(
    database: Database,
    base: Path,
    reoptimizer: ScriptedReoptimizer | None = None,
    **parts: Any,  # noqa: ANN401 - fields of a context
) -> NightContext:
    settings = Settings(data_dir=base / "data", _env_file=None)
    return NightContext(database, "", base, Uploads(settings), reoptimizer, **parts)
