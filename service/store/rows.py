"""What the store gives back: plain typed records."""

from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa

from service.store.tables import sessions

Data = dict[str, Any]


@dataclass(frozen=True)
class SessionRow:
    """A list leaves `request` and `report` out: they are None there."""

    id: str
    tenant: str
    owner: str
    state: str
    mode: str
    approval: str
    priority: int
    leg: int
    """How many workflows were queued for it."""
    attempt: int
    """The graph's thread; a retry starts a new one."""
    fence: int
    """Rises with every claim: a write under an older one is refused."""
    claims: int
    """How often a worker began this attempt: one that kills its workers must end."""
    worker: str | None
    cancel_requested: bool
    created_at: float
    queued_at: float
    started_at: float | None
    finished_at: float | None
    updated_at: float
    model: str | None
    device: str | None
    num_devices: int | None
    bottleneck: str | None
    verdict: str | None
    speedup: float | None
    measured_speedup: float | None
    labels: dict[str, str]
    idempotency_key: str | None
    webhook: str | None
    budget: Data | None
    error: Data | None
    waiting_for: Data | None
    """What a person is asked."""
    request: Data | None = None
    report: Data | None = None


@dataclass(frozen=True)
class EventRow:
    seq: int
    key: str
    at: float
    node: str
    kind: str
    content: Data


UNLISTED = ("request", "report")
"""Too long for a list, and therefore the last fields."""
SESSION_COLUMNS = tuple(sessions.c[one.name] for one in fields(SessionRow))
"""In the order of the fields: a row becomes a record without looking names up."""
LISTED_COLUMNS = SESSION_COLUMNS[: -len(UNLISTED)]


def session_of(row: sa.Row[Any]) -> SessionRow:
    """Of a row with all columns of the table, such as a locked one."""
    given = row._mapping
    return SessionRow(*(given[column] for column in SESSION_COLUMNS))
