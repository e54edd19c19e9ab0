"""/v1/traces: uploads in resumable parts, their listing and analysis."""

from datetime import datetime
from typing import Annotated, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from sqlalchemy.exc import IntegrityError
from starlette.requests import ClientDisconnect

from service.api.deps import AppDep, Cursor, Id, Limit, Reader, StrictRoute, Submitter, get_request_id
from service.api.errors import ApiError
from service.api.state import AppState
from service.db.access import record
from service.db.traces import (
    OPEN,
    TraceRow,
    complete_trace,
    create_trace,
    delete_trace,
    get_trace,
    list_traces,
    set_received,
)
from service.errors import ConflictError, NotFoundError
from service.schemas import Public, to_datetime
from service.strict_json import JsonObject
from service.traces import MAX_FILES, NoRoomError, check_name
from tools.errors import InputError

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PATH = "/v1/traces"


class TraceCreate(BaseModel):
    """A folder of traces to be uploaded."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"name": "llama 70B, Tuesday"}]}
    )

    name: str = Field("", max_length=200, description="for people")


class CompleteCreate(BaseModel):
    """Says that the upload is whole."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"files": {"rank0.json.gz": "0" * 64}}]}
    )

    files: dict[str, Digest] = Field(min_length=1, description="SHA-256 of every file, in hexadecimal")


class FilePublic(Public):
    """One file of an upload."""

    name: str
    received_bytes: int = Field(description="go on from this offset")
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
    reference: str = Field(description="what a session's `traces` may say")


class TraceDetail(TracePublic):
    files: list[FilePublic]
    analysis: JsonObject | None = Field(
        description="what `asap diagnose --json` prints; null until it is there"
    )
    error: JsonObject | None = Field(description="why there is no analysis")


class TracePage(BaseModel):
    items: list[TracePublic]
    next_cursor: str | None


def public_trace(row: TraceRow) -> TracePublic:
    return TracePublic.model_validate(_public_fields(row))


def detailed_trace(row: TraceRow) -> TraceDetail:
    files = [vars(file) for file in row.files]
    analysis = None if row.analysis is None else {**row.analysis}
    if analysis:
        analysis.pop("drawing", None)  # for the pages' figures; long, and nobody's promise
    return TraceDetail.model_validate(
        {**_public_fields(row), "files": files, "analysis": analysis, "error": row.error}
    )


def _public_fields(row: TraceRow) -> JsonObject:
    own = {name: getattr(row, name) for name in ("id", "name", "owner", "state")}
    times = {name: to_datetime(getattr(row, name)) for name in ("created_at", "completed_at", "expires_at")}
    return {**own, **times, "reference": f"trace:{row.id}"}


DAY_S = 86_400.0

router = APIRouter(prefix=PATH, tags=["traces"], route_class=StrictRoute)


@router.post("", status_code=201, summary="Begin an upload")
def create(given: TraceCreate, app: AppDep, caller: Submitter, response: Response) -> TracePublic:
    """Then PUT each file, and POST complete."""
    with app.database.begin() as conn:
        row = create_trace(conn, caller.tenant, caller.name, given.name, app.settings.trace_days * DAY_S)
    response.headers["Location"] = f"{PATH}/{row.id}"
    return public_trace(row)


@router.get("", summary="List uploads, newest first")
def list_all(app: AppDep, caller: Reader, cursor: Cursor = None, limit: Limit = 50) -> TracePage:
    with app.database.read() as conn:
        rows, following = list_traces(conn, caller.tenant, cursor, limit)
    return TracePage(items=[public_trace(row) for row in rows], next_cursor=following)


@router.get("/{id}", summary="One upload, with its files and analysis")
def get_one(id: Id, app: AppDep, caller: Reader) -> TraceDetail:
    """The analysis is made in the background; ask again while both it and `error` are null."""
    with app.database.read() as conn:
        row = get_trace(conn, caller.tenant, id)
    app.analyses.ensure_started(row)
    return detailed_trace(row)


@router.post("/{id}/complete", summary="Say that the upload is whole")
def complete(id: Id, given: CompleteCreate, app: AppDep, caller: Submitter) -> TraceDetail:
    """Every file's digest is checked. Completing again with the same digests changes nothing."""
    with app.database.read() as conn:
        row = get_trace(conn, caller.tenant, id)
    if row.state != OPEN:
        return _again(row, given.files)
    _check_digests(app, row, given.files)
    with app.database.begin() as conn:
        row = complete_trace(conn, caller.tenant, id, given.files)
    app.analyses.ensure_started(row)
    return detailed_trace(row)


@router.delete("/{id}", status_code=204, summary="Delete an upload")
def delete(id: Id, app: AppDep, caller: Submitter) -> None:
    with app.database.begin() as conn:
        delete_trace(conn, caller.tenant, id)
        record(conn, caller.tenant, caller.name, "trace.delete", id, get_request_id())
    app.uploads.discard(id)


def _again(row: TraceRow, files: dict[str, str]) -> TraceDetail:
    if {file.name: file.sha256 for file in row.files} != files:
        raise ConflictError(f"trace {row.id} is already {row.state} with other files", field="files")
    return detailed_trace(row)


def _check_digests(app: AppState, row: TraceRow, files: dict[str, str]) -> None:
    uploaded = {file.name for file in row.files}
    for name in uploaded ^ files.keys():
        missing = name in files
        says = "nothing of it was uploaded" if missing else "was uploaded, and is not named here"
        raise InputError(f"files.{name}", "a digest" if missing else "nothing", says)
    for name, digest in files.items():
        found = app.uploads.digest(row.id, name)
        if found != digest:
            raise InputError(
                f"files.{name}", digest, f"what arrived has {found}; upload it again from offset 0"
            )


files_router = APIRouter(prefix=PATH + "/{id}/files", tags=["traces"], route_class=StrictRoute)

Name = Annotated[str, Path(max_length=200, description="a plain file name, for instance rank0.json.gz")]
Offset = Annotated[int, Query(ge=0, le=2**50, description="where this part begins")]
_BODY = {
    "required": True,
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}


@files_router.put(
    "/{name}", summary="Upload a file or the next part of it", openapi_extra={"requestBody": _BODY}
)
async def put_file(
    id: Id, name: Name, request: Request, app: AppDep, caller: Submitter, offset: Offset = 0
) -> FilePublic:
    """`received_bytes` is where the next part begins; after a break, GET the upload to learn it. The same
    part sent again changes nothing; a part from an earlier offset replaces what follows it."""
    check_name(name)
    row = await run_sync(_open_trace, app, caller.tenant, id, name)
    others = await run_sync(app.uploads.others_bytes, id, name)
    most = app.settings.max_trace_bytes
    try:
        await app.uploads.write(id, name, offset, request.stream(), most - others)
    except NoRoomError:
        detail = f"the files of one upload have at most {most:,} bytes together"
        raise ApiError("too-large", detail, field="body", allowed=detail) from None
    except ClientDisconnect:
        raise ApiError("bad-request", "the sender left; what arrived is kept", field="body") from None
    finally:
        received = await run_sync(_note, app, row, name)
    return FilePublic(name=name, received_bytes=received)


def _open_trace(app: AppState, tenant: str, id: str, name: str) -> TraceRow:
    with app.database.read() as conn:
        row = get_trace(conn, tenant, id)
    if row.state != OPEN:
        raise ConflictError(f"trace {id} is {row.state}; nothing can be added", field="state")
    names = {file.name for file in row.files}
    if name not in names and len(names) >= MAX_FILES:
        raise ConflictError(f"trace {id} has {MAX_FILES} files, which is the most", field="name")
    return row


def _note(app: AppState, row: TraceRow, name: str) -> int:
    received = app.uploads.received(row.id, name)
    try:
        with app.database.begin() as conn:
            set_received(conn, row.id, name, received)
    except IntegrityError:  # deleted meanwhile
        raise NotFoundError("trace", row.id) from None
    return received
