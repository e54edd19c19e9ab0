"""Nights are queued once: by several replicas, after a loss, with a clock that jumps; both databases."""

import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from service.db.engine import open_database
from service.errors import ConflictError, FencedError
from service.jobs.engine import prepare
from service.schedules import store as db
from service.schedules.dispatch import NIGHTS, NightQueue, delete_old_runs, night_queue, run_now, tick
from service.schedules.model import RunRow, ScheduleRow
from service.settings import Settings
from tests.unit.service.nightly.builders import DAY_S, DUE, schedule, workload


def _prepare(settings: Settings) -> None:
    with closing(open_database(settings.database)) as opened:
        prepare(settings, opened)


@pytest.fixture(scope="session")
def prepared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    _prepare(Settings(data_dir=folder, _env_file=None))
    return folder


@pytest.fixture(scope="session")
def prepared_server(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """With a database that others are copied from."""
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(b"CREATE DATABASE prepared_nights")
    url = postgres_server.replace("/postgres?", "/prepared_nights?", 1)
    _prepare(Settings(data_dir=tmp_path_factory.mktemp("pg"), database_url=url, _env_file=None))
    return postgres_server


@pytest.fixture
def server_copy(prepared_server: str) -> Iterator[str]:
    name = f"n{uuid.uuid4().hex}"
    with psycopg.connect(prepared_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE prepared_nights".encode())
        yield prepared_server.replace("/postgres?", f"/{name}?", 1)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(params=["sqlite", "postgresql"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NightQueue]:
    url = None
    if request.param == "sqlite":
        shutil.copytree(request.getfixturevalue("prepared_folder"), tmp_path / "data")
    else:
        url = str(request.getfixturevalue("server_copy"))
    settings = Settings(data_dir=tmp_path / "data", database_url=url, _env_file=None)
    with closing(open_database(settings.database)) as opened, closing(night_queue(opened)) as queue:
        yield queue


def make(
    queue: NightQueue, name: str = "nightly", tenant: str = "", jobs: tuple[str, ...] = (), **parts: object
) -> ScheduleRow:
    workloads = [workload(job, metrics="/nowhere/*.json") for job in jobs or (f"job-{name}",)]
    spec = schedule(name=name, workloads=workloads, **parts)
    with queue.database.begin() as conn:
        return db.create_schedule(conn, tenant, "anna", spec, DUE - 3600)


def tick_at(queue: NightQueue, moment_s: float) -> list[RunRow]:
    return tick(queue.database, queue, moment_s)


def first_night(queue: NightQueue) -> tuple[ScheduleRow, RunRow]:
    schedule = make(queue)
    (run,) = tick_at(queue, DUE + 1)
    return schedule, run


def list_runs(queue: NightQueue, schedule: ScheduleRow) -> list[RunRow]:
    with queue.database.read() as conn:
        return db.list_runs(conn, schedule.tenant, schedule.id)[0]


def test_several_replicas_queue_a_night_once(queue: NightQueue) -> None:
    schedules = [make(queue, f"s{number}") for number in range(3)]
    with ThreadPoolExecutor(6) as replicas:
        ticks = list(replicas.map(lambda _: tick_at(queue, DUE + 1), range(12)))
    # A replica that finds a schedule locked leaves it to the other; each looks again at the next tick.
    runs = [run for queued in [*ticks, tick_at(queue, DUE + 6)] for run in queued]
    assert sorted(run.schedule_id for run in runs) == sorted(schedule.id for schedule in schedules)
    assert all(len(list_runs(queue, schedule)) == 1 for schedule in schedules)


def test_a_night_is_queued_under_its_own_name_and_not_again_when_the_clock_is_set_back(
    queue: NightQueue,
) -> None:
    schedule, run = first_night(queue)
    assert (run.state, run.trigger, run.planned_at) == ("queued", "cron", DUE)
    assert queue.unfinished([NIGHTS.workflow_id(run.id, 1)]) == {NIGHTS.workflow_id(run.id, 1)}
    for moment_s in (DUE - 7200, DUE - 60, DUE + 2, DUE + 3):
        assert tick_at(queue, moment_s) == []
    assert len(list_runs(queue, schedule)) == 1


def test_a_paused_schedule_queues_nothing_and_a_resumed_one_begins_now(queue: NightQueue) -> None:
    schedule = make(queue)
    with queue.database.begin() as conn:
        assert db.pause(conn, "", schedule.id).state == "paused"
    assert tick_at(queue, DUE + 1) == []
    with queue.database.begin() as conn:
        db.resume(conn, "", schedule.id, DUE + 3 * DAY_S + 60)
    assert tick_at(queue, DUE + 3 * DAY_S + 61) == []
    assert [run.planned_at for run in tick_at(queue, DUE + 4 * DAY_S)] == [DUE + 4 * DAY_S]


def test_a_schedule_that_cannot_be_read_shows_why_and_the_others_run(queue: NightQueue) -> None:
    broken, good = make(queue, "broken", cron="99 5 * * *"), make(queue, "good")
    assert [run.schedule_id for run in tick_at(queue, DUE + 1)] == [good.id]
    with queue.database.read() as conn:
        assert str(db.get_schedule(conn, "", broken.id).reason).startswith("cron: got '99 5 * * *'")


def test_a_manual_run_starts_though_paused_and_in_a_blackout(queue: NightQueue) -> None:
    schedule = make(queue, blackouts=[{"from": "00:00", "to": "23:59"}])
    with queue.database.begin() as conn:
        db.pause(conn, "", schedule.id)
        first, second = (run_now(conn, queue, "", schedule.name) for _ in range(2))
    assert first.id != second.id
    assert (first.trigger, first.state) == ("manual", "queued")


def test_of_two_workers_that_claim_a_run_the_first_can_write_no_more(queue: NightQueue) -> None:
    _, run = first_night(queue)
    with queue.database.begin() as conn:
        first, second = (NIGHTS.claim(conn, run.id, worker, 1) for worker in ("w1", "w2"))
    assert first is not None
    assert second is not None
    with queue.database.begin() as conn, pytest.raises(FencedError):
        db.set_run(conn, first, state="completed")
    with queue.database.begin() as conn:
        db.set_run(conn, second, state="completed")
        assert NIGHTS.claim(conn, run.id, "w3", 1) is None


def test_a_workload_belongs_to_one_schedule_of_its_tenant(queue: NightQueue) -> None:
    """Its history is stored under its name, and survives its schedule."""
    first = make(queue, "first", jobs=("job",))
    with pytest.raises(ConflictError, match="'first' already, and its history") as refused:
        make(queue, "second", jobs=("other", "job"))
    assert refused.value.path == "workloads[1].name"
    make(queue, "second", tenant="b", jobs=("job",))
    with queue.database.begin() as conn:
        db.delete_schedule(conn, "", first.id)
    assert make(queue, "second", jobs=("job",)).name == "second"


def test_of_schedules_with_one_workload_added_at_once_one_is_kept(queue: NightQueue) -> None:
    def add(number: int) -> bool:
        try:
            make(queue, f"s{number}", jobs=("job",))
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(6) as people:
        assert sum(people.map(add, range(6))) == 1


def test_old_runs_are_deleted_and_those_under_way_are_not(queue: NightQueue) -> None:
    schedule, first = first_night(queue)
    with queue.database.begin() as conn:
        claimed = NIGHTS.claim(conn, first.id, "w", 1)
        assert claimed is not None
        db.set_run(conn, claimed, state="completed")
    tick_at(queue, DUE + DAY_S + 1)
    delete_old_runs(queue, -1000 * DAY_S)  # whatever today is, both were planned long before
    assert [run.planned_at for run in list_runs(queue, schedule)] == [DUE + DAY_S]
    assert tick_at(queue, DUE + DAY_S + 2) == []
