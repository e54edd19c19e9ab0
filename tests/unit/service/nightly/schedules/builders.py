"""Schedules for the tests, made in one line."""

from datetime import UTC, datetime
from typing import Any

from service.nightly.config import parse
from service.nightly.schedule import ScheduleSpec
from tests.unit.service.nightly.builders import scenario

ID = "0" * 32


def job(name: str = "job") -> dict[str, Any]:
    return {"name": name, "scenario": scenario(), "metrics": "/nowhere/*.json"}


def body(**parts: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a schedule
    return {"name": "nightly", "cron": "30 5 * * *", "workloads": [job()], **parts}


def spec(**parts: Any) -> ScheduleSpec:  # noqa: ANN401 - fields of a schedule
    return parse(ScheduleSpec, body(**parts))


def utc(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]
