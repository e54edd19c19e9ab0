"""Events of a session."""

from pydantic import BaseModel, Field

from service.api.schemas.public import Public
from service.api.schemas.sessions import moment
from service.client_models import Event
from service.store.rows import EventRow


class EventPublic(Event, Public):
    """Something that happened; the same object stands in `data:` of the stream."""


class EventPage(BaseModel):
    items: list[EventPublic]
    next_after: int = Field(description="give it as `after` for what follows")
    ended: bool = Field(description="nothing will follow unless somebody decides or retries")


def public_event(row: EventRow) -> EventPublic:
    return EventPublic.model_validate(
        {"seq": row.seq, "at": moment(row.at), "node": row.node, "kind": row.kind, "content": row.content}
    )
