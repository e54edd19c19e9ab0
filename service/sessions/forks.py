"""Forks: at which run of an agent a session is taken up again, and what the new one begins with."""

from collections.abc import Sequence

import sqlalchemy as sa

from graph.events import Forked, Reasoned, parse_event
from graph.request import Fork
from graph.state import ForkPoint, GivenAnswer
from service.access.store import record
from service.errors import ConflictError
from service.logs import request_id
from service.sessions.event_store import insert_events
from service.sessions.model import EventRow, ForkedFrom, SessionRow, thread_of
from service.sessions.store import lock_session
from service.strict_json import JsonObject
from tools.errors import InputError


def fork_origin(parent: SessionRow, events: Sequence[EventRow], fork: Fork) -> ForkedFrom:
    """The run that is repeated: the stated one, or the one where what changes is read, if that is earlier.

    Notes are read first of all, constraints from the search on, an answer where its question was asked.
    """
    runs = [event for event in events if event.kind == "started"]
    if not runs:
        rule = "nothing that happened in it is kept: submit its request again"
        raise ConflictError(f"session {parent.id} cannot be forked; {rule}", path="state")
    start = next((run for run in reversed(runs) if fork.step and run.seq <= fork.step), runs[0])
    if fork.step is None:
        start = _first_asked(events, runs, fork) if fork.answers else runs[-1]
    elif fork.step > events[-1].seq:
        raise InputError("step", fork.step, f"allowed: 1 to {events[-1].seq}, an event of the session")
    attempt = _place(start)[0]
    runs = [run for run in runs if _place(run)[0] == attempt]
    if fork.decision and not any(run.node == "verify" and run.seq < start.seq for run in runs):
        raise InputError("step", fork.step, "allowed for a decision: once the proposals are verified")
    readers = {"notes": runs[:1], "constraints": [run for run in runs if run.node == "proposal"][:1]}
    read = [run for name in fork.changed for run in readers.get(name, [])]
    first = min([start, *read], key=lambda run: run.seq)
    turn = _place(first)[1]
    return ForkedFrom(
        session=parent.id, step=first.seq, node=first.node, attempt=attempt, turn=turn, changed=fork
    )


def _first_asked(events: Sequence[EventRow], runs: Sequence[EventRow], fork: Fork) -> EventRow:
    asked = {
        told.question: row.seq
        for row in reversed(events)
        if isinstance(told := parse_event(row.kind, row.content), Reasoned)
    }
    for name in fork.answers or {}:
        if name not in asked:
            raise InputError(f"answers.{name}", name, "it was not asked: name the step to fork from")
    seq = min(asked[name] for name in fork.answers or {})
    return next(run for run in reversed(runs) if run.seq <= seq)


def _place(run: EventRow) -> tuple[int, int]:
    """Attempt and step of the graph, by the event's key."""
    attempt, step, *_ = run.key.split("/")
    return int(attempt), int(step)


def fork_point(row: SessionRow) -> ForkPoint | None:
    """For the graph."""
    origin = row.forked_from
    if origin is None:
        return None
    answers = origin.changed.answers or {}
    given = {name: GivenAnswer(answer=answer, by=row.owner) for name, answer in answers.items()}
    return ForkPoint(thread_of(origin.session, origin.attempt), origin.turn, given)


def tell_fork(conn: sa.Connection, child: SessionRow, origin: ForkedFrom) -> None:
    """To both sessions, and to the audit log."""
    lock_session(conn, origin.session)
    told = Forked(
        parent=origin.session,
        child=child.id,
        step=origin.step,
        agent=origin.node,
        changed=origin.changed.changed,
        key=f"fork/{child.id}",
        at=child.created_at,
        node="session",
    ).model_dump(mode="json")
    for id in (origin.session, child.id):
        insert_events(conn, id, [told])
    details: JsonObject = {"fork": child.id, "step": origin.step}
    record(conn, child.tenant, child.owner, "session.fork", origin.session, request_id.get(), **details)
