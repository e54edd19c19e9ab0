"""A scheduled night in `tune` mode, end to end: the regression is reported, its session measures plans with
the reference trainer on this machine, and the report names the session and how its trials ended.
"""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from graph.report import Report
from service.runtime import jobs_folder, open_context
from service.schedules.calendar import ScheduleSpec
from service.schedules.config import parse
from service.schedules.dispatch import night_queue, run_now
from service.schedules.store import create_schedule, get_run
from service.sessions.store import get_session
from tests.integration.launch.waiting import processes_of
from tests.integration.service.at_work import opened, settings_for, wait_for, working
from tests.integration.trials.conftest import REPO, TORCHRUN, scenario
from tests.unit.service.nightly.builders import add_night, add_nights

LONGEST_S = 420.0


def wasteful() -> dict[str, Any]:
    """Sixteen micro-batches of one sequence each: one of sixteen is several times as fast, which no noise of
    a busy machine hides. A gain of some percent is rightly not worth a trial on two steps of 50 ms.
    """
    described = scenario(recompute="full")
    return {**described, "training": {**described["training"], "global_batch_size": 32}}


def templates(folder: Path) -> Path:
    file = folder / "templates.toml"
    file.write_text(
        '[[template]]\nname = "reference"\nlauncher = "local"\nlimits = { wall_s = 240, devices = 2 }\n'
        f"workdir = {json.dumps(str(REPO))}\n"
        'environment = { OMP_NUM_THREADS = "1" }\nenvironment_inherited = ["PATH", "HOME", "PYTHONPATH"]\n'
        f"command = {json.dumps(TORCHRUN)}\n"
    )
    return file


@pytest.mark.slow
def test_a_scheduled_night_in_tune_mode_measures_plans_and_reports_them(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"session_trials": 2, "trial_steps": 5, "trial_runs": 1}
    settings = settings_for(tmp_path / "data", launch_templates=templates(tmp_path), **limits)
    add_nights(tmp_path / "job", range(9), data="d1")
    for night in (9, 10):
        add_night(tmp_path / "job", night, 2.5, data="d2")
    job = {"name": "job", "scenario": wasteful(), "metrics": str(tmp_path / "job" / "*.json")}
    given: dict[str, Any] = {
        "name": "tuned",
        "cron": "30 5 * * *",
        "workloads": [job],
        "mode": "tune",
        "template": "reference",
        "budget": {"trials": 2, "device_hours": 0.5},
    }
    with opened(settings) as desk, closing(night_queue(desk.database)) as queue:
        with desk.database.begin() as conn:
            create_schedule(conn, "", "anna", parse(ScheduleSpec, given), 0.0)
            run = run_now(conn, queue, "", "tuned")
        with working(settings, open_context(settings, saves_cases=False)):
            row = wait_for(lambda: _ended(desk.database, run.id), LONGEST_S)
        assert (row.state, row.outcome, row.reason) == ("completed", "regression", None)
        assert row.report is not None
        (result,) = row.report.workloads
        assert result.reoptimized is not None
        assert (result.reoptimized.reason, result.reoptimized.failure) == ("the step got slower", None)
        with desk.database.read() as conn:
            session = get_session(conn, "", str(result.reoptimized.session_id))
    trials = Report.model_validate(session.report).trials
    assert [trial.role for trial in trials if trial.step_time_s] == ["baseline", "candidate"]
    assert result.reoptimized.trials
    assert result.proposal is not None
    assert result.proposal.measured is not None
    assert result.proposal.plan.micro_batch_size > 1
    assert result.bisection is not None
    assert result.bisection.runs[0].revert == ["data d1 to d2"]
    assert processes_of(jobs_folder(settings)) == []


def _ended(database: Any, id: str) -> Any:  # noqa: ANN401 - a run that has ended
    with database.read() as conn:
        row = get_run(conn, "", id)
    return row if row.finished_at else None
