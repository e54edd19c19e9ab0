"""What a server answers, as JSON."""

from typing import Any

AT = "2026-11-16T00:00:00Z"
ABSENT = (
    "started_at", "finished_at", "model", "device", "num_devices", "bottleneck", "verdict", "speedup",
    "measured_speedup", "headline", "error", "name", "remark", "webhook", "budget",
)  # fmt: skip


SESSION: dict[str, Any] = {
    "id": "s1", "state": "queued", "mode": "advise", "approval": "none", "priority": 5, "labels": {},
    "owner": "me", "attempt": 1, "cancel_requested": False, "created_at": AT, "updated_at": AT, "links": {},
    "request": {},
}  # fmt: skip
TRACE: dict[str, Any] = {
    "id": "t1", "name": "n", "owner": "me", "state": "open", "created_at": AT, "completed_at": None,
    "expires_at": AT, "reference": "trace:t1", "files": [], "analysis": None, "error": None,
}  # fmt: skip


def session_json(**changes: object) -> dict[str, Any]:
    return dict.fromkeys(ABSENT) | SESSION | {"a field of the future": 1} | changes


def trace_json(**changes: object) -> dict[str, Any]:
    return TRACE | changes
