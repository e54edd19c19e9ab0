"""Uploaded traces."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from service.api.schemas.public import Public
from service.api.schemas.sessions import moment
from service.client_models import Trace, TraceFile
from service.store.traces import TraceRow

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PATH = "/v1/traces"


class TraceCreate(BaseModel):
    """A folder of traces to be uploaded."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"name": "llama 70B, Tuesday"}]}
    )

    name: str = Field("", max_length=200, description="for people")


class CompleteCreate(BaseModel):
    """Says that the upload is whole."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"files": {"rank0.json.gz": "0" * 64}}]}
    )

    files: dict[str, Digest] = Field(min_length=1, description="SHA-256 of every file, in hexadecimal")


class FilePublic(TraceFile, Public):
    """One file of an upload."""


class TracePublic(Trace, Public):
    """An upload of one run's traces."""


class TraceDetail(TracePublic):
    files: list[FilePublic]
    analysis: dict[str, Any] | None = Field(
        description="what `asap diagnose --json` prints; null until it is there"
    )
    error: dict[str, Any] | None = Field(description="why there is no analysis")


class TracePage(BaseModel):
    items: list[TracePublic]
    next_cursor: str | None


def public_trace(row: TraceRow) -> TracePublic:
    return TracePublic.model_validate(_told(row))


def detailed_trace(row: TraceRow) -> TraceDetail:
    files = [vars(file) for file in row.files]
    analysis = None if row.analysis is None else {**row.analysis}
    if analysis:
        analysis.pop("drawing", None)  # for the pages' figures; long, and nobody's promise
    return TraceDetail.model_validate(
        {**_told(row), "files": files, "analysis": analysis, "error": row.error}
    )


def _told(row: TraceRow) -> dict[str, Any]:
    own = {name: getattr(row, name) for name in ("id", "name", "owner", "state")}
    times = {name: moment(getattr(row, name)) for name in ("created_at", "completed_at", "expires_at")}
    return {**own, **times, "reference": f"trace:{row.id}"}
