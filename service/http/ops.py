"""Operations: health, readiness, metrics, and the audit log."""

from datetime import datetime
from typing import Annotated

import httpx
import sqlalchemy as sa
from fastapi import APIRouter, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError

from service import __version__
from service.access.store import list_audit
from service.disk import MIN_FREE_BYTES, free_bytes
from service.http.auth import Admin, Operator
from service.http.deps import AppDep, Cursor, Limit, Public
from service.http.state import AppState
from service.http.strict import StrictRoute
from service.jobs.workers import list_living
from service.render.text import counted
from service.strict_json import JsonObject

HEARTBEAT = "/api/v2/heartbeat"
PATIENCE_S = 2.0
NO_WORKFLOW = "none"
router = APIRouter(tags=["health"])
audit_router = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=StrictRoute)
AuditTarget = Annotated[
    str | None, Query(max_length=100, description="the id of a session, key, trace or case")
]


class HealthPublic(BaseModel):
    status: str
    version: str


class CheckPublic(BaseModel):
    ok: bool
    detail: str


class ReadyPublic(BaseModel):
    ready: bool
    checks: dict[str, CheckPublic] = Field(description="each part that this process needs")


@router.get("/healthz", summary="Whether the process lives")
async def healthz() -> HealthPublic:
    return HealthPublic(status="ok", version=__version__)


@router.get("/readyz", summary="Whether it can do its work", responses={503: {"model": ReadyPublic}})
def readyz(app: AppDep, response: Response) -> ReadyPublic:
    checks = {}
    for check in (check_disk, check_database, check_migrations, check_knowledge, check_queue):
        try:
            result = CheckPublic(ok=True, detail=check(app))
        except NotReadyError as error:
            result = CheckPublic(ok=False, detail=str(error))
        except (SQLAlchemyError, OSError, httpx.HTTPError) as error:
            # Only the kind: the message may hold an address with a password.
            result = CheckPublic(ok=False, detail=f"does not answer: {type(error).__name__}")
        checks[check.__name__.removeprefix("check_")] = result
    ready = all(check.ok for check in checks.values())
    response.status_code = 200 if ready else 503
    return ReadyPublic(ready=ready, checks=checks)


@router.get(
    "/metrics",
    summary="Counts and times for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(app: AppDep, caller: Operator) -> Response:
    return Response(app.metrics.text(), media_type=CONTENT_TYPE_LATEST)


class NotReadyError(Exception):
    """The message says what is missing."""


def check_database(app: AppState) -> str:
    with app.database.read() as conn:
        conn.execute(sa.select(1))
    return app.database.engine.dialect.name


def check_migrations(app: AppState) -> str:
    if not app.database.is_current():
        raise NotReadyError("the schema is not this version's; 'asap serve' upgrades it when it starts")
    return "current"


def check_knowledge(app: AppState) -> str:
    if app.settings.chroma_url is None:
        return "embedded"
    httpx.get(app.settings.chroma_url.rstrip("/") + HEARTBEAT, timeout=PATIENCE_S).raise_for_status()
    return "server"


def check_queue(app: AppState) -> str:
    """It must answer. Living workers are only reported: without any, sessions are accepted and wait."""
    app.queue.unfinished([NO_WORKFLOW])
    with app.database.read() as conn:
        living = len(list_living(conn, app.settings.lease_s))
    return counted(living, "worker")


def check_disk(app: AppState) -> str:
    """Sessions, events and uploads are written there."""
    free = free_bytes(app.settings)
    if free < MIN_FREE_BYTES:
        raise NotReadyError(f"{free >> 20} MiB are free, {MIN_FREE_BYTES >> 20} MiB are needed")
    return f"{free >> 20} MiB free"


class AuditPublic(Public):
    """Who did what, to what, and by which request."""

    id: str
    at: datetime
    who: str
    action: str = Field(description="session.decide, session.cancel, key.add, ...")
    target: str
    request_id: str | None
    details: JsonObject


class AuditPage(BaseModel):
    items: list[AuditPublic]
    next_cursor: str | None


@audit_router.get("", summary="The audit log, newest first")
def list_all(
    app: AppDep, caller: Admin, target: AuditTarget = None, cursor: Cursor = None, limit: Limit = 100
) -> AuditPage:
    with app.database.read() as conn:
        rows, next_cursor = list_audit(conn, caller.tenant, target, cursor, limit)
    return AuditPage(items=[AuditPublic.model_validate(row) for row in rows], next_cursor=next_cursor)
