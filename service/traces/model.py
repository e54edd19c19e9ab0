"""Uploaded traces and their files: each declaration is the row, the columns and what the API answers."""

import time
from typing import Annotated, Final, Literal

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field, computed_field

from service.db.ids import new_id
from service.db.tables import (
    Digest,
    Id,
    JsonColumn,
    Timestamp,
    Word,
    columns_of,
    key,
    metadata,
    optional,
    parent_key,
    required,
)
from service.strict_json import JsonObject

REFERENCE = "trace:"
"""Before an upload's id, as the value of a session's `traces`."""
TraceState = Literal["open", "complete"]
OPEN: Final = "open"
COMPLETE: Final = "complete"


class TraceFile(BaseModel):
    """One file of an upload."""

    model_config = ConfigDict(frozen=True)

    name: str
    received_bytes: int = Field(description="resume at this offset")
    sha256: str | None = Field(None, description="when the upload is complete")


class TraceRow(BaseModel):
    """An upload of one run's traces. A list leaves its files and its analysis out."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)

    id: Annotated[str, Id] = Field(default_factory=new_id)
    tenant: str = Field(exclude=True)
    owner: str
    name: str
    state: Annotated[TraceState, Word] = Field(OPEN, description="open: files may be uploaded")
    created_at: Timestamp = Field(default_factory=time.time)
    completed_at: Timestamp | None = None
    expires_at: Timestamp = Field(description="then it is deleted")
    error: Annotated[JsonObject | None, JsonColumn] = Field(None, exclude=True)
    analysis: Annotated[JsonObject | None, JsonColumn] = Field(None, exclude=True)

    @computed_field(description="the value for a session's `traces`")  # type: ignore[prop-decorator]
    @property
    def reference(self) -> str:
        return f"{REFERENCE}{self.id}"


class TraceDetail(TraceRow):
    """One upload, with its files and what they say."""

    files: list[TraceFile]
    analysis: JsonObject | None = Field(
        None, description="what `asap diagnose --json` prints; null until it is done"
    )
    error: JsonObject | None = Field(None, description="why there is no analysis")


traces = sa.Table(
    "traces",
    metadata,
    *columns_of(TraceRow),
    sa.Index("traces_by_tenant", "tenant", "id"),
    sa.Index("traces_by_expiry", "expires_at"),
)

trace_files = sa.Table(
    "trace_files",
    metadata,
    parent_key("traces", "trace_id", primary_key=True),
    *key(sa.Text, "name"),
    *required(sa.BigInteger, "received_bytes"),
    *optional(Digest, "sha256"),
    *required(sa.Double, "updated_at"),
)
