"""Wakes the event streams of a process when there is something for them: one look into the database for all.

A stream that waits costs nothing but its place in that look, so hundreds may be open.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event

import sqlalchemy as sa
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from sqlalchemy.exc import SQLAlchemyError

from service.store.database import Database
from service.store.states import TERMINAL
from service.store.tables import events, sessions

POLL_S = 0.3
AT_A_TIME = 500
"""Sessions in one query."""
ENDED = 2**63
"""As the number of a last event: above any that somebody may have seen."""
READERS = 4
"""Threads for all streams of a process: other requests keep theirs."""


@dataclass(eq=False)
class _Waiter:
    id: str
    after: int
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Watch:
    """Used from one event loop. Looks only while somebody waits."""

    def __init__(self, database: Database, stopping: Event) -> None:
        self._database, self._stopping = database, stopping
        self._waiters: set[_Waiter] = set()
        self._looking: asyncio.Task[None] | None = None
        self._limiter: CapacityLimiter | None = None

    @property
    def limiter(self) -> CapacityLimiter:
        """Made inside the loop that uses it."""
        self._limiter = self._limiter or CapacityLimiter(READERS)
        return self._limiter

    async def wait(self, id: str, after: int, longest_s: float) -> bool:
        """Whether there may be something new: an event after that one, an end, or that the server stops."""
        waiter = _Waiter(id, after)
        self._waiters.add(waiter)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_again_and_again())
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(waiter.woken.wait(), longest_s)
        finally:
            self._waiters.discard(waiter)
        return waiter.woken.is_set()

    async def _look_again_and_again(self) -> None:
        while self._waiters:
            await asyncio.sleep(POLL_S)
            waiting = list(self._waiters)
            ids = sorted({waiter.id for waiter in waiting})
            try:
                last = await run_sync(self._look, ids, limiter=self.limiter)
            except SQLAlchemyError:  # each stream finds out by itself what is wrong
                last = {}
            for waiter in waiting:
                # A session that is not there any more has news too.
                if self._stopping.is_set() or last.get(waiter.id, waiter.after + 1) > waiter.after:
                    waiter.woken.set()

    def _look(self, ids: Sequence[str]) -> dict[str, int]:
        """The last event of each session; beyond all where it has ended, so that its streams end too."""
        found: dict[str, int] = {}
        newest = sa.select(sa.func.max(events.c.seq)).where(events.c.session_id == sessions.c.id)
        query = sa.select(sessions.c.id, sessions.c.state, newest.scalar_subquery())
        with self._database.read() as conn:
            for start in range(0, len(ids), AT_A_TIME):
                some = query.where(sessions.c.id.in_(ids[start : start + AT_A_TIME]))
                found |= {
                    id: ENDED if state in TERMINAL else int(seq or 0) for id, state, seq in conn.execute(some)
                }
        return found
