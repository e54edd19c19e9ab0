"""Health and readiness."""

from pydantic import BaseModel, Field


class HealthPublic(BaseModel):
    status: str
    version: str


class CheckPublic(BaseModel):
    ok: bool
    detail: str


class ReadyPublic(BaseModel):
    ready: bool
    checks: dict[str, CheckPublic] = Field(description="each part that this process needs")
