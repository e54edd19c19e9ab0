"""Workers killed at random, a database restarted: every session ends once and tells it without gap."""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from service.sessions.model import EventRow
from tests.integration.service import timed_program
from tests.integration.service.at_work import TINY, Desk, assert_whole, opened, settings_for, wait_for
from tests.integration.service.fleet import Fleet
from tests.servers import running_postgres

pytestmark = pytest.mark.slow

MAX_S = 1500.0
SESSIONS = 100
MIN_KILLS = 5


@contextmanager
def fleet_of(
    folder: Path, count: int, url: str | None, settings: Mapping[str, str] | None = None
) -> Iterator[Fleet]:
    fleet = Fleet(folder, count, url, settings=settings)
    try:
        yield fleet
    finally:
        fleet.end()


def graph_keys(events: list[EventRow]) -> list[str]:
    """What the graph told, without the service's own events."""
    return [event.key for event in events if event.kind != "state"]


def begin(desk: Desk) -> list[str]:
    """One session undisturbed, to know what a whole one tells; then the others."""
    calm = desk.submit()
    desk.wait(calm)
    return [calm, *(desk.submit() for _ in range(SESSIONS - 1))]


def torment(
    desk: Desk,
    fleet: Fleet,
    kills: int | None,
    pause_s: tuple[float, float],
    restart: Callable[[], None] | None = None,
) -> Counter[str]:
    """Kills one worker after the other, so many times or as long as there is work, and counts what it did.

    Only workers that run a session are killed, and the database is restarted under one that does.
    """
    chance = random.Random(11)
    deadline = time.monotonic() + MAX_S
    done = Counter[str]()
    while (kills is None or done["kills"] < kills) and desk.busy():
        assert time.monotonic() < deadline
        wait_for(lambda: fleet.at_work(desk.database) or not desk.busy(), MAX_S)
        time.sleep(chance.uniform(*pause_s))
        if not (numbers := fleet.at_work(desk.database)):
            continue
        fleet.kill(chance.choice(numbers))
        done["kills"] += 1
        if restart and not done["restarts"] and fleet.at_work(desk.database):
            restart()
            done["restarts"] += 1
    return done


def restart_database(server: Any) -> None:  # noqa: ANN401 - it has no types
    """Nobody is answered until it is back."""
    server.stop()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.get_uri())
    server.start()


def judge(desk: Desk, ids: list[str], done: Counter[str], began_s: float) -> None:
    """A session of a killed worker is claimed once more: that many were hit."""
    wait_for(lambda: desk.busy() == 0, MAX_S)
    claims = [desk.row(id).claims for id in ids]
    print(  # for whoever runs this with -s
        f"{len(ids)} sessions, {dict(done)}, {time.monotonic() - began_s:.0f} s, "
        f"{sum(claims)} claims, at most {max(claims)} of one session"
    )
    assert done["kills"] >= MIN_KILLS
    assert sum(claims) >= len(ids) + MIN_KILLS
    whole = set(graph_keys(desk.events(ids[0])))
    for id in ids:
        events = desk.events(id)
        assert desk.row(id).state == "completed"
        assert_whole(events)
        assert set(graph_keys(events)) == whole


def stop(desk: Desk, fleet: Fleet) -> list[int]:
    """When those that were started last have come so far that they can be told."""
    wait_for(lambda: len(desk.living()) == len(fleet.processes))
    return fleet.stop()


def test_a_hundred_sessions_survive_killed_workers_and_a_restarted_postgres(tmp_path: Path) -> None:
    with running_postgres() as server:
        settings = settings_for(tmp_path, server.get_uri())
        # The workers start together on an empty database, as a deployment does it.
        with fleet_of(tmp_path, 2, server.get_uri()) as fleet, opened(settings) as desk:
            ids, began_s = begin(desk), time.monotonic()
            done = torment(desk, fleet, None, (0.2, 2.0), partial(restart_database, server))
            judge(desk, ids, done, began_s)
            assert done["restarts"] == 1
            assert stop(desk, fleet) == [0, 0]


def test_a_hundred_embedded_sessions_survive_a_killed_process(tmp_path: Path) -> None:
    with opened(settings_for(tmp_path / "worker0")) as desk, fleet_of(tmp_path, 1, None) as fleet:
        ids, began_s = begin(desk), time.monotonic()
        judge(desk, ids, torment(desk, fleet, None, (0.2, 2.0)), began_s)
        assert stop(desk, fleet) == [0]


TEMPLATE = """\
[[template]]
name = "timed"
launcher = "local"
command = [
    {python}, {program}, "{{scenario}}", "--key", "{{key}}", "--out", "{{out}}", "--ledger", {ledger}{more}
]
environment_inherited = ["PATH"]
limits = {{ wall_s = {wall_s}, devices = 8 }}
"""


def with_trials(folder: Path, hangs: bool = False) -> tuple[dict[str, str], Path]:
    """Settings of workers that may launch a program, and the file in which every launch is a line.

    With `hangs` every fourth launch never returns: the launcher ends it.
    """
    ledger, templates = folder / "launched", folder / "templates.toml"
    words = {"python": sys.executable, "program": Path(timed_program.__file__), "ledger": ledger}
    more, wall_s = (', "--hang-every", "4"', 6) if hangs else ("", 60)
    quoted = {name: json.dumps(str(word)) for name, word in words.items()}
    templates.write_text(TEMPLATE.format(**quoted, more=more, wall_s=wall_s))
    return {"ASAP_LAUNCH_TEMPLATES": str(templates), "ASAP_JOBS_DIR": str(folder / "jobs")}, ledger


def test_no_trial_is_launched_twice_though_workers_are_killed(tmp_path: Path) -> None:
    settings, ledger = with_trials(tmp_path)
    with running_postgres() as server, opened(settings_for(tmp_path, server.get_uri())) as desk:
        with fleet_of(tmp_path, 2, server.get_uri(), settings) as fleet:
            ids = [desk.submit(request={**TINY, "mode": "tune"}, mode="tune") for _ in range(4)]
            wait_for(ledger.exists)
            done = torment(desk, fleet, kills=6, pause_s=(0.5, 2.5))
            wait_for(lambda: desk.busy() == 0, MAX_S)
        rows = [desk.row(id) for id in ids]
        for id in ids:
            assert_whole(desk.events(id))
    launched = ledger.read_text().split()
    claims = sum(row.claims for row in rows)
    print(f"{len(ids)} sessions, {dict(done)}, {claims} claims, {len(launched)} trials launched")
    assert done["kills"] >= MIN_KILLS
    assert claims >= len(ids) + MIN_KILLS
    assert [row.state for row in rows] == ["completed"] * len(ids)
    assert all(row.measured_speedup for row in rows)
    assert len(launched) >= 2 * len(ids)
    assert len(set(launched)) == len(launched)
