"""/v1/sessions/{id}/events: pages, and a server-sent stream that any replica can resume (Last-Event-ID)."""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError

from service.access.auth import Caller
from service.db.engine import Database
from service.errors import NotFoundError, QuotaError
from service.http.auth import Reader
from service.http.deps import Id, usecase
from service.http.events import EventWatcher
from service.http.metrics import Metrics
from service.http.strict import JSON, StrictRoute, preferred
from service.jobs.model import TERMINAL
from service.sessions.event_store import events_after, last_events, state_of
from service.sessions.model import PATH, EventRow
from service.settings import Settings
from tools.errors import InputError

MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""The second keeps nginx from collecting events before it passes them on."""
RETRY_MS = 300
"""How long a browser waits before it reconnects."""
HEARTBEAT_S = 10.0
AT_ONCE = 200
MAX_SEQ = 2**31 - 1
ITEM = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "the event's number"},
        "data": {"type": "string", "contentMediaType": JSON, "description": "the event as JSON"},
        "retry": {"type": "integer", "minimum": 0},
    },
}
"""One event of the stream, as OpenAPI 3.2 and FastAPI write it."""
After = Annotated[
    int | None, Query(ge=0, le=MAX_SEQ, description="the number of the last event that is known already")
]
LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID", pattern="^[0-9]{1,10}$", description="what a browser sends on reconnecting"
    ),
]
EventAccept = Annotated[str, Header(description="text/event-stream, or application/json for one page")]

log = logging.getLogger("asap.api")
router = APIRouter(prefix=PATH + "/{id}/events", tags=["sessions"], route_class=StrictRoute)


class EventPage(BaseModel):
    items: list[EventRow]
    next_after: int = Field(description="pass it as `after` to get what follows")
    ended: bool = Field(description="nothing will follow unless a person decides or retries")


@dataclass(frozen=True)
class EventBatch:
    """What was new in the table."""

    events: list[EventRow]
    ended: bool
    """Nothing will follow: the session had ended before the events were read, and these are all."""


class EventStreams:
    """All streams of this process: counted by key and tenant, woken together."""

    def __init__(self, settings: Settings, database: Database, metrics: Metrics, stopping: Event) -> None:
        self._settings, self._database, self._metrics = settings, database, metrics

        def last(ids: Sequence[str]) -> dict[str, int]:
            with database.read() as conn:
                return last_events(conn, ids)

        self._stopping, self._watcher = stopping, EventWatcher(last, stopping)
        self._open: Counter[tuple[str, str]] = Counter()

    def read(self, tenant: str, id: str, after: int) -> EventBatch:
        """The state is read first: when it is final, the event that says so is among those read after it."""
        with self._database.read() as conn:
            state = state_of(conn, tenant, id)
            events = events_after(conn, id, after, AT_ONCE)
        return EventBatch(events, state in TERMINAL and len(events) < AT_ONCE)

    def check(self, caller: Caller) -> None:
        """Raises QuotaError if the caller follows as many streams as it may."""
        settings = self._settings
        limits = {
            "key": (caller.id, settings.key_streams),
            "tenant": (caller.tenant, settings.tenant_streams),
        }
        for kind, (name, most) in limits.items():
            if self._open[kind, name] >= most and not caller.is_local:
                raise QuotaError(f"this {kind} follows {most} event streams, the maximum")

    async def follow(self, caller: Caller, id: str, batch: EventBatch, after: int) -> AsyncIterator[str]:
        """Ends after the last event of a session that has ended, or when the server stops."""
        counted = ("key", caller.id), ("tenant", caller.tenant)
        self._metrics.streams.inc()
        self._open.update(counted)
        try:
            yield f"retry: {RETRY_MS}\n\n"
            async for text in self._texts(caller.tenant, id, batch, after):
                yield text
        finally:
            self._metrics.streams.dec()
            self._open.subtract(counted)

    async def _texts(self, tenant: str, id: str, batch: EventBatch, after: int) -> AsyncIterator[str]:
        while True:
            if batch.events:
                yield "".join(f"id: {row.seq}\ndata: {row.model_dump_json()}\n\n" for row in batch.events)
                after = batch.events[-1].seq
            if batch.ended:
                return
            while len(batch.events) < AT_ONCE and not await self._watcher.wait(id, after, HEARTBEAT_S):
                yield ": heartbeat\n\n"
            if self._stopping.is_set():
                return
            try:
                batch = await run_sync(self.read, tenant, id, after, limiter=self._watcher.limiter)
            except NotFoundError:  # deleted meanwhile
                return
            except SQLAlchemyError:  # a client that reconnects gets the error, or continues
                log.exception("a stream ends early", extra={"session": id})
                return


StreamsDep = Annotated[EventStreams, Depends(usecase(EventStreams))]


@router.get(
    "",
    summary="Events, streamed as they happen",
    response_class=StreamingResponse,
    responses={
        200: {"content": {MEDIA_TYPE: {"itemSchema": ITEM}}, "model": EventPage},
        204: {"description": "the session has ended and all events are known: do not reconnect"},
    },
)
async def follow_events(
    id: Id,
    streams: StreamsDep,
    caller: Reader,
    after: After = None,
    last_event_id: LastEventId = None,
    accept: EventAccept = MEDIA_TYPE,
) -> Response:
    """Each event has `id:` (its number) and `data:` (JSON). Reconnect with Last-Event-ID, or `after`, to any
    replica: nothing is lost and nothing comes twice. A comment comes every 10 s while nothing happens."""
    form = preferred(accept, (MEDIA_TYPE, JSON))
    # The header wins: a browser repeats the address it was first given.
    start = after or 0 if last_event_id is None else int(last_event_id)
    if start > MAX_SEQ:
        raise InputError("Last-Event-ID", last_event_id, "allowed: the number of an event")
    batch = await run_sync(streams.read, caller.tenant, id, start)
    if form == JSON:
        last = batch.events[-1].seq if batch.events else start
        page = EventPage(items=batch.events, next_after=last, ended=batch.ended)
        return JSONResponse(page.model_dump(mode="json"))
    if batch.ended and not batch.events:
        return Response(status_code=204)
    streams.check(caller)
    texts = streams.follow(caller, id, batch, start)
    return StreamingResponse(texts, media_type=MEDIA_TYPE, headers=HEADERS)
