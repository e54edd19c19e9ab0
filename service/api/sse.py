"""Server-sent events: the wire format, and a stream that any replica can give from any point.

The numbers of the events come from the table, so a caller that reconnects elsewhere with Last-Event-ID misses
nothing and sees nothing twice.
"""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import sqlalchemy as sa
from anyio.to_thread import run_sync
from sqlalchemy.exc import SQLAlchemyError

from service.api.parts import Parts
from service.api.schemas.events import public_event
from service.errors import NotFoundError
from service.store.events import events_after
from service.store.rows import EventRow
from service.store.states import TERMINAL
from service.store.tables import sessions

log = logging.getLogger("asap.api")
MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""The second keeps nginx from collecting events before it passes them on."""
RETRY_MS = 300
"""After so long a browser reconnects."""
HEARTBEAT_S = 10.0
AT_ONCE = 200


@dataclass(frozen=True)
class Look:
    """What was new at one look into the table."""

    events: list[EventRow]
    ended: bool
    """Nothing will follow: the session had ended before the events were read, and these are all."""


def look(parts: Parts, tenant: str, id: str, after: int, limit: int = AT_ONCE) -> Look:
    """The state is read first: when it is final, the event that says so is among those read after it."""
    with parts.database.read() as conn:
        state = _state(conn, tenant, id)
        found = events_after(conn, id, after, limit)
    return Look(found, state in TERMINAL and len(found) < limit)


def _state(conn: sa.Connection, tenant: str, id: str) -> str:
    """That alone: a poll must not read the report each time."""
    query = sa.select(sessions.c.state).where(sessions.c.id == id, sessions.c.tenant == tenant)
    state = conn.execute(query).scalar()
    if state is None:
        raise NotFoundError("session", id)
    return str(state)


def format_event(row: EventRow) -> str:
    return f"id: {row.seq}\ndata: {public_event(row).model_dump_json()}\n\n"


async def stream(parts: Parts, tenant: str, id: str, first: Look, after: int) -> AsyncIterator[str]:
    """Ends after the last event of a session that has ended, or when the server stops."""
    parts.metrics.streams.inc()
    try:
        yield f"retry: {RETRY_MS}\n\n"
        async for text in _texts(parts, tenant, id, first, after):
            yield text
    finally:
        parts.metrics.streams.dec()


async def _texts(parts: Parts, tenant: str, id: str, seen: Look, after: int) -> AsyncIterator[str]:
    while True:
        if seen.events:
            yield "".join(map(format_event, seen.events))
            after = seen.events[-1].seq
        if seen.ended:
            return
        while len(seen.events) < AT_ONCE and not await parts.watch.wait(id, after, HEARTBEAT_S):
            yield ": heartbeat\n\n"
        if parts.stopping.is_set():
            return
        try:
            seen = await run_sync(look, parts, tenant, id, after, limiter=parts.watch.limiter)
        except NotFoundError:  # deleted meanwhile
            return
        except SQLAlchemyError:  # whoever reconnects is told what is wrong, or goes on
            log.exception("a stream ends early", extra={"session": id})
            return
