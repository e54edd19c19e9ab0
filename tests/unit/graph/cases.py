"""A workload that is searched in a moment, and sessions over it."""

import json
from collections.abc import Mapping
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from graph.context import Context, Event
from graph.request import parse_request
from graph.session import Outcome, Session
from tests.workloads import SMALL
from tools.kb import open_seed

Raw = dict[str, Any]


def small(**changed: object) -> Raw:
    """A copy with some parts replaced; a part given as None is left out."""
    raw: Raw = json.loads(json.dumps(SMALL)) | changed
    return {name: part for name, part in raw.items() if part is not None}


def run(
    raw: Mapping[str, Any],
    context: Context | None = None,
    checkpointer: BaseCheckpointSaver[Any] | None = None,
    decision: Mapping[str, Any] | None = None,
    id: str = "s1",
    tenant: str | None = None,
    events: list[Event] | None = None,
) -> tuple[Outcome, list[Event]]:
    """`events` collects those of several runs, also of one that is cut off."""
    events = [] if events is None else events
    session = Session(id, context or Context(open_seed()), checkpointer)
    return session.run(parse_request(raw, tenant), events.append, decision), events


def report_of(raw: Mapping[str, Any], context: Context | None = None) -> Raw:
    return data_of(run(raw, context)[0])


def data_of(outcome: Outcome) -> Raw:
    """The report as JSON."""
    assert outcome.report is not None
    return outcome.report.model_dump(mode="json")


def steps_of(events: list[Event]) -> list[str]:
    """The steps that the coordinator chose, in order."""
    return [event["step"] for event in events if event["kind"] == "routed"]


def tools_of(events: list[Event]) -> list[str]:
    return [event["tool"] for event in events if event["kind"] == "tool"]
