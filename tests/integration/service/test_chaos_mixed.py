"""Everything at once, on both stores: sessions, trials and nights of two tenants under kills, pauses beyond
the lease, a restarted database, a full disk, bombs among the traces, an evil language model and training
programs that hang. Every job ends exactly once and nothing is left running.
"""

import errno
import random
import re
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

from service.jobs.model import BUSY
from service.schedules.calendar import ScheduleSpec
from service.schedules.config import parse
from service.schedules.dispatch import night_queue, run_now
from service.schedules.store import create_schedule, get_run, list_nights
from service.settings import Settings
from tests.integration.launch.waiting import processes_of
from tests.integration.llm.test_evil_endpoint import BEHAVIOURS, Send, serving
from tests.integration.service.at_work import TINY, Desk, assert_whole, opened, settings_for, wait_for
from tests.integration.service.fleet import Fleet
from tests.integration.service.test_chaos import MAX_S, MIN_KILLS, fleet_of, restart_database, with_trials
from tests.servers import running_postgres
from tests.unit.service.nightly.builders import add_nights, workload
from tests.unit.trace.bombs import BOMBS
from tools.launch.status import FailureCause, JobStatus

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
def evil_model() -> Iterator[tuple[dict[str, str], Counter[str]]]:
    """Settings of workers whose language model is evil in one way after another, and how often in each."""
    chance, asked = random.Random(7), Counter[str]()

    def behave(send: Send) -> None:
        name = chance.choice(EVIL)
        asked[name] += 1
        BEHAVIOURS[name](send)

    with serving(behave) as evil:
        settings = {
            "ASAP_LLM_BASE_URL": evil.url,
            "ASAP_LLM_MODEL": "evil",
            "ASAP_LLM_TIMEOUT_S": "0.5",
            "ASAP_LLM_DEADLINE_S": "1",
            "ASAP_SESSION_TRIALS": "3",
            "ASAP_LEASE_S": str(LEASE_S),
        }
        yield settings, asked


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of its own, which can be filled; None where this user may not mount one.

    There the test is no success: it is skipped in the end, when everything else of it has been judged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        pytest.skip("all but the full disk went well: only root may mount one")
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
                    create_schedule(conn, tenant, "anna", parse(ScheduleSpec, given), 0.0)
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
) -> tuple[Counter[str], Counter[str]]:
    """Kills and pauses in turn, of workers that have work, and what else there is after each second one.

    How many of each there were, and how many of those met a worker that ran a session.
    """
    chance, done, hits = random.Random(5), Counter[str](), Counter[str]()

    def at_work() -> list[int]:
        fleet.revive()
        return fleet.at_work(desk.database)

    while done.total() < faults and is_busy():
        wait_for(lambda: at_work() or not is_busy(), MAX_S)
        time.sleep(chance.uniform(0.2, 2.0))
        if not (numbers := at_work()):
            continue
        number = chance.choice(numbers)
        if done.total() % 3 == 2:
            fleet.processes[number].send_signal(signal.SIGSTOP)
            time.sleep(1.5 * LEASE_S)
            fleet.processes[number].send_signal(signal.SIGCONT)
            done["pauses"] += 1
            hits["pauses"] += 1
        else:
            fleet.kill(number)
            done["kills"] += 1
            hits["kills"] += 1
        if others and done.total() % 4 == 2:
            other = others[done.total() // 4 % len(others)]
            hits[other.__name__] += bool(at_work())
            other()
            done[other.__name__] += 1
    return done, hits


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


def survive(
    desk: Desk,
    fleet: Fleet,
    folder: Path,
    ledger: Path,
    others: list[Callable[[], None]],
    asked: Counter[str],
) -> None:
    start_s = time.monotonic()
    jobs = submit(desk, folder)

    def busy() -> bool:
        return any(desk.row(id, tenant).state in BUSY for id, (_, tenant) in jobs.sessions.items()) or any(
            run.finished_at is None for run in runs(desk, jobs)
        )

    faults, hits = disturb(desk, fleet, JOBS // 6, busy, others)
    wait_for(lambda: not fleet.revive() and not busy(), MAX_S)
    states = Counter(
        f"{kind} {desk.row(id, tenant).state}" for id, (kind, tenant) in jobs.sessions.items()
    ) + Counter(f"night {run.state}" for run in runs(desk, jobs))
    claims = sum(desk.row(id, tenant).claims for id, (_, tenant) in jobs.sessions.items())
    claims += sum(run.claims for run in runs(desk, jobs))
    launched = ledger.read_text().split() if ledger.exists() else []
    print(  # for whoever runs this with -s
        f"{JOBS} jobs ({dict(states)}), {dict(faults)}, of which {dict(hits)} under a session, "
        f"{claims} claims, {len(launched)} trials launched, {hung_jobs(folder)} hung, "
        f"the model asked {dict(asked)}, {time.monotonic() - start_s:.0f} s"
    )
    assert {"kills", "pauses", *(other.__name__ for other in others)} <= set(+hits), "a fault that hit nobody"
    assert hits["kills"] >= MIN_KILLS
    assert claims >= JOBS + hits["kills"], "nothing was done again"
    assert set(asked) == set(EVIL)
    assert hung_jobs(folder) > 0
    ends = [desk.row(id, tenant).error for id, (kind, tenant) in jobs.sessions.items() if kind == "bomb"]
    assert re.search("takes more than|interrupted", str(ends)), "no bomb was read until its time was over"
    judge(desk, jobs, states, launched)
    assert wait_for(lambda: orphaned_readers() == [], 30)
    assert wait_for(lambda: processes_of(folder / "jobs") == [], 60)


def hung_jobs(folder: Path) -> int:
    """Of the training programs, those that the launcher ended at their limit."""
    ends = [JobStatus.from_json(file.read_text()) for file in (folder / "jobs").glob("*/final.json")]
    return sum(end.cause is FailureCause.WALL_LIMIT for end in ends)


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
    with (
        running_postgres() as server,
        small_disk(tmp_path / "worker0") as disk,
        evil_model() as (evil, asked),
    ):

        def database_restarts() -> None:
            restart_database(server)

        others = [database_restarts, *_full(disk)]
        trials, ledger = with_trials(tmp_path, hangs=True)
        url = server.get_uri()
        settings = settings_for(tmp_path, url)
        with opened(settings) as desk, fleet_of(tmp_path, 2, url, {**evil, **trials}) as fleet:
            survive(desk, fleet, tmp_path, ledger, others, asked)


def test_sqlite_survives_everything_at_once(tmp_path: Path) -> None:
    with small_disk(tmp_path / "worker0") as disk, evil_model() as (evil, asked):
        trials, ledger = with_trials(tmp_path, hangs=True)
        settings: Settings = settings_for(tmp_path / "worker0")
        with opened(settings) as desk, fleet_of(tmp_path, 1, None, {**evil, **trials}) as fleet:
            survive(desk, fleet, tmp_path, ledger, _full(disk), asked)
            assert not disk or "disk is full" in fleet.log.read_text(), "nobody wrote to it while it was full"


def _full(disk: Path | None) -> list[Callable[[], None]]:
    def full_disks() -> None:
        assert disk
        fill_for_a_while(disk)

    return [full_disks] if disk else []
