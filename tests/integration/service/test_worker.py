"""A worker in this process, on SQLite and on PostgreSQL: sessions to their end, and whatever stops them."""

import threading
import time
from collections.abc import Callable

import pytest

from graph.context import Context
from graph.events import SessionFailure
from graph.report import Report
from service.jobs.model import RUNNING
from service.sessions.model import SessionRow
from service.settings import Settings
from service.worker import make_worker
from tests.integration.service.at_work import TINY, Desk, assert_whole, working
from tools.kb import open_seed

on_sqlite = pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
"""For what does not depend on the database."""


class Gate:
    """A clock that stops every session at its next event until it is opened."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.reached = threading.Event()

    def __call__(self) -> float:
        self.reached.set()
        self.is_open.wait(60)
        return time.time()

    def context(self) -> Context:
        return Context(open_seed(), clock=self)


def error_of(row: SessionRow) -> SessionFailure:
    assert row.error is not None
    return row.error


@on_sqlite
def test_what_cannot_be_done_fails_in_plain_words(settings: Settings, desk: Desk) -> None:
    constraints = {"tp": 1, "pp": 1, "cp": 1, "max_memory_fraction": 0.001}
    hopeless = {**TINY, "plan": None, "constraints": constraints}
    with working(settings):
        infeasible = desk.wait(desk.submit(request=hopeless))
        wrong = desk.wait(desk.submit(request={**TINY, "cluster": {"device": "h100-sxm-80gb"}}))
    assert (infeasible.state, wrong.state) == ("failed", "failed")
    assert error_of(infeasible).kind == "infeasible"
    assert (error_of(wrong).kind, error_of(wrong).field) == ("input", "cluster.num_devices")


@on_sqlite
def test_an_internal_error_shows_no_more_than_its_kind(settings: Settings, desk: Desk) -> None:
    def broken() -> float:
        raise ZeroDivisionError("password=hunter2")

    with working(settings, Context(open_seed(), clock=broken)):
        id = desk.submit()
        row = desk.wait(id)
    assert (row.state, error_of(row).kind) == ("failed", "unexpected")
    assert "ZeroDivisionError" in error_of(row).message
    assert "hunter2" not in str([event.content for event in desk.events(id)])


def search_without_end(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A search that only its own progress can stop; the event tells that it runs."""
    runs = threading.Event()

    def propose(_workload: object, progress: Callable[[float], None], *_more: object) -> None:
        runs.set()
        for _ in range(3000):
            progress(0.0)
            time.sleep(0.02)

    monkeypatch.setattr("graph.nodes.proposal.propose", propose)
    monkeypatch.setattr("service.sessions.run.CHECK_EVERY_S", 0.05)
    return runs


@on_sqlite
def test_a_session_is_cancelled_in_the_middle_of_a_long_search(
    settings: Settings, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = search_without_end(monkeypatch)
    with working(settings):
        id = desk.submit()
        assert runs.wait(30)
        desk.cancel(id)
        assert desk.wait(id).state == "cancelled"


@on_sqlite
def test_a_search_that_takes_longer_than_its_session_may_is_ended(
    settings: Settings, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = search_without_end(monkeypatch)
    with working(settings):
        row = desk.wait(desk.submit(budget={"session_s": 2.0}))
    assert runs.is_set(), "the time was over before the search began"
    assert row.state == "failed"
    assert "budget.session_s" in error_of(row).message


def test_a_session_waits_for_approval_and_goes_on_after_it(settings: Settings, desk: Desk) -> None:
    with working(settings):
        id = desk.submit(request={**TINY, "approval": "person"}, approval="person")
        asked = desk.wait(id)
        desk.approve(id, by="ann")
        row = desk.wait(id)
    assert asked.state == "waiting_approval"
    assert asked.waiting_for is not None
    assert asked.waiting_for["proposals"]
    assert (asked.bottleneck, asked.speedup) == (row.bottleneck, row.speedup)
    assert asked.bottleneck
    assert row.state == "completed"
    assert [decision.by for decision in Report.model_validate(row.report).decisions] == ["ann"]
    assert_whole(desk.events(id))


def test_a_worker_that_stops_hands_its_session_back_and_the_next_goes_on(
    settings: Settings, desk: Desk
) -> None:
    gate = Gate()
    hurried = settings.model_copy(update={"shutdown_s": 0.0})
    worker = make_worker(hurried, gate.context())
    worker.start()
    id = desk.submit()
    assert gate.reached.wait(30)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    time.sleep(0.3)
    gate.is_open.set()
    stopping.join()
    handed_back = desk.row(id)
    with working(settings):
        row = desk.wait(id)
    assert (handed_back.state, handed_back.dispatch_no) == ("queued", 2)
    assert row.state == "completed"
    assert desk.states(id) == ["queued", "running", "queued", "running", "completed"]
    assert_whole(desk.events(id))


def test_a_worker_that_lost_its_lease_stops_its_sessions(
    settings: Settings, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    with working(settings, gate.context()) as worker:
        id = desk.submit()
        assert gate.reached.wait(30)
        with monkeypatch.context() as patch:
            patch.setattr(worker._lease, "is_held", lambda: False)
            gate.is_open.set()
            desk.wait(id, until=lambda row: row.dispatch_no >= 2)
        row = desk.wait(id)
    assert row.state == "completed"
    assert_whole(desk.events(id))


def test_urgent_sessions_run_first(settings: Settings, desk: Desk) -> None:
    made = {priority: desk.submit(priority=priority) for priority in (0, 9, 3)}
    one_by_one = settings.model_copy(update={"worker_sessions": 1})
    with working(one_by_one):
        rows = {priority: desk.wait(id) for priority, id in made.items()}
    begun = sorted(rows, key=lambda priority: rows[priority].started_at or 0)
    assert begun == [9, 3, 0]


def test_one_tenant_cannot_take_every_place(settings: Settings, desk: Desk) -> None:
    gate = Gate()
    limited = settings.model_copy(update={"worker_sessions": 4, "tenant_sessions": 1})
    with working(limited, gate.context()):
        greedy = [desk.submit(tenant="a") for _ in range(2)]
        other = desk.submit(tenant="b")
        desk.wait(other, "b", until=lambda row: row.state == RUNNING)
        desk.wait(greedy[0], "a", until=lambda _: desk.busy("a") == 2 and _running(desk, "a", greedy) == 1)
        time.sleep(0.5)
        at_a_time = _running(desk, "a", greedy)
        gate.is_open.set()
        ends = [desk.wait(id, "a").state for id in greedy] + [desk.wait(other, "b").state]
    assert at_a_time == 1
    assert ends == ["completed"] * 3


def _running(desk: Desk, tenant: str, ids: list[str]) -> int:
    return sum(desk.row(id, tenant).state == RUNNING for id in ids)
