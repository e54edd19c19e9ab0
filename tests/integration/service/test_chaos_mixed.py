"""Everything at once, on both stores: sessions, trials and nights of two tenants under kills, pauses beyond
the lease, a restarted database, a full disk, bombs among the traces, an evil language model and training
programs that hang. Every job ends exactly once and nothing is left running.
"""

import errno
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
import sqlalchemy as sa

from service.db.models import BUSY, RUNNING, sessions
from service.db.schedules import create_schedule, get_run, list_nights
from service.nightly.dispatch import night_queue, run_now
from service.settings import Settings
from service.worker.jobs import EMBEDDED
from tests.integration.launch.waiting import processes_of
from tests.integration.llm.test_evil_endpoint import BEHAVIOURS, serving
from tests.integration.service.at_work import TINY, Desk, assert_whole, opened, settings_for, wait_for
from tests.integration.service.fleet import Fleet
from tests.integration.service.test_chaos import MAX_S, fleet_of, with_trials
from tests.servers import running_postgres
from tests.unit.service.nightly.builders import add_nights, workload
from tests.unit.trace.bombs import BOMBS

pytestmark = pytest.mark.slow

LEASE_S = 4.0
"""A machine that other work keeps busy must not lose it for that alone."""
MIXED = ("endless view", "crossed tables", "view of endless rows", "computed column")
EVIL = ("trickles headers", "negative usage", "thinks for ever", "closes at once")
TENANTS = ("", "other")
JOBS = 150
KINDS = ("session", "bomb", "session", "night", "session", "trial", "session", "session", "session", "trial")
"""Of the jobs, in turn."""
NIGHTS_EACH = 5
DISK_BYTES = 192 << 20
FULL_S = 4.0


@dataclass
class Jobs:
    sessions: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By id: kind and tenant."""
    nights: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By id of the run: workload and tenant."""


@contextmanager
def evil_model() -> Iterator[dict[str, str]]:
    """Settings of workers whose language model behaves in one evil way after another."""
    chance = random.Random(7)
    with serving(lambda send: BEHAVIOURS[chance.choice(EVIL)](send)) as url:
        yield {
            "ASAP_LLM_BASE_URL": url,
            "ASAP_LLM_MODEL": "evil",
            "ASAP_LLM_TIMEOUT_S": "0.5",
            "ASAP_LLM_DEADLINE_S": "1",
            "ASAP_SESSION_TRIALS": "3",
            "ASAP_LEASE_S": str(LEASE_S),
        }


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of its own, which can be filled; None where this user may not mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        print("no full disk: only root may mount one")
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_for_a_while(disk: Path) -> None:
    ballast = disk / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
    except OSError as error:
        assert error.errno == errno.ENOSPC  # noqa: PT017 - what is wanted
    time.sleep(FULL_S)
    ballast.unlink()


def submit(desk: Desk, folder: Path) -> Jobs:
    jobs = Jobs()
    with closing(night_queue(desk.database)) as queue:
        for number in range(JOBS):
            kind, tenant = KINDS[number % len(KINDS)], TENANTS[number // 3 % 2]
            if kind == "night":
                name = f"job{number}"
                add_nights(folder / name, range(NIGHTS_EACH))
                given: dict[str, Any] = {
                    "name": name,
                    "cron": "30 5 * * *",
                    "gain": 1.02,
                    "workloads": [_job(folder, name)],
                }
                with desk.database.begin() as conn:
                    create_schedule(conn, tenant, "anna", name, given, 0.0)
                    jobs.nights[run_now(conn, queue, tenant, name).id] = (name, tenant)
            else:
                id = desk.submit(tenant=tenant, **_request(folder / f"traces{number}", kind, number))
                jobs.sessions[id] = (kind, tenant)
    return jobs


def _job(folder: Path, name: str) -> dict[str, Any]:
    job = workload(name, metrics=str(folder / name / "*.json"))
    job["scenario"]["plan"]["recompute"] = "full"  # so that a faster plan is there, and a session for it
    return job


def _request(folder: Path, kind: str, number: int) -> dict[str, Any]:
    if kind == "trial":
        return {"request": {**TINY, "mode": "tune"}, "mode": "tune"}
    if kind == "session":
        return {"request": TINY}
    folder.mkdir()
    bomb = BOMBS[MIXED[number // len(KINDS) % len(MIXED)]](folder)
    copyfile(bomb, folder / "rank1.sqlite")
    return {"request": {**TINY, "traces": str(folder)}}


def disturb(
    desk: Desk, fleet: Fleet, faults: int, is_busy: Callable[[], bool], others: list[Callable[[], None]]
) -> Counter[str]:
    """Kills and pauses in turn, of workers that have work, and what else there is after each second one."""
    chance, done = random.Random(5), Counter[str]()
    while done.total() < faults and is_busy():
        if not wait_for(lambda: at_work(desk, fleet) or not is_busy(), MAX_S) or not is_busy():
            break
        time.sleep(chance.uniform(0.2, 2.0))
        number = chance.choice(at_work(desk, fleet) or range(len(fleet.processes)))
        if done.total() % 3 == 2:
            fleet.processes[number].send_signal(signal.SIGSTOP)
            time.sleep(1.5 * LEASE_S)
            fleet.processes[number].send_signal(signal.SIGCONT)
            done["pauses"] += 1
        else:
            fleet.kill(number)
            done["kills"] += 1
        if others and done.total() % 4 == 2:
            other = others[done.total() // 4 % len(others)]
            other()
            done[other.__name__] += 1
    return done


def at_work(desk: Desk, fleet: Fleet) -> list[int]:
    """The workers that run a session: on PostgreSQL their names hold the process, on SQLite there is one."""
    with desk.database.read() as conn:
        named = conn.scalars(sa.select(sessions.c.worker).where(sessions.c.state == RUNNING)).all()
    pids = [str(process.pid) for process in fleet.processes]
    return [
        number
        for number, pid in enumerate(pids)
        if any(name == EMBEDDED or f"-{pid}-" in str(name) for name in named)
    ]


def orphaned_readers() -> list[int]:
    """Readers whose worker is gone: they belong to the first process then."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, status = (folder / "cmdline").read_bytes(), (folder / "status").read_text()
        except OSError:
            continue
        if b"tools.trace.isolate" in command and "\nPPid:\t1\n" in status:
            found.append(int(folder.name))
    return found


def survive(desk: Desk, fleet: Fleet, folder: Path, ledger: Path, others: list[Callable[[], None]]) -> None:
    start_s = time.monotonic()
    jobs = submit(desk, folder)

    def busy() -> bool:
        return any(desk.row(id, tenant).state in BUSY for id, (_, tenant) in jobs.sessions.items()) or any(
            run.finished_at is None for run in runs(desk, jobs)
        )

    faults = disturb(desk, fleet, JOBS // 6, busy, others)
    wait_for(lambda: not busy(), MAX_S)
    states = Counter(
        f"{kind} {desk.row(id, tenant).state}" for id, (kind, tenant) in jobs.sessions.items()
    ) + Counter(f"night {run.state}" for run in runs(desk, jobs))
    claims = sum(desk.row(id, tenant).claims for id, (_, tenant) in jobs.sessions.items())
    claims += sum(run.claims for run in runs(desk, jobs))
    launched = ledger.read_text().split() if ledger.exists() else []
    print(  # for whoever runs this with -s
        f"{JOBS} jobs ({dict(states)}), {dict(faults)}, {claims} claims, {len(launched)} trials launched, "
        f"{time.monotonic() - start_s:.0f} s"
    )
    judge(desk, jobs, states, launched)
    assert wait_for(lambda: orphaned_readers() == [], 30)
    assert wait_for(lambda: processes_of(folder / "jobs") == [], 60)


def runs(desk: Desk, jobs: Jobs) -> list[Any]:
    with desk.database.read() as conn:
        return [get_run(conn, tenant, id) for id, (_, tenant) in jobs.nights.items()]


def judge(desk: Desk, jobs: Jobs, states: Counter[str], launched: list[str]) -> None:
    """A bomb may fail its own session, nothing else may."""
    assert set(states) <= {*(f"{kind} completed" for kind in (*KINDS,)), "bomb failed"}
    for id in jobs.sessions:
        assert_whole(desk.events(id))
    assert len(set(launched)) == len(launched)
    with desk.database.read() as conn:
        for name, tenant in jobs.nights.values():
            assert len(list_nights(conn, tenant, name)) == NIGHTS_EACH


def test_postgres_survives_everything_at_once(tmp_path: Path) -> None:
    with running_postgres() as server, evil_model() as evil, small_disk(tmp_path / "worker0") as disk:

        def database_restarts() -> None:
            server.stop()
            server.start()

        others = [database_restarts, *_full(disk)]
        trials, ledger = with_trials(tmp_path, hangs=True)
        url = server.get_uri()
        settings = settings_for(tmp_path, url)
        with opened(settings) as desk, fleet_of(tmp_path, 2, url, {**evil, **trials}) as fleet:
            survive(desk, fleet, tmp_path, ledger, others)


def test_sqlite_survives_everything_at_once(tmp_path: Path) -> None:
    with evil_model() as evil, small_disk(tmp_path / "worker0") as disk:
        trials, ledger = with_trials(tmp_path, hangs=True)
        settings: Settings = settings_for(tmp_path / "worker0")
        with opened(settings) as desk, fleet_of(tmp_path, 1, None, {**evil, **trials}) as fleet:
            survive(desk, fleet, tmp_path, ledger, _full(disk))


def _full(disk: Path | None) -> list[Callable[[], None]]:
    def full_disks() -> None:
        assert disk
        fill_for_a_while(disk)

    return [full_disks] if disk else []
