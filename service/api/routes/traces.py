"""/v1/traces: uploads of profiler traces, their listing and what was found in them. Bytes: trace_files.py."""

from fastapi import APIRouter, Response

from service.api.dependencies import Cursor, Id, Limit, PartsOf, Reader, Submitter, get_request_id
from service.api.parts import Parts
from service.api.schemas.traces import (
    PATH,
    CompleteCreate,
    TraceCreate,
    TraceDetail,
    TracePage,
    TracePublic,
    detailed_trace,
    public_trace,
)
from service.api.strict_route import StrictRoute
from service.errors import ConflictError
from service.store.audit import record
from service.store.traces import (
    OPEN,
    TraceRow,
    complete_trace,
    create_trace,
    delete_trace,
    get_trace,
    list_traces,
)
from tools.errors import InputError

DAY_S = 86_400.0

router = APIRouter(prefix=PATH, tags=["traces"], route_class=StrictRoute)


@router.post("", status_code=201, summary="Begin an upload")
def create(given: TraceCreate, parts: PartsOf, caller: Submitter, response: Response) -> TracePublic:
    """Then PUT each file, and POST complete."""
    with parts.database.begin() as conn:
        row = create_trace(conn, caller.tenant, caller.name, given.name, parts.settings.trace_days * DAY_S)
    response.headers["Location"] = f"{PATH}/{row.id}"
    return public_trace(row)


@router.get("", summary="List uploads, newest first")
def list_all(parts: PartsOf, caller: Reader, cursor: Cursor = None, limit: Limit = 50) -> TracePage:
    with parts.database.read() as conn:
        rows, following = list_traces(conn, caller.tenant, cursor, limit)
    return TracePage(items=[public_trace(row) for row in rows], next_cursor=following)


@router.get("/{id}", summary="One upload, with its files and analysis")
def get_one(id: Id, parts: PartsOf, caller: Reader) -> TraceDetail:
    """The analysis is made in the background; ask again while both it and `error` are null."""
    with parts.database.read() as conn:
        row = get_trace(conn, caller.tenant, id)
    parts.analyses.want(row)
    return detailed_trace(row)


@router.post("/{id}/complete", summary="Say that the upload is whole")
def complete(id: Id, given: CompleteCreate, parts: PartsOf, caller: Submitter) -> TraceDetail:
    """Every file's digest is checked. Completing again with the same digests changes nothing."""
    with parts.database.read() as conn:
        row = get_trace(conn, caller.tenant, id)
    if row.state != OPEN:
        return _again(row, given.files)
    _check_digests(parts, row, given.files)
    with parts.database.begin() as conn:
        row = complete_trace(conn, caller.tenant, id, given.files)
    parts.analyses.want(row)
    return detailed_trace(row)


@router.delete("/{id}", status_code=204, summary="Delete an upload")
def delete(id: Id, parts: PartsOf, caller: Submitter) -> None:
    with parts.database.begin() as conn:
        delete_trace(conn, caller.tenant, id)
        record(conn, caller.tenant, caller.name, "trace.delete", id, get_request_id())
    parts.uploads.discard(id)


def _again(row: TraceRow, files: dict[str, str]) -> TraceDetail:
    if {file.name: file.sha256 for file in row.files} != files:
        raise ConflictError(f"trace {row.id} is already {row.state} with other files", field="files")
    return detailed_trace(row)


def _check_digests(parts: Parts, row: TraceRow, files: dict[str, str]) -> None:
    uploaded = {file.name for file in row.files}
    for name in uploaded ^ files.keys():
        missing = name in files
        says = "nothing of it was uploaded" if missing else "was uploaded, and is not named here"
        raise InputError(f"files.{name}", "a digest" if missing else "nothing", says)
    for name, digest in files.items():
        found = parts.uploads.digest(row.id, name)
        if found != digest:
            raise InputError(
                f"files.{name}", digest, f"what arrived has {found}; upload it again from offset 0"
            )
