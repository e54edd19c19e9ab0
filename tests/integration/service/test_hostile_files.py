"""A session whose traces are a bomb: cancel, budget and shutdown reach it, and others go on beside it."""

import os
import time
from contextlib import suppress
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from service.errors import ConflictError
from service.jobs.model import QUEUED, RUNNING
from service.settings import Settings
from tests.integration.service.at_work import TINY, Desk, wait_for, working
from tests.unit.trace.bombs import BOMBS

on_sqlite = pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
"""For what does not depend on the database."""
HURRIED = {"shutdown_s": 0.5}
"""A worker does not wait for a bomb when it stops."""


@pytest.fixture
def bomb(tmp_path: Path) -> dict[str, Any]:
    """Reading these goes on for much longer than any test of them."""
    folder = tmp_path / "bomb"
    folder.mkdir()
    first = BOMBS["crossed tables"](folder)
    for number in range(1, 40):
        copyfile(first, folder / f"rank{number}.sqlite")
    return {**TINY, "traces": str(folder)}


def readers() -> list[str]:
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    children = [pid for task in tasks for pid in task.read_text().split()]
    return [pid for pid in children if b"tools.trace.isolate" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def reading(desk: Desk, request: dict[str, Any], **fields: Any) -> str:  # noqa: ANN401 - of SessionRow
    id = desk.submit(request=request, **fields)
    wait_for(readers)
    return id


@on_sqlite
def test_a_bomb_neither_delays_others_nor_outlives_its_cancel(
    settings: Settings, desk: Desk, bomb: dict[str, Any]
) -> None:
    with working(settings.model_copy(update=HURRIED)):
        id = reading(desk, bomb)
        twin = desk.submit(request=bomb)
        desk.submit(request=bomb)
        other = desk.wait(desk.submit(tenant="other"), tenant="other")
        assert other.state == "completed"
        assert desk.row(id).state == RUNNING
        desk.cancel(id)
        assert desk.wait(id).state == "cancelled"
        assert desk.row(twin).state == RUNNING


@on_sqlite
def test_a_bomb_ends_with_the_budget(settings: Settings, desk: Desk, bomb: dict[str, Any]) -> None:
    with working(settings):
        row = desk.wait(reading(desk, bomb, budget={"session_s": 3.0}))
    assert row.state == "failed"
    assert row.error is not None
    assert "time of the session was over" in row.error.message
    assert readers() == []


@on_sqlite
def test_a_worker_that_stops_hands_a_bomb_back(settings: Settings, desk: Desk, bomb: dict[str, Any]) -> None:
    with working(settings.model_copy(update=HURRIED)) as worker:
        id = reading(desk, bomb)
        assert worker.stop()
    assert (desk.row(id).state, readers()) == ("queued", [])


@pytest.mark.slow
@on_sqlite
def test_another_tenant_is_served_beside_every_bomb(settings: Settings, desk: Desk, tmp_path: Path) -> None:
    """Prints how much longer the other tenant's session takes: a figure for the notes, no limit here."""

    def session_s() -> float:
        started = time.perf_counter()
        assert desk.wait(desk.submit(tenant="other"), tenant="other").state == "completed"
        return time.perf_counter() - started

    beside = 0
    with working(settings):
        session_s()
        usual_s = sorted(session_s() for _ in range(5))[2]
        for number, (name, make) in enumerate(BOMBS.items()):
            folder = tmp_path / str(number)
            folder.mkdir()
            make(folder)
            ids = [desk.submit(request={**TINY, "traces": str(folder)}) for _ in range(2)]
            desk.wait(
                ids[0], until=lambda row: row.state != QUEUED and (bool(readers()) or row.state != RUNNING)
            )
            beside += bool(readers())
            print(f"{name:30} {max(session_s(), session_s()) - usual_s:+.2f} s")
            for id in ids:
                with suppress(ConflictError):  # it has ended
                    desk.cancel(id)
                assert desk.wait(id).claims, "the bomb was never begun"
    print(f"{beside} of {len(BOMBS)} were being read when the others came")
    assert beside > len(BOMBS) / 2, "most were over before anybody else came"
