"""Everything at once, on both stores: kills, pauses beyond the lease, a restarted database, bombs among the
traces and an evil language model. Every session ends exactly once and nothing is left running.
"""

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfile

import pytest

from tests.integration.llm.test_evil_endpoint import BEHAVIOURS, serving
from tests.integration.service.at_work import TINY, Desk, assert_whole, opened, settings_for, wait_for
from tests.integration.service.fleet import Fleet
from tests.integration.service.test_chaos import MAX_S, fleet_of
from tests.servers import running_postgres
from tests.unit.trace.bombs import BOMBS

LEASE_S = 2.0
MIXED = ("endless view", "crossed tables", "view of endless rows", "computed column")
EVIL = ("trickles headers", "negative usage", "thinks for ever", "closes at once")


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
        }


def submit(desk: Desk, folder: Path, sessions: int) -> list[tuple[str, str]]:
    """Ids with their tenants; every fourth session has a bomb among its traces."""
    ids = []
    for number in range(sessions):
        request, tenant = TINY, ("", "other")[number % 2]
        if number % 4 == 0:
            traces = folder / f"traces{number}"
            traces.mkdir()
            bomb = BOMBS[MIXED[number // 4 % len(MIXED)]](traces)
            copyfile(bomb, traces / "rank1.sqlite")
            request = {**TINY, "traces": str(traces)}
        ids.append((desk.submit(request=request, tenant=tenant), tenant))
    return ids


def disturb(desk: Desk, fleet: Fleet, kills: int, restart: Callable[[], None] | None) -> int:
    """Kills and pauses in turn while there is work."""
    chance, done = random.Random(5), 0
    while done < kills and desk.busy() + desk.busy("other"):
        time.sleep(chance.uniform(1.0, 3.0))
        if done % 3 == 2:
            paused = chance.choice(fleet.processes)
            paused.send_signal(signal.SIGSTOP)
            time.sleep(1.5 * LEASE_S)
            paused.send_signal(signal.SIGCONT)
        else:
            fleet.kill_one(chance)
        done += 1
        if done == 2 and restart:
            restart()
    return done


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
    desk: Desk, fleet: Fleet, folder: Path, sessions: int, restart: Callable[[], None] | None
) -> None:
    start_s = time.monotonic()
    ids = submit(desk, folder, sessions)
    disturbed = disturb(desk, fleet, max(2, sessions // 4), restart)
    wait_for(lambda: desk.busy() + desk.busy("other") == 0, MAX_S)
    states = [desk.row(id, tenant).state for id, tenant in ids]
    for id, _ in ids:
        assert_whole(desk.events(id))
    assert set(states) <= {"completed", "failed"}
    assert all(state == "completed" for number, state in enumerate(states) if number % 4)
    assert wait_for(lambda: orphaned_readers() == [], 30)
    claims = sum(desk.row(id, tenant).claims for id, tenant in ids)
    print(  # for whoever runs this with -s
        f"{len(ids)} sessions, {disturbed} kills and pauses, {claims} claims, {states.count('completed')} "
        f"completed, {states.count('failed')} failed on bombs, {time.monotonic() - start_s:.0f} s"
    )


@pytest.mark.parametrize("sessions", [4, pytest.param(150, marks=pytest.mark.slow)])
def test_postgres_survives_everything_at_once(tmp_path: Path, sessions: int) -> None:
    with running_postgres() as server, evil_model() as settings:

        def restart() -> None:
            server.stop()
            server.start()

        url = server.get_uri()
        with opened(settings_for(tmp_path, url)) as desk, fleet_of(tmp_path, 2, url, settings) as fleet:
            survive(desk, fleet, tmp_path, sessions, restart)


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [150])
def test_sqlite_survives_everything_at_once(tmp_path: Path, sessions: int) -> None:
    with (
        evil_model() as settings,
        opened(settings_for(tmp_path / "worker0")) as desk,
        fleet_of(tmp_path, 1, None, settings) as fleet,
    ):
        survive(desk, fleet, tmp_path, sessions, None)
