"""Nights are booked once: by several replicas at once, again after a restart, with a clock that jumps."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from service.db.engine import Database
from service.db.schedules import (
    MAX_CLAIMS,
    RunRow,
    ScheduleRow,
    claim_run,
    create_schedule,
    delete_schedule,
    get_run,
    get_schedule,
    is_busy,
    last_runs,
    list_runs,
    list_schedules,
    next_dispatch,
    pause,
    resume,
    set_run,
)
from service.errors import ConflictError, FencedError, NotFoundError
from service.nightly.dispatch import NIGHTS, NightQueue, delete_old_runs, run_now, tick
from service.worker.jobs import reconcile
from tests.unit.service.nightly.schedules.builders import body, job, utc

NIGHT = utc(2026, 11, 16, 5, 30)
DAY_S = 86_400.0


def make(database: Database, tenant: str = "", name: str = "nightly", **parts: object) -> ScheduleRow:
    definition = body(**{"name": name, "workloads": [job(f"job-{name}")], **parts})
    with database.begin() as conn:
        return create_schedule(conn, tenant, "anna", name, definition, NIGHT - 3600)


def runs(database: Database, schedule: ScheduleRow) -> list[RunRow]:
    with database.read() as conn:
        return list_runs(conn, schedule.tenant, schedule.id)[0]


def test_several_replicas_book_a_night_once(database: Database, queue: NightQueue) -> None:
    schedules = [make(database, name=f"s{number}") for number in range(3)]
    with ThreadPoolExecutor(6) as replicas:
        queued = list(replicas.map(lambda _: tick(database, queue, NIGHT + 1), range(12)))
    booked = [run for some in queued for run in some]
    # One that finds a schedule locked leaves it to whoever holds it: look again, as every replica does.
    booked += tick(database, queue, NIGHT + 6)
    assert sorted(run.schedule_id for run in booked) == sorted(one.id for one in schedules)
    assert all(len(runs(database, one)) == 1 for one in schedules)


def test_a_clock_that_is_set_back_books_nothing_again(database: Database, queue: NightQueue) -> None:
    schedule = make(database)
    assert len(tick(database, queue, NIGHT + 1)) == 1
    for moment_s in (NIGHT - 7200, NIGHT - 60, NIGHT + 2, NIGHT + 3):
        assert tick(database, queue, moment_s) == []
    assert len(runs(database, schedule)) == 1


def test_what_is_booked_is_queued_under_the_runs_own_name(database: Database, queue: NightQueue) -> None:
    make(database)
    (run,) = tick(database, queue, NIGHT + 1)
    assert queue.unfinished([NIGHTS.workflow_id(run.id, 1)]) == {NIGHTS.workflow_id(run.id, 1)}
    assert (run.state, run.trigger, run.planned_at) == ("queued", "cron", NIGHT)


def test_skipped_nights_are_kept_with_their_reason(database: Database, queue: NightQueue) -> None:
    schedule = make(database)
    tick(database, queue, NIGHT + 1)
    assert tick(database, queue, NIGHT + DAY_S) == []  # the first is still queued
    told = [(run.planned_at, run.state, run.reason) for run in runs(database, schedule)]
    assert told == [
        (NIGHT + DAY_S, "skipped", "the run before was still under way"),
        (NIGHT, "queued", None),
    ]


def test_a_paused_schedule_sleeps_and_a_resumed_one_begins_now(database: Database, queue: NightQueue) -> None:
    schedule = make(database)
    with database.begin() as conn:
        assert pause(conn, "", schedule.id).state == "paused"
    assert tick(database, queue, NIGHT + 1) == []
    with database.begin() as conn:
        resume(conn, "", schedule.id, NIGHT + 3 * DAY_S + 60)
    assert tick(database, queue, NIGHT + 3 * DAY_S + 61) == []
    (run,) = tick(database, queue, NIGHT + 4 * DAY_S)
    assert run.planned_at == NIGHT + 4 * DAY_S


def test_a_schedule_that_cannot_be_read_shows_why_and_the_others_run(
    database: Database, queue: NightQueue
) -> None:
    broken, good = make(database, name="broken", cron="99 5 * * *"), make(database, name="good")
    assert [run.schedule_id for run in tick(database, queue, NIGHT + 1)] == [good.id]
    with database.read() as conn:
        shown = get_schedule(conn, "", broken.id)
    assert shown.reason is not None
    assert shown.reason.startswith("cron: got '99 5 * * *'")


def test_a_run_by_hand_needs_no_clock(database: Database, queue: NightQueue) -> None:
    schedule = make(database, blackouts=[{"from": "00:00", "to": "23:59"}])
    with database.begin() as conn:
        pause(conn, "", schedule.id)
        first, second = (run_now(conn, queue, "", schedule.name) for _ in range(2))
    assert first.id != second.id
    assert (first.trigger, first.state) == ("manual", "queued")


def test_of_two_workers_that_claim_a_run_the_first_can_write_no_more(
    database: Database, queue: NightQueue
) -> None:
    make(database)
    (run,) = tick(database, queue, NIGHT + 1)
    with database.begin() as conn:
        first = claim_run(conn, run.id, "w1", 1)
        second = claim_run(conn, run.id, "w2", 1)
    assert first is not None
    assert second is not None
    with database.begin() as conn, pytest.raises(FencedError):
        set_run(conn, first, state="completed")
    with database.begin() as conn:
        set_run(conn, second, state="completed")
        assert claim_run(conn, run.id, "w3", 1) is None


def test_a_run_that_kills_its_workers_ends(database: Database, queue: NightQueue) -> None:
    make(database)
    (run,) = tick(database, queue, NIGHT + 1)
    for _ in range(MAX_CLAIMS):
        with database.begin() as conn:
            assert claim_run(conn, run.id, "w", 1)
    with database.begin() as conn:
        assert claim_run(conn, run.id, "w", 1) is None
        assert get_run(conn, "", run.id).state == "failed"


def test_a_lost_workflow_is_queued_again_once(database: Database, queue: NightQueue) -> None:
    make(database)
    (run,) = tick(database, queue, NIGHT + 1)
    queue.forget([(run.id, 1)])
    assert reconcile(queue, quiet_s=-60) == [run.id]
    assert reconcile(queue, quiet_s=-60) == []  # its new workflow is there
    with database.read() as conn:
        assert get_run(conn, "", run.id).dispatch_no == 2
    with database.begin() as conn:
        assert claim_run(conn, run.id, "w", 1) is None  # the old dispatch_no is over
        assert next_dispatch(conn, run.id, 1) is None


def test_names_are_a_tenants_own(database: Database) -> None:
    make(database, tenant="a")
    make(database, tenant="b")
    with pytest.raises(ConflictError, match="already"):
        make(database, tenant="a")
    with database.read() as conn:
        assert len(list_schedules(conn, "a")[0]) == 1
        with pytest.raises(NotFoundError):
            get_schedule(conn, "c", "nightly")


def test_a_workload_belongs_to_one_schedule_of_its_tenant(database: Database) -> None:
    """Its history is kept under its name, and survives its schedule."""
    first = make(database, name="first", workloads=[job()])
    with pytest.raises(ConflictError, match="'first' already, and its history") as refused:
        make(database, name="second", workloads=[job("other"), job()])
    assert refused.value.field == "workloads[1].name"
    make(database, tenant="b", name="second", workloads=[job()])
    with database.begin() as conn:
        delete_schedule(conn, "", first.id)
    assert make(database, name="second", workloads=[job()]).name == "second"


def test_of_schedules_with_one_workload_added_at_once_one_is_kept(database: Database) -> None:
    def add(number: int) -> bool:
        try:
            make(database, name=f"s{number}", workloads=[job()])
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(6) as people:
        assert sum(people.map(add, range(6))) == 1


def test_a_removed_schedule_takes_its_runs_along(database: Database, queue: NightQueue) -> None:
    schedule = make(database)
    (run,) = tick(database, queue, NIGHT + 1)
    with database.begin() as conn:
        assert is_busy(conn, schedule.id)
        delete_schedule(conn, "", schedule.name)
        assert last_runs(conn, [schedule.id]) == {}
        assert claim_run(conn, run.id, "w", 1) is None
        with pytest.raises(NotFoundError):
            get_run(conn, "", run.id)


def test_pages_of_schedules_and_runs_are_walked(database: Database, queue: NightQueue) -> None:
    schedule = make(database)
    make(database, name="second")
    with database.begin() as conn:
        for _ in range(5):
            run_now(conn, queue, "", schedule.id)
    with database.read() as conn:
        first, cursor = list_runs(conn, "", schedule.id, limit=3)
        rest, end = list_runs(conn, "", schedule.id, cursor, limit=3)
        page, following = list_schedules(conn, "", limit=1)
        last, none = list_schedules(conn, "", following, limit=1)
    assert (len(first), len(rest), end) == (3, 2, None)
    assert [one.name for one in [*page, *last]] == ["second", "nightly"]
    assert none is None


def test_old_runs_are_forgotten_and_those_under_way_are_not(database: Database, queue: NightQueue) -> None:
    schedule = make(database)
    (first,) = tick(database, queue, NIGHT + 1)
    with database.begin() as conn:
        claimed = claim_run(conn, first.id, "w", 1)
        assert claimed is not None
        set_run(conn, claimed, state="completed")
    tick(database, queue, NIGHT + DAY_S + 1)
    delete_old_runs(queue, -1000 * DAY_S)  # whatever today is, both were planned long before
    assert [run.planned_at for run in runs(database, schedule)] == [NIGHT + DAY_S]
    assert tick(database, queue, NIGHT + DAY_S + 2) == []
