"""/v1/audit: who decided, cancelled, deleted or marked what; of the caller's tenant."""

from typing import Annotated

from fastapi import APIRouter, Query

from service.api.dependencies import Admin, Cursor, Limit, PartsOf
from service.api.schemas.audit import AuditPage, AuditPublic
from service.api.schemas.sessions import moment
from service.api.strict_route import StrictRoute
from service.store.audit import AuditRow, list_audit

router = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=StrictRoute)

Target = Annotated[str | None, Query(max_length=100, description="the id of a session, key, trace or case")]


@router.get("", summary="The audit log, newest first")
def list_all(
    parts: PartsOf, caller: Admin, target: Target = None, cursor: Cursor = None, limit: Limit = 100
) -> AuditPage:
    with parts.database.read() as conn:
        rows, following = list_audit(conn, caller.tenant, target, cursor, limit)
    return AuditPage(items=[_public(row) for row in rows], next_cursor=following)


def _public(row: AuditRow) -> AuditPublic:
    return AuditPublic.model_validate({**vars(row), "at": moment(row.at)})
