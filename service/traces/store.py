"""Uploaded traces: their files, state, analysis and expiry."""

import time
from collections.abc import Mapping

import sqlalchemy as sa

from service.db.queries import insert_into, read_page
from service.errors import ConflictError, NotFoundError
from service.strict_json import JsonObject
from service.traces.model import COMPLETE, OPEN, TraceDetail, TraceFile, TraceRow, trace_files, traces


def create_trace(conn: sa.Connection, tenant: str, owner: str, name: str, keep_s: float) -> TraceRow:
    row = TraceRow(tenant=tenant, owner=owner, name=name, expires_at=time.time() + keep_s)
    conn.execute(traces.insert().values(**{name: getattr(row, name) for name in TraceRow.model_fields}))
    return row


def get_trace(conn: sa.Connection, tenant: str, id: str, lock: bool = False) -> TraceDetail:
    """With `lock`, no other transaction changes it until this one ends."""
    query = sa.select(traces).where(traces.c.id == id, traces.c.tenant == tenant)
    row = conn.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotFoundError("trace", id)
    columns = [trace_files.c[name] for name in TraceFile.model_fields]
    query = sa.select(*columns).where(trace_files.c.trace_id == id).order_by(trace_files.c.name)
    return TraceDetail(**row._mapping, files=[TraceFile(**file._mapping) for file in conn.execute(query)])


def usage_of(conn: sa.Connection, tenant: str) -> tuple[int, int]:
    """How many uploads a tenant keeps, and their bytes."""
    uploads = conn.scalar(sa.select(sa.func.count()).where(traces.c.tenant == tenant))
    joined = trace_files.join(traces, traces.c.id == trace_files.c.trace_id)
    query = sa.select(sa.func.sum(trace_files.c.received_bytes)).select_from(joined)
    return int(uploads or 0), int(conn.scalar(query.where(traces.c.tenant == tenant)) or 0)


def list_traces(
    conn: sa.Connection, tenant: str, cursor: str | None = None, limit: int = 50
) -> tuple[list[TraceRow], str | None]:
    """Newest first, without files and analysis."""
    columns = [column for column in traces.c if column.name != "analysis"]
    query = sa.select(*columns).where(traces.c.tenant == tenant)
    rows, next_cursor = read_page(conn, query, traces.c.id, cursor, limit)
    return [TraceRow(**row._mapping) for row in rows], next_cursor


def set_received(conn: sa.Connection, id: str, name: str, received_bytes: int) -> None:
    """How much of a file has arrived: the offset at which an upload goes on."""
    insert = insert_into(conn, trace_files)
    values = {"received_bytes": received_bytes, "updated_at": time.time()}
    row = insert.values(trace_id=id, name=name, **values)
    conn.execute(row.on_conflict_do_update(index_elements=["trace_id", "name"], set_=values))


def complete_trace(conn: sa.Connection, tenant: str, id: str, sha256: Mapping[str, str]) -> TraceDetail:
    """Nothing can be uploaded to it any more."""
    row = get_trace(conn, tenant, id, lock=True)
    if row.state != OPEN:
        raise ConflictError(f"trace {id} is already {row.state}", path="state")
    for name, digest in sha256.items():
        is_file = (trace_files.c.trace_id == id) & (trace_files.c.name == name)
        conn.execute(trace_files.update().where(is_file).values(sha256=digest))
    conn.execute(traces.update().where(traces.c.id == id).values(state=COMPLETE, completed_at=time.time()))
    return get_trace(conn, tenant, id)


def set_analysis(
    conn: sa.Connection, id: str, analysis: JsonObject | None, error: JsonObject | None = None
) -> None:
    conn.execute(traces.update().where(traces.c.id == id).values(analysis=analysis, error=error))


def delete_trace(conn: sa.Connection, tenant: str, id: str) -> None:
    get_trace(conn, tenant, id)
    conn.execute(traces.delete().where(traces.c.id == id))


def list_expired(conn: sa.Connection, now_s: float) -> list[TraceRow]:
    """Traces of all tenants, for the sweep."""
    columns = [column for column in traces.c if column.name != "analysis"]
    query = sa.select(*columns).where(traces.c.expires_at <= now_s).order_by(traces.c.expires_at).limit(100)
    return [TraceRow(**row._mapping) for row in conn.execute(query)]
