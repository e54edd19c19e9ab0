"""/healthz: the process lives. /readyz: it has what it needs. /metrics: what Prometheus asks for."""

from collections.abc import Callable

import httpx
import sqlalchemy as sa
from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import SQLAlchemyError

from service import __version__
from service.api.dependencies import Admin, PartsOf
from service.api.parts import Parts
from service.api.schemas.health import CheckPublic, HealthPublic, ReadyPublic
from service.store.workers import list_living

HEARTBEAT = "/api/v2/heartbeat"
PATIENCE_S = 2.0
NO_LEG = "none"

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Whether the process lives")
async def healthz() -> HealthPublic:
    return HealthPublic(status="ok", version=__version__)


@router.get("/readyz", summary="Whether it can do its work", responses={503: {"model": ReadyPublic}})
def readyz(parts: PartsOf, response: Response) -> ReadyPublic:
    checks = {name: _checked(check, parts) for name, check in CHECKS.items()}
    ready = all(check.ok for check in checks.values())
    response.status_code = 200 if ready else 503
    return ReadyPublic(ready=ready, checks=checks)


@router.get(
    "/metrics",
    summary="Counts and times for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(parts: PartsOf, caller: Admin) -> Response:
    return Response(parts.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _checked(check: Callable[[Parts], str], parts: Parts) -> CheckPublic:
    try:
        return CheckPublic(ok=True, detail=check(parts))
    except _NotReadyError as error:
        return CheckPublic(ok=False, detail=str(error))
    except (SQLAlchemyError, OSError, httpx.HTTPError) as error:
        # Only the kind: the message may hold an address with a password.
        return CheckPublic(ok=False, detail=f"does not answer: {type(error).__name__}")


class _NotReadyError(Exception):
    """The message says what is missing."""


def _database(parts: Parts) -> str:
    with parts.database.read() as conn:
        conn.execute(sa.select(1))
    return parts.database.engine.dialect.name


def _migrations(parts: Parts) -> str:
    if not parts.database.is_current():
        raise _NotReadyError("the schema is not this version's; 'asap serve' upgrades it when it starts")
    return "current"


def _knowledge(parts: Parts) -> str:
    if parts.settings.chroma_url is None:
        return "embedded"
    httpx.get(parts.settings.chroma_url.rstrip("/") + HEARTBEAT, timeout=PATIENCE_S).raise_for_status()
    return "server"


def _queue(parts: Parts) -> str:
    """That it answers is needed; that workers live is told: without any, sessions may come and wait."""
    parts.queue.unfinished([NO_LEG])
    with parts.database.read() as conn:
        living = len(list_living(conn, parts.settings.lease_s))
    return f"{living} workers"


CHECKS: dict[str, Callable[[Parts], str]] = {
    "database": _database,
    "migrations": _migrations,
    "knowledge": _knowledge,
    "queue": _queue,
}
