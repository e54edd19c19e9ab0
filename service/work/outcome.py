"""What is kept of a session's end: the report and the figures that lists show, or the error in words."""

from collections.abc import Mapping, Sequence

from graph.session import Outcome
from service.store.rows import Data
from service.store.states import COMPLETED, FAILED, WAITING
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
