"""Server-sent events: streams that wait for news of what they follow, all of a process with one query."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from sqlalchemy.exc import SQLAlchemyError

POLL_S = 0.3
READERS = 4
"""Threads for all streams of a process: other requests keep theirs."""


@dataclass(eq=False)
class _Waiter:
    id: str
    after: int
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class EventWatcher:
    """Wakes streams of events. Used from one event loop; polls only while a stream waits."""

    def __init__(self, last_events: Callable[[Sequence[str]], Mapping[str, int]], stopping: Event) -> None:
        self._last_events, self._stopping = last_events, stopping
        self._waiters: set[_Waiter] = set()
        self._looking: asyncio.Task[None] | None = None
        self._limiter: CapacityLimiter | None = None

    @property
    def limiter(self) -> CapacityLimiter:
        """Made inside the loop that uses it."""
        self._limiter = self._limiter or CapacityLimiter(READERS)
        return self._limiter

    async def wait(self, id: str, after: int, timeout_s: float) -> bool:
        """Whether there may be something new: an event after that one, an end, or that the server stops."""
        waiter = _Waiter(id, after)
        self._waiters.add(waiter)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._poll())
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(waiter.woken.wait(), timeout_s)
        finally:
            self._waiters.discard(waiter)
        return waiter.woken.is_set()

    async def _poll(self) -> None:
        while self._waiters:
            await asyncio.sleep(POLL_S)
            waiting = list(self._waiters)
            ids = sorted({waiter.id for waiter in waiting})
            try:
                last: Mapping[str, int] = await run_sync(self._last_events, ids, limiter=self.limiter)
            except SQLAlchemyError:  # each stream finds out by itself what is wrong
                last = dict[str, int]()
            for waiter in waiting:
                # A session that is not there any more has news too.
                if self._stopping.is_set() or last.get(waiter.id, waiter.after + 1) > waiter.after:
                    waiter.woken.set()
