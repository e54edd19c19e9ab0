"""Sessions as a kind of job: how the engine locks, moves and queues them."""

from graph.events import SessionFailure
from service.db.engine import Database
from service.jobs.claims import JobKind
from service.jobs.engine import JobQueue
from service.sessions.lifecycle import move_session
from service.sessions.model import HIGHEST_PRIORITY, SessionRow, sessions
from service.sessions.store import find_locked_session

MAX_CLAIMS = 25
GAVE_UP = SessionFailure(
    kind="gave_up",
    message=f"{MAX_CLAIMS} workers began this session and none finished it; see their logs, then retry",
)
SESSIONS: JobKind[SessionRow] = JobKind(
    queue="sessions",
    workflow="run_session",
    prefix="",
    table=sessions,
    lock=find_locked_session,
    move=move_session,
    max_claims=MAX_CLAIMS,
    gave_up={"error": GAVE_UP.model_dump()},
    partition=lambda row: f"tenant {row.tenant}",
    priority=lambda row: 1 + HIGHEST_PRIORITY - min(max(row.priority, 0), HIGHEST_PRIORITY),
    must_cancel=lambda row: row.cancel_requested,
)
SessionQueue = JobQueue[SessionRow]


def session_queue(database: Database) -> SessionQueue:
    return JobQueue(database, SESSIONS)
