"""Times, ages, counts and names of states, as people say them."""

import time
from datetime import UTC, datetime

_STEPS = ((60.0, 1.0, "s"), (3600.0, 60.0, "min"), (86_400.0, 3600.0, "h"), (60 * 86_400.0, 86_400.0, "d"))
_JUST_NOW_S = 5.0
_BYTES = ("B", "kB", "MB", "GB", "TB")
STATES = {
    "queued": "queued",
    "running": "running",
    "waiting_approval": "waits for you",
    "completed": "done",
    "failed": "failed",
    "cancelled": "cancelled",
}


def age(at_s: float, now_s: float | None = None) -> str:
    """How long ago, in one unit; a day of the calendar once that says more."""
    passed = (time.time() if now_s is None else now_s) - at_s
    if passed < _JUST_NOW_S:
        return "just now"
    for below, unit_s, unit in _STEPS:
        if passed < below:
            return f"{passed / unit_s:.0f} {unit}"
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d")


def ago(at_s: float, now_s: float | None = None) -> str:
    """An age in a sentence."""
    told = age(at_s, now_s)
    return f"{told} ago" if told[-1].isalpha() and told != "just now" else told


def told(value: object) -> str:
    """A field of a plan or of a case."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def stamp(at_s: float) -> str:
    """For machines and tooltips."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def instant(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def count(value: float) -> str:
    return f"{value:,.0f}"


def bytes_of(value: float) -> str:
    """Three digits in the unit in which they are easy to read."""
    size, unit = float(value), 0
    while size >= 999.5 and unit < len(_BYTES) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_BYTES[unit]}"


def words(name: str) -> str:
    """A name of the code as words: `waiting_approval`, `dp_shard`."""
    return STATES.get(name) or name.replace("_", " ")
