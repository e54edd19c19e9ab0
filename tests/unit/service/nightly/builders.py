"""Workloads whose nights are metrics files, and a session with scripted answers."""

import json
import os
import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from graph.report import Report, Stopping
from service.db.engine import Database
from service.schedules.calendar import ScheduleSpec
from service.schedules.config import Policy, parse
from service.schedules.model import WorkloadRow
from service.schedules.reoptimize import SessionAnswer
from service.schedules.review import NightContext, run_workload
from service.schedules.store import list_nights, set_workload
from service.settings import Settings
from service.traces.uploads import Uploads
from tools.nightly.night import Night, StatedWorkload
from tools.nightly.result import NightResult
from tools.recommend.report import Change, MeasuredPlan, Proposal
from tools.scenario import Plan

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
BASE = EXAMPLES / "traces/gpt-ddp-gloo"
DAY_S = 86_400.0
FIRST_S = 1_790_000_000.0
DUE = datetime(2026, 11, 16, 5, 30, tzinfo=UTC).timestamp()
"""A time at which `schedule` has a night."""
PATTERN = (0.3, -0.8, 0.5, -0.2, 0.9, -0.6, 0.1, -0.4, 0.7, -0.5)


def scenario() -> dict[str, Any]:
    described: dict[str, Any] = json.loads((BASE / "base.json").read_text())
    return described


def wobble(number: int, level_s: float) -> float:
    return level_s * (1 + 0.01 * PATTERN[number % len(PATTERN)])


def add_night(folder: Path, number: int, level_s: float = 2.0, **content: Any) -> None:  # noqa: ANN401 - any JSON
    """Each a day later, as a job that logs would leave it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:03}.json"
    path.write_text(json.dumps({"night": number, "step_times_s": [wobble(number, level_s)] * 3, **content}))
    set_time(path, number)


def add_nights(folder: Path, numbers: range, level_s: float = 2.0, **content: Any) -> None:  # noqa: ANN401 - any JSON
    for number in numbers:
        add_night(folder, number, level_s, **content)


def set_time(path: Path, number: int) -> None:
    at = FIRST_S + number * DAY_S
    os.utime(path, (at, at))


def add_profile(folder: Path, number: int) -> None:
    night = Path(shutil.copytree(BASE / "round4/base", folder / f"{number:03}"))
    for file in night.iterdir():
        set_time(file, number)


def add_trace(folder: Path, number: int, step_us: float) -> None:
    """A night of a job with one rank: four marked steps, a matrix product in each."""
    path = folder / f"{number:03}" / "rank0.json"
    path.parent.mkdir(parents=True)
    events: list[dict[str, Any]] = []
    for step in range(4):
        start = 1000 + step * step_us
        mark = {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1}
        work = {"cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}
        events += [
            {"ph": "X", "ts": start, "dur": step_us, **mark},
            {"ph": "X", "ts": start, "dur": wobble(number, 0.9 * step_us), **work},
        ]
    path.write_text(json.dumps({"traceEvents": events}))
    set_time(path, number)


def workload(name: str = "job", **parts: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a workload
    source = {} if {"traces", "uploads"} & parts.keys() else {"metrics": f"{name}/*.json"}
    return {"name": name, "scenario": scenario(), **source, **parts}


class ScriptedReoptimizer:
    """Returns a scripted answer, and records its requests."""

    def __init__(self, answer: SessionAnswer | None = None) -> None:
        self.answer = answer or SessionAnswer(report=report(), session_id="5" * 32)
        self.later = self.answer
        """What a later night finds."""
        self.requests: list[dict[str, Any]] = []

    def run(self, workload: str, request: StatedWorkload) -> SessionAnswer:
        self.requests.append({"workload": workload, **request})
        return self.answer

    def look(self, session_id: str) -> SessionAnswer | None:
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


def policy(*workloads: dict[str, Any], **options: Any) -> Policy:  # noqa: ANN401 - fields of a policy
    return parse(Policy, {"workloads": list(workloads) or [workload()], "reoptimize": False, **options})


@dataclass
class Nights:
    """The nights of a job, in the folder `job`; what runs them is set by the test."""

    database: Database
    base: Path
    policy: Policy = field(default_factory=policy)
    reoptimizer: ScriptedReoptimizer = field(default_factory=ScriptedReoptimizer)

    @property
    def folder(self) -> Path:
        return self.base / "job"

    @property
    def context(self) -> NightContext:
        uploads = Uploads(Settings(data_dir=self.base / "data", _env_file=None))
        return NightContext(self.database, "", self.base, uploads, self.reoptimizer)

    def add(self, numbers: range, level_s: float = 2.0, **content: Any) -> None:  # noqa: ANN401 - any JSON
        add_nights(self.folder, numbers, level_s, **content)

    def run(self) -> Any:  # noqa: ANN401 - a NightResult whose optional parts a test knows
        return run_workload(self.context, self.policy.workloads[0], self.policy)

    def stored(self, tenant: str = "") -> list[Night]:
        with self.database.read() as conn:
            return list_nights(conn, tenant, "job")


def schedule_body(**parts: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a schedule
    jobs = [workload(metrics="/nowhere/*.json")]
    return {"name": "nightly", "cron": "30 5 * * *", "workloads": jobs, **parts}


def schedule(**parts: Any) -> ScheduleSpec:  # noqa: ANN401 - fields of a schedule
    return parse(ScheduleSpec, schedule_body(**parts))


def store_workload(conn: sa.Connection, name: str, wasted: float, status: str, result: NightResult) -> None:
    row = WorkloadRow(
        tenant="",
        name=name,
        status=status,
        reason=result.reason,
        wasted_device_hours_per_day=wasted,
        updated_at=1.79e9,
        run_id=None,
        session_id=None,
        outcome=result,
    )
    set_workload(conn, row)
