"""What people decided about a session, oldest first."""

import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from service.errors import ConflictError
from service.store.ids import new_id
from service.store.rows import Data
from service.store.tables import decisions


def add_decision(
    conn: sa.Connection, held: sa.Row[Any], decision: Mapping[str, Any], by: str, refuse: bool
) -> bool:
    """False where it is known already. Refused, it raises; but what is known is never refused."""
    id = decision.get("id") or new_id()
    known = conn.execute(sa.select(decisions.c.session_id).where(decisions.c.id == id)).scalar()
    if known == held.id:
        return False
    if known is not None:
        raise ConflictError("this id belongs to another decision; send another, or none", field="id")
    if refuse:
        raise ConflictError(
            f"session {held.id} is {held.state}; decide when it waits for approval or is completed", "state"
        )
    content = {**decision, "id": id, "by": by}
    numbers = {"session_id": held.id, "attempt": held.attempt, "leg": held.leg + 1}
    conn.execute(decisions.insert().values(id=id, at=time.time(), by=by, content=content, **numbers))
    return True


def find_decision(conn: sa.Connection, session_id: str, attempt: int) -> Data | None:
    """The latest one of this attempt: the graph knows by its id whether it has acted on it."""
    query = sa.select(decisions.c.content).where(
        decisions.c.session_id == session_id, decisions.c.attempt == attempt
    )
    return conn.execute(query.order_by(decisions.c.leg.desc()).limit(1)).scalar()


def list_decisions(conn: sa.Connection, session_id: str) -> list[Data]:
    query = sa.select(decisions.c.content, decisions.c.at).where(decisions.c.session_id == session_id)
    return [{**row.content, "at": row.at} for row in conn.execute(query.order_by(decisions.c.leg))]
