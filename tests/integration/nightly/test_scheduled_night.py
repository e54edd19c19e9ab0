"""Nights of schedules, on a real worker and queue: run once, handed back whole, seen in the fleet."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import service.schedules.review as one_workload
from service.db.engine import Database
from service.errors import NotFoundError
from service.jobs.worker import WorkerDeps
from service.jobs.workers import Lease
from service.schedules.calendar import ScheduleSpec
from service.schedules.config import parse
from service.schedules.dispatch import NightQueue, night_queue, run_now, tick
from service.schedules.model import RunRow
from service.schedules.night import night_jobs
from service.schedules.store import create_schedule, delete_schedule, get_run, list_runs, list_workloads
from service.schedules.usecases import fleet_of
from service.sessions.lifecycle import request_cancel
from service.sessions.store import SessionFilter, get_session, list_sessions, lock_session
from service.settings import Settings
from tests.integration.nightly.receivers import Hook
from tests.integration.service.at_work import opened, settings_for, wait_for, working
from tests.integration.service.fleet import Fleet
from tests.unit.service.nightly.builders import add_night, add_nights, workload


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    url = None if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    return settings_for(tmp_path / "data", url, webhook_secret="s", webhook_private=True)


@pytest.fixture
def local(tmp_path: Path) -> Settings:
    return settings_for(tmp_path / "data", webhook_secret="s", webhook_private=True)


@contextmanager
def office(settings: Settings) -> Iterator[tuple[Database, NightQueue]]:
    with opened(settings) as desk, closing(night_queue(desk.database)) as queue:
        yield desk.database, queue


def spec(base: Path, *names: str, **parts: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a schedule
    jobs = [workload(name, metrics=str(base / name / "*.json")) for name in names or ("job",)]
    for job in jobs:
        job["scenario"]["plan"]["recompute"] = "full"  # so that a faster plan is there
    return {"name": "nightly", "cron": "30 5 * * *", "workloads": jobs, "gain": 1.02, **parts}


def ask(database: Database, queue: NightQueue, given: dict[str, Any]) -> RunRow:
    with database.begin() as conn:
        create_schedule(conn, "", "anna", parse(ScheduleSpec, given), 0.0)
        return run_now(conn, queue, "", given["name"])


def ask_again(database: Database, queue: NightQueue) -> RunRow:
    with database.begin() as conn:
        return run_now(conn, queue, "", "nightly")


def look(database: Database, id: str) -> RunRow:
    with database.read() as conn:
        return get_run(conn, "", id)


def ended(database: Database, id: str) -> RunRow:
    return wait_for(lambda: row if (row := look(database, id)).finished_at else None)


def test_a_night_is_run_re_optimized_and_delivered(settings: Settings, tmp_path: Path) -> None:
    add_nights(tmp_path / "job", range(20), data="d1")
    add_night(tmp_path / "job", 20, 2.5, data="d2")
    with Hook() as hook, office(settings) as (database, queue):
        run = ask(database, queue, spec(tmp_path, recipients={"webhooks": [hook.url]}))
        with working(settings):
            row = ended(database, run.id)
        assert (row.state, row.outcome, row.reason, row.claims) == ("completed", "regression", None, 1)
        assert row.report is not None
        result: Any = row.report.workloads[0]
        assert (result.status, result.reoptimized.reason) == ("regressed", "the step got slower")
        assert len(hook.got) == 1
        with database.read() as conn:
            session = get_session(conn, "", result.proposal.session_id)
            fleet = fleet_of(conn, "")
    assert (session.state, session.owner) == ("completed", "anna")
    assert session.labels == {"schedule": "nightly", "workload": "job", "night": run.id}
    (line,) = fleet.workloads
    assert (line.row.name, line.row.status) == ("job", "regressed")
    assert (fleet.open_proposals, fleet.approvals_waiting) == (1, 0)
    assert line.row.wasted_device_hours_per_day >= line.result.lost_device_hours_per_day > 0
    assert len(line.result.step_times_s) == 21


def test_a_session_that_waits_for_a_person_does_not_hold_the_night(local: Settings, tmp_path: Path) -> None:
    add_nights(tmp_path / "job", range(3))
    with office(local) as (database, queue):
        run = ask(database, queue, spec(tmp_path, approval="person"))
        with working(local):
            row = ended(database, run.id)
            add_night(tmp_path / "job", 3)
            later = ended(database, ask_again(database, queue).id)
        assert row.report is not None
        assert later.report is not None
        proposal: Any = row.report.workloads[0].proposal
        assert later.report.workloads[0].proposal == proposal
        with database.begin() as conn:
            assert len(list_sessions(conn, "", SessionFilter())[0]) == 1
            fleet = fleet_of(conn, "")
            request_cancel(conn, lock_session(conn, proposal.session_id, tenant=""))
            after = fleet_of(conn, "")
    assert proposal.waits
    assert fleet.approvals_waiting == 1
    assert fleet.workloads[0].waiting_session_id == proposal.session_id
    assert after.approvals_waiting == 0


class Stop:
    """A worker that is told to stop after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def __call__(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def dispatch(
    settings: Settings, queue: NightQueue, run_id: str, number: int, stop: Callable[[], bool] | None = None
) -> None:
    """What a worker does with one dispatch of a night."""
    database = queue.database
    lease = Lease(database, settings.lease_s)
    lease.renew()
    deps = WorkerDeps(
        settings=settings,
        database=database,
        lease=lease,
        must_stop=stop or Stop(10**6),
        resources=ExitStack(),
    )
    with deps.resources:
        night_jobs(deps).run_dispatch(lease.worker, run_id, number)


def test_a_night_that_is_handed_back_loses_no_alarm_and_repeats_no_workload(
    settings: Settings, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        add_nights(tmp_path / name, range(20), data="d1")
        add_night(tmp_path / name, 20, 2.5, data="d2")
    with office(settings) as (database, queue):
        run = ask(database, queue, spec(tmp_path, "one", "two", reoptimize=False))
        dispatch(settings, queue, run.id, 1, Stop(0))
        handed_back = look(database, run.id)
        assert (handed_back.state, handed_back.dispatch_no, handed_back.report) == ("queued", 2, None)
        (tmp_path / "one").rename(tmp_path / "gone")  # what is done is not looked at again
        dispatch(settings, queue, run.id, 2)
        row = look(database, run.id)
    assert row.report is not None
    alarms = [(result.name, result.is_alarm) for result in row.report.workloads]
    assert alarms == [("one", True), ("two", True)]


def test_a_night_reads_nothing_outside_the_roots_though_a_link_leads_there(tmp_path: Path) -> None:
    root = tmp_path / "profiles"
    root.mkdir()
    add_nights(tmp_path / "private", range(3))
    (root / "job").symlink_to(tmp_path / "private")
    settings = settings_for(tmp_path / "data", trace_roots=(root,))
    with office(settings) as (database, queue):
        run = ask(database, queue, spec(root, reoptimize=False))
        dispatch(settings, queue, run.id, 1)
        row = look(database, run.id)
    assert row.report is not None
    (result,) = row.report.workloads
    assert (result.status, result.night) == ("broken", None)
    assert "matches nothing" in (result.reason or "")


def test_a_death_between_recording_and_delivering_loses_no_alarm_and_a_repetition_delivers_nothing(
    local: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise SystemExit

    add_nights(tmp_path / "job", range(20), data="d1")
    with Hook() as hook, office(local) as (database, queue):
        given = spec(tmp_path, reoptimize=False, recipients={"webhooks": [hook.url], "when": "alarm"})
        dispatch(local, queue, ask(database, queue, given).id, 1)
        add_night(tmp_path / "job", 20, 2.5, data="d2")
        run = ask_again(database, queue)
        with monkeypatch.context() as patch:
            patch.setattr(one_workload, "_store", die)
            with pytest.raises(SystemExit):
                dispatch(local, queue, run.id, 1)
        dispatch(local, queue, run.id, 1)
        dispatch(local, queue, run.id, 1)  # a repeated workflow finds the run ended
        row = look(database, run.id)
    assert (row.state, row.outcome, row.claims) == ("completed", "regression", 2)
    assert len(hook.got) == 1


@pytest.mark.parametrize("is_running", [False, True])
def test_a_schedule_that_is_removed_while_it_runs_ends_quietly(
    is_running: bool, local: Settings, tmp_path: Path
) -> None:
    add_nights(tmp_path / "job", range(3))
    states: list[str] = []
    with office(local) as (database, queue):

        def remove() -> bool:
            """Once, at the first look of the worker whether it must stop."""
            if not states:
                states.append(look(database, run.id).state)
                with database.begin() as conn:
                    delete_schedule(conn, "", "nightly")
            return False

        run = ask(database, queue, spec(tmp_path, reoptimize=False))
        if is_running:
            dispatch(local, queue, run.id, 1, remove)
        else:
            remove()
            dispatch(local, queue, run.id, 1)
        assert states == ["running" if is_running else "queued"]
        with pytest.raises(NotFoundError):
            look(database, run.id)


def test_the_clock_of_a_worker_queues_and_runs_what_was_missed(local: Settings, tmp_path: Path) -> None:
    add_nights(tmp_path / "job", range(3))
    with office(local) as (database, queue):
        with database.begin() as conn:
            given = spec(tmp_path, cron="* * * * *", reoptimize=False)
            row = create_schedule(conn, "", "anna", parse(ScheduleSpec, given), 1.79e9)
        with working(local):
            found = wait_for(lambda: _last_completed(database, row.id))
        again = tick(database, queue, found.planned_at + 1)
    assert found.outcome == "quiet"
    assert again == []


def _last_completed(database: Database, schedule_id: str) -> RunRow | None:
    with database.read() as conn:
        runs, _ = list_runs(conn, "", schedule_id)
    return next((run for run in runs if run.state == "completed"), None)


@pytest.mark.slow
def test_a_night_whose_workers_are_killed_ends_once(tmp_path: Path, postgres_url: str) -> None:
    names = [f"job{number}" for number in range(10)]
    for name in names:
        add_nights(tmp_path / name, range(20), data="d1")
        add_night(tmp_path / name, 20, 2.5, data="d2")
    settings = settings_for(tmp_path / "data", postgres_url)
    with office(settings) as (database, queue):
        fleet = Fleet(tmp_path, 2, postgres_url)
        try:
            run = ask(database, queue, spec(tmp_path, *names))
            for done in (1, 4, 7):
                wait_for(partial(_have_said, database, done))
                fleet.kill(wait_for(lambda: _whose(fleet, look(database, run.id)))[0])
            row = ended(database, run.id)
        finally:
            fleet.end()
        with database.read() as conn:
            found, _ = list_sessions(conn, "", SessionFilter(labels={"night": run.id}))
    assert (row.state, row.outcome) == ("completed", "regression")
    assert row.claims > 3, "each of three workers was killed while it had the night"
    assert row.report is not None
    assert sorted(result.name for result in row.report.workloads if result.is_alarm) == names
    assert len(row.report.workloads) == len(names)
    assert sorted(session.labels["workload"] for session in found) == names


def _whose(fleet: Fleet, run: RunRow) -> list[int]:
    """The worker that has claimed this night and still runs."""
    assert run.finished_at is None, "it was over before the kill"
    return [number for number, one in enumerate(fleet.processes) if f"-{one.pid}-" in str(run.worker)]


def _have_said(database: Database, count: int) -> bool:
    with database.read() as conn:
        return len(list_workloads(conn, "")) >= count
