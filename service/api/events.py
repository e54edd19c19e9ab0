"""/v1/sessions/{id}/events: pages of events, and a server-sent stream that any replica can resume (Last-
Event-ID).
"""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import sqlalchemy as sa
from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError

from service.api.deps import AppDep, Id, Reader, StrictRoute, preferred
from service.api.sessions import PATH
from service.api.state import AppState
from service.auth import Caller
from service.db.models import TERMINAL, EventRow, sessions
from service.db.sessions import events_after
from service.errors import NotFoundError, QuotaError
from service.schemas import Public
from service.strict_json import JsonObject
from tools.errors import InputError


class EventPublic(Public):
    """Something that happened; the same object stands in `data:` of the stream."""

    seq: int = Field(description="1, 2, 3, ... without a gap; the stream's `id:`")
    at: datetime
    node: str = Field(description="the agent, or `session` for a change of its state")
    kind: str = Field(description="state, tool, reasoned, incident, ...")
    content: JsonObject


class EventPage(BaseModel):
    items: list[EventPublic]
    next_after: int = Field(description="pass it as `after` to get what follows")
    ended: bool = Field(description="nothing will follow unless a person decides or retries")


def public_event(row: EventRow) -> EventPublic:
    return EventPublic.model_validate(row)


log = logging.getLogger("asap.api")
MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""The second keeps nginx from collecting events before it passes them on."""
RETRY_MS = 300
"""How long a browser waits before it reconnects."""
HEARTBEAT_S = 10.0
AT_ONCE = 200


@dataclass(frozen=True)
class EventBatch:
    """What was new in the table."""

    events: list[EventRow]
    ended: bool
    """Nothing will follow: the session had ended before the events were read, and these are all."""


def read_batch(app: AppState, tenant: str, id: str, after: int) -> EventBatch:
    """The state is read first: when it is final, the event that says so is among those read after it."""
    with app.database.read() as conn:
        state = _state(conn, tenant, id)
        events = events_after(conn, id, after, AT_ONCE)
    return EventBatch(events, state in TERMINAL and len(events) < AT_ONCE)


def _state(conn: sa.Connection, tenant: str, id: str) -> str:
    """That alone: a poll must not read the report each time."""
    query = sa.select(sessions.c.state).where(sessions.c.id == id, sessions.c.tenant == tenant)
    state = conn.execute(query).scalar()
    if state is None:
        raise NotFoundError("session", id)
    return str(state)


def format_event(row: EventRow) -> str:
    return f"id: {row.seq}\ndata: {public_event(row).model_dump_json()}\n\n"


async def stream(app: AppState, caller: Caller, id: str, first: EventBatch, after: int) -> AsyncIterator[str]:
    """Ends after the last event of a session that has ended, or when the server stops."""
    counted = ("key", caller.id), ("tenant", caller.tenant)
    app.metrics.streams.inc()
    app.streams.update(counted)
    try:
        yield f"retry: {RETRY_MS}\n\n"
        async for text in _texts(app, caller.tenant, id, first, after):
            yield text
    finally:
        app.metrics.streams.dec()
        app.streams.subtract(counted)


def check_streams(app: AppState, caller: Caller) -> None:
    limits = (
        (("key", caller.id), app.settings.key_streams),
        (("tenant", caller.tenant), app.settings.tenant_streams),
    )
    for counted, most in limits:
        if app.streams[counted] >= most and not caller.is_local:
            raise QuotaError(f"this {counted[0]} follows {most} event streams, the maximum")


async def _texts(app: AppState, tenant: str, id: str, seen: EventBatch, after: int) -> AsyncIterator[str]:
    while True:
        if seen.events:
            yield "".join(map(format_event, seen.events))
            after = seen.events[-1].seq
        if seen.ended:
            return
        while len(seen.events) < AT_ONCE and not await app.watch.wait(id, after, HEARTBEAT_S):
            yield ": heartbeat\n\n"
        if app.stopping.is_set():
            return
        try:
            seen = await run_sync(read_batch, app, tenant, id, after, limiter=app.watch.limiter)
        except NotFoundError:  # deleted meanwhile
            return
        except SQLAlchemyError:  # a client that reconnects gets the error, or continues
            log.exception("a stream ends early", extra={"session": id})
            return


JSON = "application/json"
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

router = APIRouter(prefix=PATH + "/{id}/events", tags=["sessions"], route_class=StrictRoute)

After = Annotated[
    int | None, Query(ge=0, le=MAX_SEQ, description="the number of the last event that is known already")
]
LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID", pattern="^[0-9]{1,10}$", description="what a browser sends on reconnecting"
    ),
]
Accept = Annotated[str, Header(description="text/event-stream, or application/json for one page")]


@router.get(
    "",
    summary="Events, streamed as they happen",
    response_class=StreamingResponse,
    responses={
        200: {"content": {MEDIA_TYPE: {"itemSchema": ITEM}}, "model": EventPage},
        204: {"description": "the session has ended and all events are known: do not reconnect"},
    },
)
async def follow(
    id: Id,
    app: AppDep,
    caller: Reader,
    after: After = None,
    last_event_id: LastEventId = None,
    accept: Accept = MEDIA_TYPE,
) -> Response:
    """Each event has `id:` (its number) and `data:` (JSON). Reconnect with Last-Event-ID, or `after`, to any
    replica: nothing is lost and nothing comes twice. A comment comes every 10 s while nothing happens."""
    form = preferred(accept, (MEDIA_TYPE, JSON))
    start = _start(after, last_event_id)
    first = await run_sync(read_batch, app, caller.tenant, id, start)
    if form == JSON:
        return _page(first, start)
    if first.ended and not first.events:
        return Response(status_code=204)
    check_streams(app, caller)
    texts = stream(app, caller, id, first, start)
    return StreamingResponse(texts, media_type=MEDIA_TYPE, headers=HEADERS)


def _start(after: int | None, last_event_id: str | None) -> int:
    """The header wins: a browser repeats the address it was first given."""
    if last_event_id is None:
        return after or 0
    if int(last_event_id) > MAX_SEQ:
        raise InputError("Last-Event-ID", last_event_id, "allowed: the number of an event")
    return int(last_event_id)


def _page(first: EventBatch, start: int) -> JSONResponse:
    items = [public_event(row) for row in first.events]
    page = EventPage(items=items, next_after=items[-1].seq if items else start, ended=first.ended)
    return JSONResponse(page.model_dump(mode="json"))
