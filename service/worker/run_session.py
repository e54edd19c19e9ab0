"""Runs one dispatch of a session: claimed, run by the graph, stored, or handed back.

At-least-once: events have keys, progress is in the checkpoint, and every write is fenced by the claim.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import sqlalchemy as sa
from langgraph.checkpoint.base import BaseCheckpointSaver

from graph.context import Context
from graph.events import Event
from graph.request import parse_request
from graph.session import Outcome, Session
from service.checkpoints import GuardedSaver
from service.db.engine import Database, insist, is_outage
from service.db.lifecycle import claim, find_decision, next_dispatch, set_state
from service.db.models import CANCELLED, COMPLETED, FAILED, WAITING, Data, SessionRow
from service.db.sessions import append_event, check_claim, lock_session
from service.errors import CancelledError, FencedError, OutOfTimeError
from service.traces import Uploads, find_reference
from service.worker.cleanup import prune_checkpoints, thread_of
from service.worker.jobs import Lease, Queue
from tools.errors import AsapError, InfeasibleError, InputError

End = tuple[str, Data]
"""The state, and the columns that go with it."""


def end_of(outcome: Outcome) -> End:
    asked = outcome.waiting_for
    if asked is not None:
        return WAITING, {"waiting_for": asked, **_listed(asked.get("bottleneck"), asked.get("proposals"))}
    report = outcome.report
    if not report:
        return FAILED, _failure("unexpected", "the session ended without a report; retry it")
    return COMPLETED, {
        "report": report,
        "verdict": report.get("verdict"),
        **_listed((report.get("diagnosis") or {}).get("bottleneck"), report.get("proposals")),
    }


def _listed(bottleneck: str | None, proposals: Sequence[Data] | None) -> Data:
    """What a list shows of the first proposal."""
    best = proposals[0] if proposals else {}
    measured = best.get("measured")
    return {
        "bottleneck": bottleneck,
        "speedup": best.get("speedup"),
        "measured_speedup": measured.get("speedup") if isinstance(measured, Mapping) else None,
    }


def failure_of(error: Exception, session_id: str) -> End:
    """Errors of ASAP speak for themselves; of others only the log tells more, since they may hold secrets."""
    if isinstance(error, InputError):
        return FAILED, _failure("input", str(error), error.field)
    if isinstance(error, InfeasibleError):
        return FAILED, _failure("infeasible", str(error))
    if isinstance(error, AsapError):
        return FAILED, _failure("failed", str(error))
    message = f"an unexpected {type(error).__name__}; the server's log has it under session {session_id}"
    return FAILED, _failure("unexpected", message)


def _failure(kind: str, message: str, field: str | None = None) -> Data:
    return {"error": {"kind": kind, "message": message, "field": field}}


LOOK_EVERY_S = 1.0

_log = logging.getLogger(__name__)


class Observer(Protocol):
    """Whoever counts: service/api/state.py where the API runs in this process."""

    def observe_wait(self, seconds: float) -> None: ...

    def observe_event(self, event: Mapping[str, object]) -> None: ...


class HandBackError(Exception):
    """The session must go on elsewhere: this worker stops, or has lost its lease."""


@dataclass(frozen=True)
class Shop:
    """What every dispatch_no of a worker works with."""

    database: Database
    queue: Queue
    context: Context
    checkpointer: BaseCheckpointSaver[Any]
    uploads: Uploads
    lease: Lease
    must_stop: Callable[[], bool]
    """Whether the time to finish is over."""
    observer: Observer | None = None


def run_dispatch(shop: Shop, session_id: str, dispatch_no: int) -> None:
    """Returns when the session has ended or waits, or when another has it; never raises for its failures."""
    row = insist(shop.database, lambda conn: claim(conn, session_id, shop.lease.worker, dispatch_no))
    if row is None:
        return
    if shop.observer and row.started_at is not None and row.claims == 1:
        shop.observer.observe_wait(row.updated_at - row.queued_at)
    try:
        wanted, columns = _run(shop, row)
        state = insist(shop.database, lambda conn: set_state(conn, session_id, wanted, row.fence, **columns))
        prune_checkpoints(shop.checkpointer, thread_of(session_id, row.attempt), state)
    except FencedError as error:
        _log.warning("stopped: %s", error)
    except HandBackError as error:
        _hand_back(shop, row, str(error))


def _run(shop: Shop, row: SessionRow) -> End:
    try:
        return end_of(_session(shop, row).run(*_given(shop, row)))
    except CancelledError:
        return CANCELLED, {}
    except (FencedError, HandBackError):
        raise
    except Exception as error:
        if is_outage(error):
            raise HandBackError(f"the database is away: {error}") from error
        _log.exception("session %s failed", row.id, extra={"session": row.id})
        return failure_of(error, row.id)


def _session(shop: Shop, row: SessionRow) -> Session:
    """A budget can only be smaller than the installation's."""
    limits = shop.context.limits.within(row.budget)
    # Trials take their own time; between them the coordinator sees to what is left.
    ends_at = math.inf if row.mode == "tune" else time.monotonic() + limits.session_s
    context = replace(
        shop.context,
        limits=limits,
        progress=_attentive(lambda: _check(shop, row, ends_at)),
        must_cancel=lambda: _must_cancel(shop, row),
    )
    saver = GuardedSaver(shop.checkpointer, lambda: _claimed(shop, row))
    return Session(thread_of(row.id, row.attempt), context, saver)


@contextmanager
def _claimed(shop: Shop, row: SessionRow) -> Iterator[None]:
    """Nobody takes the session over in this block; raises FencedError where somebody has before it."""
    with shop.database.begin(flush=False) as conn:
        lock_session(conn, row.id, row.fence)
        yield


def _given(shop: Shop, row: SessionRow) -> tuple[Any, Callable[[Event], None], Data | None]:
    request = parse_request(_with_folder(shop, row.request or {}), row.tenant or None)
    with shop.database.read() as conn:
        decision = find_decision(conn, row.id, row.attempt)
    return request, lambda event: _tell(shop, row, event), decision


def _with_folder(shop: Shop, request: Data) -> Data:
    """An upload lies in a folder that only the server knows."""
    id = find_reference(str(request.get("traces") or ""))
    return request if id is None else {**request, "traces": str(shop.uploads.folder(id))}


def _tell(shop: Shop, row: SessionRow, event: Event) -> None:
    """Here a session notices everything that should stop it. The keys of another attempt are other keys."""
    named = {**event, "key": f"{row.attempt}/{event['key']}"}
    _write(shop, lambda conn: append_event(conn, row.id, named, row.fence))
    if shop.observer:
        shop.observer.observe_event(event)


def _check(shop: Shop, row: SessionRow, ends_at: float) -> None:
    """Between nodes the coordinator sees to the time and reports what it has; a search has nothing yet."""
    if time.monotonic() > ends_at:
        raise OutOfTimeError(
            "the time of the session was over before its search was; allow it more (budget.session_s, "
            "ASAP_SESSION_S), or narrow the search by constraints"
        )
    _write(shop, lambda conn: check_claim(conn, row.id, row.fence))


def _write(shop: Shop, work: Callable[[sa.Connection], object]) -> None:
    if shop.must_stop():
        raise HandBackError("this worker stops")
    if not shop.lease.is_held():
        raise HandBackError("this worker has lost its lease")
    insist(shop.database, work, lambda: shop.must_stop() or not shop.lease.is_held(), flush=False)


def _attentive(check: Callable[[], None]) -> Callable[[float], None]:
    """The search reports its progress but tells no event, for minutes where there are many plans."""
    looked_at = time.monotonic()

    def look(_done: float) -> None:
        nonlocal looked_at
        if time.monotonic() - looked_at >= LOOK_EVERY_S:
            check()
            looked_at = time.monotonic()

    return look


def _must_cancel(shop: Shop, row: SessionRow) -> bool:
    """Asked while a trial runs. Whoever takes the session over finds the trial's job by its key."""
    try:
        _write(shop, lambda conn: check_claim(conn, row.id, row.fence))
    except CancelledError:
        return True
    return False


def _hand_back(shop: Shop, row: SessionRow, reason: str) -> None:
    """A new dispatch goes on from the last checkpoint, unless another worker has it."""
    _log.warning("session %s handed back: %s", row.id, reason, extra={"session": row.id})

    def give(conn: sa.Connection) -> None:
        lock_session(conn, row.id, row.fence)
        again = next_dispatch(conn, row.id, row.dispatch_no)
        if again is not None:
            shop.queue.enqueue(conn, again)

    try:
        insist(shop.database, give)
    except FencedError as error:
        _log.info("nothing to hand back: %s", error)
