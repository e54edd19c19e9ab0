"""The states of a session, and which of them are final."""

QUEUED = "queued"
RUNNING = "running"
WAITING = "waiting_approval"
COMPLETED = "completed"
FAILED = "failed"
CANCELLED = "cancelled"

STATES = (QUEUED, RUNNING, WAITING, COMPLETED, FAILED, CANCELLED)
BUSY = (QUEUED, RUNNING)
"""A worker runs it, or will."""
TERMINAL = (COMPLETED, FAILED, CANCELLED)
"""Nothing happens any more unless somebody asks for it."""
