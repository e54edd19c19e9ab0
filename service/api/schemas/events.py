"""Events of a session."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from service.api.schemas.sessions import moment
from service.store.rows import EventRow


class EventPublic(BaseModel):
    """Something that happened; the same object stands in `data:` of the stream."""

    seq: int = Field(description="1, 2, 3, ... without a gap; the stream's `id:`")
    at: datetime
    node: str = Field(description="the agent, or `session` for a change of its state")
    kind: str = Field(description="state, tool, reasoned, incident, ...")
    content: dict[str, Any]


class EventPage(BaseModel):
    items: list[EventPublic]
    next_after: int = Field(description="give it as `after` for what follows")
    ended: bool = Field(description="nothing will follow unless somebody decides or retries")


def public_event(row: EventRow) -> EventPublic:
    return EventPublic.model_validate(
        {"seq": row.seq, "at": moment(row.at), "node": row.node, "kind": row.kind, "content": row.content}
    )
