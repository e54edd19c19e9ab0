"""/v1/traces: uploads in resumable parts, their listing and analysis."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.requests import ClientDisconnect

from service.http.auth import Reader, Submitter
from service.http.deps import AppDep, Cursor, Id, Limit
from service.http.problems import ApiError
from service.http.strict import StrictRoute
from service.traces.model import TraceDetail, TraceFile, TraceRow
from service.traces.uploads import NoRoomError
from service.traces.usecases import Traces

FileDigest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PATH = "/v1/traces"
FileName = Annotated[str, Path(max_length=200, description="a plain file name, for instance rank0.json.gz")]
Offset = Annotated[int, Query(ge=0, le=2**50, description="where this part begins")]
BINARY_BODY = {
    "required": True,
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}
router = APIRouter(prefix=PATH, tags=["traces"], route_class=StrictRoute)


class TraceCreate(BaseModel):
    """A folder of traces to be uploaded."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"name": "llama 70B, Tuesday"}]}
    )

    name: str = Field("", max_length=200, description="for people")


class CompleteCreate(BaseModel):
    """Completes an upload."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"files": {"rank0.json.gz": "0" * 64}}]}
    )

    files: dict[str, FileDigest] = Field(min_length=1, description="SHA-256 of every file, in hexadecimal")


class TracePage(BaseModel):
    items: list[TraceRow]
    next_cursor: str | None


def without_drawing(trace: TraceDetail) -> TraceDetail:
    """The drawing is for the pages' figures: long, and not part of the API."""
    shown = {name: part for name, part in (trace.analysis or {}).items() if name != "drawing"}
    return trace.model_copy(update={"analysis": shown or None})


@router.post("", status_code=201, summary="Begin an upload")
def create(new: TraceCreate, app: AppDep, caller: Submitter, response: Response) -> TraceRow:
    """Then PUT each file, and POST complete."""
    row = app.get(Traces).create(caller, new.name)
    response.headers["Location"] = f"{PATH}/{row.id}"
    return row


@router.get("", summary="List uploads, newest first")
def list_all(app: AppDep, caller: Reader, cursor: Cursor = None, limit: Limit = 50) -> TracePage:
    rows, next_cursor = app.get(Traces).list_all(caller, cursor, limit)
    return TracePage(items=rows, next_cursor=next_cursor)


@router.get("/{id}", summary="One upload, with its files and analysis")
def get_one(id: Id, app: AppDep, caller: Reader) -> TraceDetail:
    """The analysis is made in the background; ask again while both it and `error` are null."""
    return without_drawing(app.get(Traces).get(caller, id))


@router.post("/{id}/complete", summary="Complete an upload")
def complete(id: Id, upload: CompleteCreate, app: AppDep, caller: Submitter) -> TraceDetail:
    """Every file's digest is checked. Completing again with the same digests changes nothing."""
    return without_drawing(app.get(Traces).complete(caller, id, upload.files))


@router.delete("/{id}", status_code=204, summary="Delete an upload")
def delete(id: Id, app: AppDep, caller: Submitter) -> None:
    app.get(Traces).delete(caller, id)


@router.put(
    "/{id}/files/{name}",
    summary="Upload a file or the next part of it",
    openapi_extra={"requestBody": BINARY_BODY},
)
async def put_file(
    id: Id, name: FileName, request: Request, app: AppDep, caller: Submitter, offset: Offset = 0
) -> TraceFile:
    """`received_bytes` is where the next part begins; after a break, GET the upload to learn it. The same
    part sent again changes nothing; a part from an earlier offset replaces what follows it."""
    try:
        length = int(request.headers.get("content-length", 0))
        received = await app.get(Traces).put_file(caller, id, name, offset, length, request.stream())
    except NoRoomError:
        most, all_bytes = app.settings.max_trace_bytes, app.settings.tenant_trace_bytes
        detail = f"files have at most {most:,} bytes per upload and {all_bytes:,} per tenant"
        raise ApiError("too-large", detail, field="body", allowed=detail) from None
    except ClientDisconnect:
        raise ApiError("bad-request", "the sender left; what arrived is kept", field="body") from None
    return TraceFile(name=name, received_bytes=received)
