"""The last night of a workload against those before: findings, device-hours per day, and where to look
first.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tools.nightly.attribution import Attribution, SurroundingChange, attribute, nights_with_changes
from tools.nightly.findings import (
    IMPROVED,
    LEAST_STEP_RATIO,
    MEMORY,
    MFU,
    NEW,
    OPEN,
    RECOVERED,
    SPREAD,
    STEP_TIME,
    SUSPECTED,
    TERM,
    Finding,
    Series,
    judge,
    list_series,
)
from tools.nightly.night import Night, SlowRank
from tools.nightly.noise import level
from tools.nightly.steps import Course, Rules

HOURS_PER_DAY = 24.0


def lost_device_hours(
    num_devices: int, fast_s: float, slow_s: float, hours_per_day: float = HOURS_PER_DAY
) -> float:
    """Of the hours a day in which the job runs, the share that steps of `fast_s` would not need."""
    if slow_s <= 0 or fast_s >= slow_s:
        return 0.0
    return num_devices * hours_per_day * (1.0 - max(fast_s, 0.0) / slow_s)


def gained_device_hours(num_devices: int, speedup: float, hours_per_day: float = HOURS_PER_DAY) -> float:
    """What a plan that is so much faster would free."""
    return lost_device_hours(num_devices, 1.0, speedup, hours_per_day)


REGRESSED, SLOWER, SUSPECTED_SLOW, NOTICE = "regressed", "slower", "suspected", "notice"
QUIET, LEARNING = "quiet", "learning"
STATUSES = {
    NEW: REGRESSED,
    OPEN: SLOWER,
    SUSPECTED: SUSPECTED_SLOW,
    RECOVERED: RECOVERED,
    IMPROVED: IMPROVED,
}


@dataclass(frozen=True)
class Review:
    """`findings` are of the last night; the step time comes first where it has one."""

    nights: list[Night]
    """Of the last night's contract, oldest first."""
    others: int
    """Nights of other contracts, which were left out."""
    findings: list[Finding]
    attribution: Attribution | None
    """Of the step time's change, else of the first figure's."""
    lost_device_hours_per_day: float
    """Against the level before the regression that is open."""
    levels: dict[str, list[float]]
    """Of every figure the level on each night that has it, for plots."""
    learning: bool
    """Whether there are too few nights to judge."""

    @property
    def headline(self) -> Finding | None:
        """What is said of the step time."""
        return next((one for one in self.findings if one.figure == STEP_TIME), None)

    @property
    def is_regression(self) -> bool:
        """Whether the step time has got worse on this night: what an alarm is raised for."""
        return self.headline is not None and self.headline.state == NEW

    @property
    def status(self) -> str:
        """The night in a word, by the step time first."""
        if self.headline is not None:
            return STATUSES[self.headline.state]
        if any(one.state in (NEW, OPEN) for one in self.findings):
            return NOTICE
        return LEARNING if self.learning else QUIET


def review(
    nights: Sequence[Night],
    hours_per_day: float = HOURS_PER_DAY,
    least_step_ratio: float = LEAST_STEP_RATIO,
    rules: Rules | None = None,
    told_until: float | None = None,
) -> Review:
    """Nights in any order; those of another contract than the last one's are left out.

    What happened after `told_until` is new; if absent, only what happened on the last night.
    """
    if not nights:
        raise ValueError("a review needs at least one night")
    ordered = sorted(nights, key=lambda night: (night.at, night.key))
    same = [night for night in ordered if night.contract == ordered[-1].contract]
    changed = nights_with_changes(same)
    unread = None if told_until is None else sum(night.at <= told_until for night in same)
    judged = [(one, *judge(one, changed, rules, unread)) for one in list_series(same, least_step_ratio)]
    findings = [found for one, found, _ in judged if found and one.places[-1] == len(same) - 1]
    head = next((one for one in findings if one.figure == STEP_TIME), None)
    told = head or next(iter(findings), None)
    return Review(
        nights=same,
        others=len(ordered) - len(same),
        findings=_without_repeats(findings, head),
        attribution=attribute(same, told.since) if told else None,
        lost_device_hours_per_day=_lost(head, same[-1].num_devices, hours_per_day),
        levels={one.figure.name: _levels(one, course) for one, _, course in judged},
        learning=len(same) <= (rules or Rules()).learning,
    )


def _lost(head: Finding | None, num_devices: int, hours_per_day: float) -> float:
    if head is None or not head.is_bad:
        return 0.0
    return lost_device_hours(num_devices, head.anchor, head.now, hours_per_day)


def _without_repeats(findings: list[Finding], head: Finding | None) -> list[Finding]:
    """MFU says what the step time says, and parts of the step are told as its causes."""
    if head is None:
        return findings
    return [one for one in findings if not one.figure.startswith((MFU, TERM))]


def _levels(series: Series, course: Course) -> list[float]:
    """A step is drawn where it began, not where it was noticed."""
    lasting = [step for step in course.steps if step.cleared is None]
    values = np.asarray(series.values)
    bounds = [0, *(step.night for step in lasting), len(values)]
    parts = [values[start:end] for start, end in pairwise(bounds)]
    heights = [step.before for step in lasting] + [level(values[course.present])]
    return [
        series.figure.from_scale(height) for part, height in zip(parts, heights, strict=True) for _ in part
    ]


MOST_NAMES = 5
LOOK_AT = {
    "compute": "the kernels: compare a profile of before and one of now with `asap diagnose --compare`",
    "memory_bound_ops": "element-wise kernels: a fusion may have been lost (compilation, a new mask)",
    "tp_comm_exposed": "tensor-parallel collectives: links inside the node, and what they overlap with",
    "cp_comm_exposed": "context-parallel exchange: sequence lengths, and links inside the node",
    "ep_comm_exposed": "the experts' all-to-all: balance of the router, and links between nodes",
    "dp_comm_exposed": "gradient and parameter exchange: links between nodes, bucket sizes, overlap",
    "other_comm_exposed": "collectives that belong to no axis of the plan: logging or checks in the step",
    "pipeline": "the pipeline: balance of its stages, and the number of micro-batches",
    "optimizer": "the optimizer: fused kernels, and where its state lies",
    "host_and_other": "the host: data loading, synchronisation, and ranks that come late",
    "idle": "the host: data loading and synchronisation",
    "exposed_communication": "collectives: links, and what they used to overlap with",
}


def advise(found: Review) -> list[str]:
    """Most telling first; empty where nothing is wrong."""
    bad = [one for one in found.findings if one.is_bad]
    if not bad or found.attribution is None:
        return []
    why = found.attribution
    says = [*_by_changes(why.changes), *_by_ranks(why.slow_ranks)]
    if found.headline in bad:
        says += _by_terms(why)
    says += [text for one in bad for text in _by_figure(one)]
    if not why.changes and why.unknown:
        names = " and ".join(why.unknown)
        says.append(f"record {names} of every night (job.yaml), so that the next change can be explained")
    return says


def _by_changes(changes: Sequence[SurroundingChange]) -> list[str]:
    """Those of the same night by kind; those nearby only where there are none."""
    same = [one for one in changes if one.offset == 0]
    grouped: dict[str, list[SurroundingChange]] = defaultdict(list)
    for one in same or changes:
        grouped[one.kind].append(one)
    when = "the same night" if same else "about that night"
    return [_BY_KIND[kind](_names(some), when) for kind, some in grouped.items()]


_BY_KIND = {
    "software": lambda names, when: f"run once with the software of before: {names}, changed {when}",
    "plan": lambda names, when: f"the plan changed {when} ({names}): compare both plans by `asap explain`",
    "nodes": lambda names, when: f"check the nodes that changed {when}: {names}",
    "data": lambda names, when: f"the data changed {when} ({names}): check sequence lengths and loading",
}


def _names(changes: Sequence[SurroundingChange]) -> str:
    told = [f"{one.name} {one.before} to {one.now}" for one in changes[:MOST_NAMES]]
    more = len(changes) - len(told)
    return ", ".join(told) + (f" and {more} more" if more else "")


def _by_ranks(ranks: Sequence[SlowRank]) -> list[str]:
    if not ranks:
        return []
    nodes = sorted({one.node for one in ranks if one.node})
    where = f" on {', '.join(nodes[:MOST_NAMES])}" if nodes else ""
    names = ", ".join(str(one.rank) for one in ranks[:MOST_NAMES])
    slowest = max(one.ratio for one in ranks)
    return [f"rank {names}{where} became up to {slowest:.0%} slower than the middle one: check those devices"]


def _by_terms(why: Attribution) -> list[str]:
    """The part that grew most, if anything is known about it."""
    return [f"look at {LOOK_AT[one.term]}" for one in why.terms[:1] if one.term in LOOK_AT]


def _by_figure(finding: Finding) -> list[str]:
    if finding.figure == MEMORY:
        return ["peak memory grew: the next longer batch may not fit"]
    if finding.figure == SPREAD:
        return ["ranks drifted apart: look for a slow device or uneven data"]
    return []
