"""/v1/sessions: submit, list, look at and delete. What moves a session is in session_actions.py."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from service.api.dependencies import (
    Cursor,
    Id,
    IdempotencyKey,
    Limit,
    PartsOf,
    Reader,
    Submitter,
    get_request_id,
)
from service.api.schemas.sessions import (
    PATH,
    SessionCreate,
    SessionDetail,
    SessionPage,
    SessionPublic,
    detailed_session,
    public_session,
)
from service.api.strict_route import StrictRoute
from service.api.submissions import check_upload, new_session
from service.client_models import State
from service.store.audit import record
from service.store.sessions import SessionFilter, create_session, delete_session, get_session, list_sessions
from tools.errors import InputError

router = APIRouter(prefix=PATH, tags=["sessions"], route_class=StrictRoute)

Labels = Annotated[
    list[str],
    Query(alias="label", max_length=8, description="`name` or `name=value`; of several all must hold"),
]
Word = Annotated[str | None, Query(max_length=200)]
Text = Annotated[str | None, Query(max_length=200, description="words that occur in it, in any order")]


@router.post("", status_code=202, summary="Submit a session")
def submit(
    given: SessionCreate, parts: PartsOf, caller: Submitter, response: Response, key: IdempotencyKey = None
) -> SessionPublic:
    """Answers when it is queued for good: from then on it survives any restart."""
    new = new_session(parts, caller, given, key)
    with parts.database.begin() as conn:
        check_upload(conn, caller.tenant, new.request)
        row, created = create_session(conn, new)
        if created:
            parts.queue.enqueue(conn, row)
    response.headers["Location"] = f"{PATH}/{row.id}"
    return public_session(row)


@router.get("", summary="List sessions, newest first")
def list_all(
    parts: PartsOf,
    caller: Reader,
    state: State | None = None,
    device: Word = None,
    model: Word = None,
    label: Labels = [],  # noqa: B006 - FastAPI copies it
    text: Text = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> SessionPage:
    """Sessions that arrive while somebody turns the pages shift nothing."""
    filters = SessionFilter(state=state, device=device, model=model, labels=parse_labels(label), text=text)
    with parts.database.read() as conn:
        rows, following = list_sessions(conn, caller.tenant, filters, cursor, limit)
    return SessionPage(items=[public_session(row) for row in rows], next_cursor=following)


@router.get("/{id}", summary="One session, with its request")
def get_one(id: Id, parts: PartsOf, caller: Reader) -> SessionDetail:
    with parts.database.read() as conn:
        return detailed_session(get_session(conn, caller.tenant, id, report=False))


@router.delete("/{id}", status_code=204, summary="Delete a session that has ended")
def delete(id: Id, parts: PartsOf, caller: Submitter) -> None:
    """With its events, decisions and report. One that is still to run must be cancelled first."""
    with parts.database.begin() as conn:
        delete_session(conn, caller.tenant, id)
        record(conn, caller.tenant, caller.name, "session.delete", id, get_request_id())


def parse_labels(given: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not name or len(one) > 300:
            raise InputError("label", one, "allowed: name or name=value")
        found[name] = value if equals else None
    return found
