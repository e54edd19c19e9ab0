"""A whole night: every workload in turn, and the report over all of them as plain data."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from service import __version__
from service.nightly.definition import Policy
from service.nightly.outcome import BROKEN
from service.nightly.workload import Desk, run_workload

QUIET, REGRESSION = "quiet", "regression"
FORMAT = 1
Data = dict[str, Any]


def run_night(
    desk: Desk,
    policy: Policy,
    title: str,
    planned_at: float | None = None,
    on_workload: Callable[[Data], None] | None = None,
) -> Data:
    """`on_workload` is told of each when it is done; it may raise to end the run."""
    workloads = []
    for workload in policy.workloads:
        said = run_workload(desk, workload, policy)
        workloads.append(said)
        if on_workload:
            on_workload(said)
    return report_of(workloads, title, planned_at or desk.clock(), desk.run_id)


def report_of(workloads: Sequence[Data], title: str, at: float, run_id: str | None) -> Data:
    """What cost most comes first; what could not be read comes before all, since nothing is known of it."""
    ordered = sorted(workloads, key=_order)
    outcome = outcome_of(workloads)
    return {
        "format": FORMAT,
        "asap": __version__,
        "run_id": run_id,
        "title": title,
        "at": at,
        "made_at": time.time(),
        "outcome": outcome,
        "summary": summary_of(workloads),
        "lost_device_hours_per_day": sum(one["lost_device_hours_per_day"] for one in workloads),
        "gained_device_hours_per_day": sum(one["gained_device_hours_per_day"] for one in workloads),
        "workloads": ordered,
    }


def outcome_of(workloads: Sequence[Data]) -> str:
    """A regression outweighs a workload that could not be read."""
    if any(one["is_alarm"] for one in workloads):
        return REGRESSION
    return BROKEN if any(one["status"] == BROKEN for one in workloads) else QUIET


def summary_of(workloads: Sequence[Data]) -> str:
    """The report in one sentence."""
    counts = {word: sum(one["status"] in states for one in workloads) for word, states in WORDS.items()}
    told = [f"{count} {word}" for word, count in counts.items() if count]
    waiting = sum(bool(one["proposal"]) for one in workloads)
    plans = f"; {waiting} with a faster plan proposed" if waiting else ""
    return f"{len(workloads)} workload{'' if len(workloads) == 1 else 's'}: {', '.join(told)}{plans}"


WORDS = {
    "got slower": ("regressed",),
    "still slower": ("slower",),
    "slow for one night": ("suspected",),
    "could not be read": (BROKEN,),
    "without a new profile": ("stale",),
    "back to normal": ("recovered",),
    "faster": ("improved",),
    "with a notice": ("notice",),
    "quiet": ("quiet",),
    "still learning": ("learning",),
}
_RANK = ("regressed", BROKEN, "slower", "suspected", "notice", "stale")


def _order(said: Data) -> tuple[int, float, str]:
    rank = _RANK.index(said["status"]) if said["status"] in _RANK else len(_RANK)
    return rank, -said["wasted_device_hours_per_day"], said["name"]
