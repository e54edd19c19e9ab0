"""/v1/traces: uploads in resumable parts, their listing and analysis."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.requests import ClientDisconnect

from service.api.deps import AppDep, Cursor, Id, Limit, Reader, StrictRoute, Submitter
from service.api.errors import ApiError
from service.db.traces import TraceRow
from service.schemas import Public
from service.strict_json import JsonObject
from service.uploads import REFERENCE, NoRoomError

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PATH = "/v1/traces"


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

    files: dict[str, Digest] = Field(min_length=1, description="SHA-256 of every file, in hexadecimal")


class FilePublic(Public):
    """One file of an upload."""

    name: str
    received_bytes: int = Field(description="resume at this offset")
    sha256: str | None = Field(None, description="when the upload is complete")


class TracePublic(Public):
    """An upload of one run's traces."""

    id: str
    name: str
    owner: str
    state: Literal["open", "complete"] = Field(description="open: files may be uploaded")
    created_at: datetime
    completed_at: datetime | None
    expires_at: datetime = Field(description="then it is deleted")
    reference: str = Field(description="the value for a session's `traces`")


class TraceDetail(TracePublic):
    files: list[FilePublic]
    analysis: JsonObject | None = Field(
        description="what `asap diagnose --json` prints; null until it is done"
    )
    error: JsonObject | None = Field(description="why there is no analysis")


class TracePage(BaseModel):
    items: list[TracePublic]
    next_cursor: str | None


def public_trace(row: TraceRow) -> TracePublic:
    return TracePublic.model_validate(_public_fields(row))


def detailed_trace(row: TraceRow) -> TraceDetail:
    analysis = None if row.analysis is None else {**row.analysis}
    if analysis:
        analysis.pop("drawing", None)  # for the pages' figures; long, and not part of the API
    return TraceDetail.model_validate({**_public_fields(row), "analysis": analysis})


def _public_fields(row: TraceRow) -> JsonObject:
    return {**vars(row), "reference": f"{REFERENCE}{row.id}"}


router = APIRouter(prefix=PATH, tags=["traces"], route_class=StrictRoute)

Name = Annotated[str, Path(max_length=200, description="a plain file name, for instance rank0.json.gz")]
Offset = Annotated[int, Query(ge=0, le=2**50, description="where this part begins")]
_BODY = {
    "required": True,
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}


@router.post("", status_code=201, summary="Begin an upload")
def create(new: TraceCreate, app: AppDep, caller: Submitter, response: Response) -> TracePublic:
    """Then PUT each file, and POST complete."""
    row = app.traces.create(caller, new.name)
    response.headers["Location"] = f"{PATH}/{row.id}"
    return public_trace(row)


@router.get("", summary="List uploads, newest first")
def list_all(app: AppDep, caller: Reader, cursor: Cursor = None, limit: Limit = 50) -> TracePage:
    rows, next_cursor = app.traces.list_all(caller, cursor, limit)
    return TracePage(items=[public_trace(row) for row in rows], next_cursor=next_cursor)


@router.get("/{id}", summary="One upload, with its files and analysis")
def get_one(id: Id, app: AppDep, caller: Reader) -> TraceDetail:
    """The analysis is made in the background; ask again while both it and `error` are null."""
    return detailed_trace(app.traces.get(caller, id))


@router.post("/{id}/complete", summary="Complete an upload")
def complete(id: Id, upload: CompleteCreate, app: AppDep, caller: Submitter) -> TraceDetail:
    """Every file's digest is checked. Completing again with the same digests changes nothing."""
    return detailed_trace(app.traces.complete(caller, id, upload.files))


@router.delete("/{id}", status_code=204, summary="Delete an upload")
def delete(id: Id, app: AppDep, caller: Submitter) -> None:
    app.traces.delete(caller, id)


@router.put(
    "/{id}/files/{name}",
    summary="Upload a file or the next part of it",
    openapi_extra={"requestBody": _BODY},
)
async def put_file(
    id: Id, name: Name, request: Request, app: AppDep, caller: Submitter, offset: Offset = 0
) -> FilePublic:
    """`received_bytes` is where the next part begins; after a break, GET the upload to learn it. The same
    part sent again changes nothing; a part from an earlier offset replaces what follows it."""
    try:
        received = await app.traces.put_file(caller, id, name, offset, request.stream())
    except NoRoomError:
        most, all_bytes = app.settings.max_trace_bytes, app.settings.tenant_trace_bytes
        detail = f"files have at most {most:,} bytes per upload and {all_bytes:,} per tenant"
        raise ApiError("too-large", detail, field="body", allowed=detail) from None
    except ClientDisconnect:
        raise ApiError("bad-request", "the sender left; what arrived is kept", field="body") from None
    return FilePublic(name=name, received_bytes=received)
