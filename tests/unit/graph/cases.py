"""A workload that is searched in a moment, and sessions over it."""

import json
from collections.abc import Mapping
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from graph.context import Context
from graph.events import Routed, SessionEvent, ToolCalled
from graph.request import parse_decision, parse_request
from graph.session import Session, SessionOutcome
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
    events: list[SessionEvent] | None = None,
) -> tuple[SessionOutcome, list[SessionEvent]]:
    """`events` collects those of several runs, also of one that is cut off."""
    events = [] if events is None else events
    session = Session(id, context or Context(open_seed()), checkpointer)
    made = parse_decision(decision) if decision else None
    return session.run(parse_request(raw, tenant), events.append, made), events


def report_of(raw: Mapping[str, Any], context: Context | None = None) -> Raw:
    return data_of(run(raw, context)[0])


def data_of(outcome: SessionOutcome) -> Raw:
    """The report as JSON."""
    assert outcome.report is not None
    return outcome.report.model_dump(mode="json")


def steps_of(events: list[SessionEvent]) -> list[str]:
    """The steps that the coordinator chose, in order."""
    return [event.step for event in events if isinstance(event, Routed)]


def tools_of(events: list[SessionEvent]) -> list[str]:
    return [event.tool for event in events if isinstance(event, ToolCalled)]
