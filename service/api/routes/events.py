"""/v1/sessions/{id}/events: what happens in a session, as it happens."""

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse

from service.api.accept import preferred
from service.api.dependencies import Id, PartsOf, Reader
from service.api.schemas.events import EventPage, public_event
from service.api.schemas.sessions import PATH
from service.api.sse import HEADERS, MEDIA_TYPE, Look, look, stream
from service.api.strict_route import StrictRoute
from tools.errors import InputError

JSON = "application/json"
MOST_SEQ = 2**31 - 1
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
    int | None, Query(ge=0, le=MOST_SEQ, description="the number of the last event that is known already")
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
    parts: PartsOf,
    caller: Reader,
    after: After = None,
    last_event_id: LastEventId = None,
    accept: Accept = MEDIA_TYPE,
) -> Response:
    """Each event has `id:` (its number) and `data:` (JSON). Reconnect with Last-Event-ID, or `after`, to any
    replica: nothing is lost and nothing comes twice. A comment comes every 10 s while nothing happens."""
    form = preferred(accept, (MEDIA_TYPE, JSON))
    start = _start(after, last_event_id)
    first = await run_sync(look, parts, caller.tenant, id, start)
    if form == JSON:
        return _page(first, start)
    if first.ended and not first.events:
        return Response(status_code=204)
    texts = stream(parts, caller.tenant, id, first, start)
    return StreamingResponse(texts, media_type=MEDIA_TYPE, headers=HEADERS)


def _start(after: int | None, last_event_id: str | None) -> int:
    """The header wins: a browser repeats the address it was first given."""
    if last_event_id is None:
        return after or 0
    if int(last_event_id) > MOST_SEQ:
        raise InputError("Last-Event-ID", last_event_id, "allowed: the number of an event")
    return int(last_event_id)


def _page(first: Look, start: int) -> JSONResponse:
    items = [public_event(row) for row in first.events]
    page = EventPage(items=items, next_after=items[-1].seq if items else start, ended=first.ended)
    return JSONResponse(page.model_dump(mode="json"))
