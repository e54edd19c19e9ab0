"""Short histories for the tests, each night written out."""

from collections.abc import Sequence
from typing import Any

from tools.nightly.night import Night, RunEnvironment

DAY_S = 86_400.0


def night(number: int, step_time_s: float = 10.0, **parts: Any) -> Night:  # noqa: ANN401 - fields of a night
    return Night(key=f"night {number}", at=number * DAY_S, step_time_s=step_time_s, **parts)


def nights(times_s: Sequence[float], **parts: Any) -> list[Night]:  # noqa: ANN401 - fields of every night
    return [night(number, time_s, **parts) for number, time_s in enumerate(times_s)]


def wobble(count: int, level_s: float = 10.0) -> list[float]:
    """Around a level by at most one percent, the same every time."""
    pattern = (0.3, -0.8, 0.5, -0.2, 0.9, -0.6, 0.1, -0.4, 0.7, -0.5)
    return [level_s * (1 + 0.01 * pattern[number % len(pattern)]) for number in range(count)]


def environment(versions: dict[str, str] | None = None, **parts: Any) -> RunEnvironment:  # noqa: ANN401 - as above
    return RunEnvironment(versions=versions or {}, **parts)
