"""How a job of any kind is claimed: a fencing token that rises with every claim, and numbered dispatches.

A worker claims one dispatch of a job. A later claim raises the fence, and every write of an earlier owner is
refused. A job whose workflow is lost or handed back gets the next dispatch.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypedDict, TypeVar

import sqlalchemy as sa
from pydantic import JsonValue

from service.errors import FencedError
from service.jobs.model import BUSY, CANCELLED, FAILED, QUEUED, RUNNING, TERMINAL

QUIET_AT_ONCE = 500


class JobRow(Protocol):
    """A row that can be claimed and dispatched."""

    @property
    def id(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def dispatch_no(self) -> int: ...

    @property
    def fence(self) -> int: ...

    @property
    def claims(self) -> int: ...

    @property
    def started_at(self) -> float | None: ...


RowT = TypeVar("RowT", bound=JobRow)


class Move(Protocol[RowT]):
    def __call__(self, conn: sa.Connection, row: RowT, state: str, **columns: JsonValue) -> RowT:
        """Writes the state and these columns, and what a change of state entails; the row is locked."""


@dataclass(frozen=True)
class JobKind(Generic[RowT]):
    """How jobs of one kind are stored; claims and the engine need nothing else about them."""

    queue: str
    workflow: str
    prefix: str
    """Workflow ids begin with it."""
    table: sa.Table
    lock: Callable[[sa.Connection, str], RowT | None]
    """Nobody else writes about this job until the transaction ends; None if it is deleted."""
    move: Move[RowT]
    max_claims: int
    gave_up: Mapping[str, JsonValue]
    """What is written to a job that was claimed `max_claims` times and never ended."""
    partition: Callable[[RowT], str]
    """Jobs of one partition share a limit on how many run at a time."""
    priority: Callable[[RowT], int] | None = None
    """1 runs first."""
    must_cancel: Callable[[RowT], bool] = lambda _row: False

    def workflow_id(self, id: str, dispatch_no: int) -> str:
        return f"{self.prefix}{id}.{dispatch_no}"

    def claim(self, conn: sa.Connection, id: str, worker: str, dispatch_no: int) -> RowT | None:
        """The right to write about the job under `row.fence`, until another worker claims it.

        None if this dispatch is over: the job ended, waits for a person, or has a later dispatch.
        """
        row = self._lock_busy(conn, id, dispatch_no)
        if row is None:
            return None
        if row.claims >= self.max_claims:
            self.move(conn, row, FAILED, fence=row.fence + 1, **self.gave_up)
            return None
        return self.move(conn, row, RUNNING, worker=worker, fence=row.fence + 1, claims=row.claims + 1)

    def next_dispatch(self, conn: sa.Connection, id: str, dispatch_no: int) -> RowT | None:
        """For a busy job whose workflow is lost or handed back; None if it has gone on meanwhile.

        One that is to be cancelled is cancelled here: the worker that hands it back may not know.
        """
        row = self._lock_busy(conn, id, dispatch_no)
        if row is None:
            return None
        if self.must_cancel(row):
            self.move(conn, row, CANCELLED, fence=row.fence + 1)
            return None
        return self.move(conn, row, QUEUED, **dispatch_columns(row))

    def check_fence(self, conn: sa.Connection, row: RowT) -> None:
        """Locks the row; raises FencedError if another worker has claimed it since, or it is deleted."""
        query = sa.select(self.table.c.fence, self.table.c.worker).where(self.table.c.id == row.id)
        stored = conn.execute(query.with_for_update()).one_or_none()
        if stored is None:
            raise FencedError(f"{self.workflow} {row.id} is deleted")
        if stored.fence != row.fence:
            raise FencedError(f"{self.workflow} {row.id} was taken over by {stored.worker}")

    def list_quiet(
        self, conn: sa.Connection, before_s: float | sa.ColumnElement[float], after: str
    ) -> list[tuple[str, int]]:
        """Busy jobs without a write since then: id and dispatch number."""
        columns = self.table.c
        is_quiet = columns.state.in_(BUSY), columns.updated_at < before_s, columns.id > after
        query = sa.select(columns.id, columns.dispatch_no).where(*is_quiet).order_by(columns.id)
        return [(id, number) for id, number in conn.execute(query.limit(QUIET_AT_ONCE))]

    def _lock_busy(self, conn: sa.Connection, id: str, dispatch_no: int) -> RowT | None:
        row = self.lock(conn, id)
        return row if row and row.state in BUSY and row.dispatch_no == dispatch_no else None


class DispatchColumns(TypedDict):
    dispatch_no: int
    fence: int
    worker: None


def dispatch_columns(row: JobRow) -> DispatchColumns:
    """The columns of the next dispatch, which the caller enqueues in the same transaction."""
    return {"dispatch_no": row.dispatch_no + 1, "fence": row.fence + 1, "worker": None}


def times_of(row: JobRow, state: str) -> dict[str, float]:
    """The columns that say when a job came to this state."""
    now_s = time.time()
    times = {"updated_at": now_s}
    if state != row.state and state == RUNNING and row.started_at is None:
        times["started_at"] = now_s
    if state != row.state and state in TERMINAL:
        times["finished_at"] = now_s
    return times
