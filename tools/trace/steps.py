"""The training steps of a rank: their windows on the device's timeline, and which of them are warm-up.

A step begins on the device with the first event launched after the profiler's mark on the host. Steps
follow one another without gaps, so their times add up; what ran before the first mark belongs to none.
"""

import re
from dataclasses import dataclass

import numpy as np

from tools.trace.breakdown import Breakdown, Occupancy
from tools.trace.classify import Work
from tools.trace.links import find_launches
from tools.trace.record import Integers, RankTrace

_STEP_MARK = re.compile(r"ProfilerStep\s?#(\d{1,12})")
_WARM_UP_RATIO = 1.5
"""A leading step this much longer than the median of the later ones is warm-up."""


@dataclass(frozen=True)
class StepProfile:
    """One step of one rank."""

    number: int
    start_ns: int
    breakdown: Breakdown
    is_warm_up: bool = False


def measure_steps(trace: RankTrace, work: Work, occupancy: Occupancy) -> list[StepProfile]:
    """All steps that the trace marks; empty when it marks none."""
    numbers, marks_ns = _find_marks(trace)
    if not len(marks_ns) or not len(work.spans):
        return []
    numbers, starts_ns = _device_starts(numbers, marks_ns, trace, work)
    ends_ns = np.append(starts_ns[1:], work.spans.end_ns.max())
    steps = [
        StepProfile(int(number), int(start), occupancy.breakdown(int(start), int(end)))
        for number, start, end in zip(numbers, starts_ns, ends_ns, strict=True)
    ]
    return _mark_warm_up(steps)


def _find_marks(trace: RankTrace) -> tuple[Integers, Integers]:
    """Numbers and host start times of the marks, in time order."""
    rows = []
    for name in np.unique(trace.annotations.name):
        match = _STEP_MARK.match(trace.names[name])
        if match:
            here = trace.annotations.name == name
            rows.append((int(trace.annotations.start_ns[here].min()), int(match.group(1))))
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 2)
    return table[:, 1], table[:, 0]


def _device_starts(
    numbers: Integers, marks_ns: Integers, trace: RankTrace, work: Work
) -> tuple[Integers, Integers]:
    """When each step's first work started; steps without work of their own are left out."""
    owned = find_launches(work.spans.link, trace.launches)
    called_ns = np.where(owned.found, owned.start_ns, work.spans.start_ns)
    step = np.searchsorted(marks_ns, called_ns, side="right") - 1
    inside = step >= 0
    starts_ns = np.full(len(marks_ns), np.iinfo(np.int64).max)
    np.minimum.at(starts_ns, step[inside], work.spans.start_ns[inside])
    used = starts_ns < np.iinfo(np.int64).max
    # Streams may reorder work across a mark; a step cannot start before the one before it.
    return numbers[used], np.maximum.accumulate(starts_ns[used])


def _mark_warm_up(steps: list[StepProfile]) -> list[StepProfile]:
    leading = 0
    while len(steps) - leading > 2:
        later = np.median([step.breakdown.total_ns for step in steps[leading + 1 :]])
        if steps[leading].breakdown.total_ns <= _WARM_UP_RATIO * later:
            break
        leading += 1
    return [
        StepProfile(step.number, step.start_ns, step.breakdown, position < leading)
        for position, step in enumerate(steps)
    ]


def variation_ratio(steps: list[StepProfile]) -> float | None:
    """Standard deviation over mean of the steps after warm-up; None for fewer than two."""
    times_ns = [step.breakdown.total_ns for step in steps if not step.is_warm_up]
    if len(times_ns) < 2 or not np.mean(times_ns):
        return None
    return float(np.std(times_ns) / np.mean(times_ns))
