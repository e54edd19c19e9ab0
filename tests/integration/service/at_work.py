"""Sessions submitted to a real queue, for the tests of workers: put in, waited for, and judged."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from graph.context import Context
from graph.request import Decision
from service.db.engine import Database, open_database
from service.jobs.engine import JobQueue, prepare
from service.jobs.model import BUSY, WorkerRow
from service.jobs.worker import Worker
from service.jobs.workers import list_living
from service.sessions.dispatch import session_queue
from service.sessions.event_store import events_after
from service.sessions.lifecycle import decide, request_cancel
from service.sessions.model import EventRow, SessionRow
from service.sessions.store import create_session, get_session, list_sessions, lock_session
from service.settings import Settings
from service.worker import make_worker
from tests.unit.graph.cases import small
from tools.kb import open_seed

TINY = small(
    model={
        "name": "tiny", "num_hidden_layers": 2, "hidden_size": 1024, "intermediate_size": 4096,
        "num_attention_heads": 8, "vocab_size": 32000,
    },
)  # fmt: skip
MAX_WAIT_S = 120.0


def settings_for(folder: Path, database_url: str | None = None, **changed: Any) -> Settings:  # noqa: ANN401
    given = {"embedding": "none", "lease_s": 2.0, "shutdown_s": 10.0, **changed}
    return Settings(data_dir=folder, database_url=database_url, _env_file=None, **given)


@dataclass(frozen=True)
class Desk:
    """What an API process has: the database and the queue."""

    database: Database
    queue: JobQueue[SessionRow]

    def submit(self, tenant: str = "", **fields: Any) -> str:  # noqa: ANN401 - of SessionRow
        with self.database.begin() as conn:
            row, _ = create_session(conn, SessionRow(**{"request": TINY, "tenant": tenant, **fields}))
            self.queue.enqueue(conn, row)
        return row.id

    def row(self, id: str, tenant: str = "") -> SessionRow:
        with self.database.read() as conn:
            return get_session(conn, tenant, id)

    def events(self, id: str) -> list[EventRow]:
        with self.database.read() as conn:
            return events_after(conn, id, 0)

    def states(self, id: str) -> list[str]:
        return [str(event.content["state"]) for event in self.events(id) if event.kind == "state"]

    def wait(
        self, id: str, tenant: str = "", until: Callable[[SessionRow], bool] | None = None
    ) -> SessionRow:
        ready = until or (lambda row: row.state not in BUSY)
        return wait_for(lambda: (row := self.row(id, tenant)) if ready(self.row(id, tenant)) else None)

    def cancel(self, id: str) -> None:
        with self.database.begin() as conn:
            request_cancel(conn, lock_session(conn, id, tenant=""))

    def approve(self, id: str, by: str) -> None:
        with self.database.begin() as conn:
            row = lock_session(conn, id, tenant="")
            self.queue.enqueue(conn, decide(conn, row, Decision(action="approve", by=by)))

    def living(self, lease_s: float = 2.0) -> list[WorkerRow]:
        with self.database.read() as conn:
            return list_living(conn, lease_s)

    def busy(self, tenant: str = "") -> int:
        with self.database.read() as conn:
            rows, _ = list_sessions(conn, tenant, limit=500)
        return sum(row.state in BUSY for row in rows)


T = TypeVar("T")


def wait_for(look: Callable[[], T | None], longest_s: float = MAX_WAIT_S) -> T:
    """Looks until there is something; a machine that is busy may take its time."""
    deadline = time.monotonic() + longest_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"nothing within {longest_s} s")


@contextmanager
def opened(settings: Settings) -> Iterator[Desk]:
    database = open_database(settings.database)
    prepare(settings, database)
    queue = session_queue(database)
    yield Desk(database, queue)
    queue.close()
    database.close()


@contextmanager
def working(settings: Settings, context: Context | None = None) -> Iterator[Worker]:
    worker = make_worker(settings, context or Context(open_seed()))
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def assert_whole(events: list[EventRow]) -> None:
    """Numbers without gap, keys without repeat, exactly one end, and that one last."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert len({event.key for event in events}) == len(events)
    ends = [
        event.seq
        for event in events
        if event.kind == "state" and event.content["state"] in ("completed", "failed", "cancelled")
    ]
    assert ends == [len(events)]
