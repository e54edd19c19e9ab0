"""The audit log."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field


class AuditPublic(BaseModel):
    """Who did what, to what, and by which request."""

    id: str
    at: datetime
    who: str
    action: str = Field(description="session.decide, session.cancel, key.add, ...")
    target: str
    request_id: str | None
    details: dict[str, Any]


class AuditPage(BaseModel):
    items: list[AuditPublic]
    next_cursor: str | None
