"""The bytes of an upload: any file in parts, each from an offset on, resumed after a break."""

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Path, Query, Request
from sqlalchemy.exc import IntegrityError
from starlette.requests import ClientDisconnect

from service.api.dependencies import Id, PartsOf, Submitter
from service.api.parts import Parts
from service.api.problems import ApiError
from service.api.schemas.traces import PATH, FilePublic
from service.api.strict_route import StrictRoute
from service.errors import ConflictError, NotFoundError
from service.store.traces import OPEN, TraceRow, get_trace, set_received
from service.uploads import MOST_FILES, NoRoomError, check_name

router = APIRouter(prefix=PATH + "/{id}/files", tags=["traces"], route_class=StrictRoute)

Name = Annotated[str, Path(max_length=200, description="a plain file name, for instance rank0.json.gz")]
Offset = Annotated[int, Query(ge=0, le=2**50, description="where this part begins")]
_BODY = {
    "required": True,
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}


@router.put("/{name}", summary="Upload a file or the next part of it", openapi_extra={"requestBody": _BODY})
async def put_file(
    id: Id, name: Name, request: Request, parts: PartsOf, caller: Submitter, offset: Offset = 0
) -> FilePublic:
    """`received_bytes` is where the next part begins; after a break, GET the upload to learn it. The same
    part sent again changes nothing; a part from an earlier offset replaces what follows it."""
    check_name(name)
    row = await run_sync(_open_trace, parts, caller.tenant, id, name)
    others = await run_sync(parts.uploads.others_bytes, id, name)
    most = parts.settings.max_trace_bytes
    try:
        await parts.uploads.write(id, name, offset, request.stream(), most - others)
    except NoRoomError:
        detail = f"the files of one upload have at most {most:,} bytes together"
        raise ApiError("too-large", detail, field="body", allowed=detail) from None
    except ClientDisconnect:
        raise ApiError("bad-request", "the sender left; what arrived is kept", field="body") from None
    finally:
        received = await run_sync(_note, parts, row, name)
    return FilePublic(name=name, received_bytes=received)


def _open_trace(parts: Parts, tenant: str, id: str, name: str) -> TraceRow:
    with parts.database.read() as conn:
        row = get_trace(conn, tenant, id)
    if row.state != OPEN:
        raise ConflictError(f"trace {id} is {row.state}; nothing can be added", field="state")
    names = {file.name for file in row.files}
    if name not in names and len(names) >= MOST_FILES:
        raise ConflictError(f"trace {id} has {MOST_FILES} files, which is the most", field="name")
    return row


def _note(parts: Parts, row: TraceRow, name: str) -> int:
    received = parts.uploads.received(row.id, name)
    try:
        with parts.database.begin() as conn:
            set_received(conn, row.id, name, received)
    except IntegrityError:  # deleted meanwhile
        raise NotFoundError("trace", row.id) from None
    return received
