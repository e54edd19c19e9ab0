"""What moves a session: cancel, retry, decision. Each is kept in the audit log, in the same transaction."""

import hashlib
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter

from graph.decisions import parse_decision
from service.api.dependencies import Approver, Id, IdempotencyKey, PartsOf, Submitter, get_request_id
from service.api.parts import Parts
from service.api.schemas.reports import DecisionCreate
from service.api.schemas.sessions import PATH, SessionPublic, public_session
from service.api.strict_route import StrictRoute
from service.auth.caller import Caller
from service.store.audit import record
from service.store.ids import new_id
from service.store.lifecycle import decide, request_cancel, retry
from service.store.rows import SessionRow
from service.store.sessions import get_session
from tools.errors import InputError

router = APIRouter(prefix=PATH + "/{id}", tags=["sessions"], route_class=StrictRoute)


@router.post("/cancel", status_code=202, summary="Stop a session")
def cancel(id: Id, parts: PartsOf, caller: Submitter) -> SessionPublic:
    """At once where nobody runs it, else at its next event. Cancelling again changes nothing."""
    return _act(parts, caller, "session.cancel", id, lambda conn: request_cancel(conn, caller.tenant, id))


@router.post("/retry", status_code=202, summary="Run a failed or cancelled session again")
def run_again(id: Id, parts: PartsOf, caller: Submitter) -> SessionPublic:
    """From the start, as a new attempt of the same session."""
    return _act(parts, caller, "session.retry", id, lambda conn: retry(conn, caller.tenant, id))


@router.post("/decision", status_code=202, summary="Decide on the proposals")
def make_decision(
    id: Id, given: DecisionCreate, parts: PartsOf, caller: Approver, key: IdempotencyKey = None
) -> SessionPublic:
    """While the session waits for an approval, or after it is completed. A plan that is edited or submitted
    is scored beside the others. The same `id` (or Idempotency-Key) again changes nothing."""
    decision = _decision(id, given, caller, key)
    return _act(
        parts,
        caller,
        "session.decide",
        id,
        lambda conn: decide(conn, caller.tenant, id, decision, caller.name),
        decision=decision,
    )


def _act(
    parts: Parts,
    caller: Caller,
    action: str,
    id: str,
    move: Callable[[sa.Connection], SessionRow],
    **details: Any,  # noqa: ANN401 - any JSON
) -> SessionPublic:
    """A move that brought a new leg queues it; one that changed nothing leaves no trace."""
    with parts.database.begin() as conn:
        before = get_session(conn, caller.tenant, id)
        after = move(conn)
        if after.leg != before.leg:
            parts.queue.enqueue(conn, after)
        if (after.leg, after.state, after.cancel_requested) != (
            before.leg,
            before.state,
            before.cancel_requested,
        ):
            record(conn, caller.tenant, caller.name, action, id, get_request_id(), **details)
    return public_session(after)


def _decision(session_id: str, given: DecisionCreate, caller: Caller, key: str | None) -> dict[str, Any]:
    body = given.body()
    if "by" in body:
        raise InputError("by", body["by"], "not taken: the key tells who decides")
    decision = parse_decision({**body, "by": caller.name[:200]})
    own = decision["id"] or key
    # The caller's own word is hashed with the session's id: two tenants may use the same one.
    digest = hashlib.sha256(f"{session_id}/{own}".encode()).hexdigest()[:32]
    return {**decision, "id": digest if own else new_id()}
