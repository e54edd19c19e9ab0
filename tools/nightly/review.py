"""A workload's last night against those before: findings, device-hours per day, where to look first."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tools.nightly.attribution import (
    Attribution,
    Bisection,
    ChangeKind,
    attribute,
    nights_with_changes,
    plan_bisection,
)
from tools.nightly.findings import (
    IMPROVED,
    MEMORY,
    MFU,
    MIN_STEP_RATIO,
    NEW,
    OPEN,
    RECOVERED,
    SPREAD,
    STEP_TIME,
    SUSPECTED,
    TERM,
    FigureJudgement,
    NightFinding,
    judge,
    list_series,
)
from tools.nightly.night import Night
from tools.nightly.noise import level
from tools.nightly.sensitivity import NightSensitivity, sensitivity_of
from tools.nightly.steps import DetectionRules, recorded_hints, step_time_evidence

HOURS_PER_DAY = 24.0
REGRESSED, SLOWER, SUSPECTED_SLOW, NOTICE = "regressed", "slower", "suspected", "notice"
QUIET, LEARNING = "quiet", "learning"
STATUSES = {NEW: REGRESSED, OPEN: SLOWER, SUSPECTED: SUSPECTED_SLOW, RECOVERED: RECOVERED, IMPROVED: IMPROVED}
MAX_NAMES = 5
LOOK_AT = {
    "compute": "the kernels: compare an earlier profile with one of now with `asap diagnose --compare`",
    "memory_bound_ops": "element-wise kernels: a fusion may have been lost (compilation, a new mask)",
    "tp_comm_exposed": "tensor-parallel collectives: links inside the node, and what they overlap with",
    "cp_comm_exposed": "context-parallel exchange: sequence lengths, and links inside the node",
    "ep_comm_exposed": "the experts' all-to-all: balance of the router, and links between nodes",
    "dp_comm_exposed": "gradient and parameter exchange: links between nodes, bucket sizes, overlap",
    "other_comm_exposed": "collectives that belong to no axis of the plan: logging or checks in the step",
    "pipeline": "the pipeline: balance of its stages, and the number of micro-batches",
    "optimizer": "the optimizer: fused kernels, and where its state lives",
    "host_and_other": "the host: data loading, synchronisation, and ranks that arrive late",
    "idle": "the host: data loading and synchronisation",
    "exposed_communication": "collectives: links, and what they used to overlap with",
}
ABOUT_CHANGE: dict[ChangeKind, str] = {
    "software": "revert the software and rerun ({names}, {when})",
    "plan": "the plan changed {when} ({names}): compare both plans with `asap explain`",
    "nodes": "check the nodes that changed {when}: {names}",
    "data": "the data changed {when} ({names}): check sequence lengths and loading",
}
ABOUT_FIGURE = {
    MEMORY: "peak memory grew: a longer batch may run out of memory",
    SPREAD: "ranks drifted apart: look for a slow device or uneven data",
}


def lost_device_hours(
    num_devices: int, fast_s: float, slow_s: float, hours_per_day: float = HOURS_PER_DAY
) -> float:
    """Device-hours per day that steps of `fast_s` would not need, for a job that runs `hours_per_day`."""
    if slow_s <= 0 or fast_s >= slow_s:
        return 0.0
    return num_devices * hours_per_day * (1.0 - max(fast_s, 0.0) / slow_s)


def gained_device_hours(num_devices: int, speedup: float, hours_per_day: float = HOURS_PER_DAY) -> float:
    """Device-hours per day that a plan with this speed-up would free."""
    return lost_device_hours(num_devices, 1.0, speedup, hours_per_day)


@dataclass(frozen=True)
class Review:
    """`findings` are of the last night; the one about the step time comes first if there is one."""

    nights: list[Night]
    """Nights with the last night's contract, oldest first."""
    num_others: int
    """Nights of other contracts, which were left out."""
    findings: list[NightFinding]
    attribution: Attribution | None
    """Explains the step time's change, else the first figure's."""
    lost_device_hours_per_day: float
    """Against the level before the regression that is open."""
    levels: dict[str, list[float]]
    """For every figure its level on each night that has it, for plots."""
    is_learning: bool
    """Whether there are too few nights to judge."""
    sensitivity: NightSensitivity | None
    """None while there are too few nights."""
    bisection: Bisection | None
    """How to find out which recorded change it was; None without a regression or a recorded change."""

    @property
    def headline(self) -> NightFinding | None:
        return _headline(self.findings)

    @property
    def is_regression(self) -> bool:
        """Whether the step time got worse on this night: the reason for an alarm."""
        return self.headline is not None and self.headline.state == NEW

    @property
    def status(self) -> str:
        """The night in a word, by the step time first."""
        if self.headline is not None:
            return STATUSES[self.headline.state]
        if any(finding.is_bad for finding in self.findings):
            return NOTICE
        return LEARNING if self.is_learning else QUIET


def review(
    nights: Sequence[Night],
    hours_per_day: float = HOURS_PER_DAY,
    min_step_ratio: float = MIN_STEP_RATIO,
    rules: DetectionRules | None = None,
    reported_until: float | None = None,
) -> Review:
    """Nights in any order; those of another contract than the last one's are left out.

    What happened after `reported_until` is new; if absent, only what happened on the last night.
    """
    if not nights:
        raise ValueError("a review needs at least one night")
    ordered = sorted(nights, key=lambda night: (night.at, night.key))
    same = [night for night in ordered if night.contract == ordered[-1].contract]
    rules = rules or DetectionRules()
    changed = nights_with_changes(same)
    recorded = recorded_hints(changed)
    strict, hints = step_time_evidence(same, changed, rules)
    unreported = None if reported_until is None else sum(night.at <= reported_until for night in same)
    first, *others = list_series(same, min_step_ratio)
    judged = [
        judge(first, changed, strict, unreported, hints),
        *(judge(series, changed, rules, unreported, recorded) for series in others),
    ]
    current = [each for each in judged if each.finding and each.series.nights[-1] == len(same) - 1]
    findings = [each.finding for each in current if each.finding]
    headline = _headline(findings)
    if headline is not None:  # MFU repeats the step time, and parts of the step are reported as its causes
        findings = [finding for finding in findings if not finding.figure.startswith((MFU, TERM))]
    explained = next((each for each in current if each.finding is headline), next(iter(current), None))
    why = attribute(same, explained.first_night) if explained else None
    slower, devices = headline if headline and headline.is_bad else None, same[-1].num_devices
    lost = lost_device_hours(devices, slower.anchor, slower.now, hours_per_day) if slower else 0.0
    return Review(
        nights=same,
        num_others=len(ordered) - len(same),
        findings=findings,
        attribution=why,
        lost_device_hours_per_day=lost,
        levels={each.series.figure.name: _levels(each) for each in judged},
        is_learning=len(same) <= rules.min_nights,
        sensitivity=sensitivity_of(same, judged[0], strict),
        bisection=plan_bisection(why.changes, slower, same[-1]) if why and slower else None,
    )


def _headline(findings: Sequence[NightFinding]) -> NightFinding | None:
    return next((finding for finding in findings if finding.figure == STEP_TIME), None)


def _levels(judged: FigureJudgement) -> list[float]:
    """A step is drawn where it began, not where it was noticed."""
    series, history = judged.series, judged.history
    lasting = [step for step in history.steps if step.cleared is None]
    values = np.asarray(series.values)
    bounds = [0, *(step.night for step in lasting), len(values)]
    heights = [step.before for step in lasting] + [level(values[history.present])]
    return [
        series.figure.from_scale(height)
        for (start, end), height in zip(pairwise(bounds), heights, strict=True)
        for _ in range(start, end)
    ]


def advise(review: Review) -> list[str]:
    """Most useful first; empty if nothing is wrong."""
    bad = [finding for finding in review.findings if finding.is_bad]
    if not bad or review.attribution is None:
        return []
    why, advice = review.attribution, []
    # Changes of the same night by kind; those nearby only if there are none.
    same = [change for change in why.changes if change.offset == 0]
    by_kind: dict[ChangeKind, list[str]] = defaultdict(list)
    for change in same or why.changes:
        by_kind[change.kind].append(f"{change.name} {change.before} to {change.now}")
    for kind, group in by_kind.items():
        more = f" and {len(group) - MAX_NAMES} more" if len(group) > MAX_NAMES else ""
        names, when = ", ".join(group[:MAX_NAMES]) + more, "the same night" if same else "about that night"
        advice.append(ABOUT_CHANGE[kind].format(names=names, when=when))
    if ranks := why.slow_ranks:
        nodes = sorted({slow.node for slow in ranks if slow.node})
        where = f" on {', '.join(nodes[:MAX_NAMES])}" if nodes else ""
        names = ", ".join(str(slow.rank) for slow in ranks[:MAX_NAMES])
        slowest = max(slow.ratio for slow in ranks)
        advice.append(
            f"rank {names}{where} is up to {slowest:.0%} slower than the median rank: check its device"
        )
    if review.headline in bad and why.terms and why.terms[0].term in LOOK_AT:
        advice.append(f"look at {LOOK_AT[why.terms[0].term]}")
    advice += [ABOUT_FIGURE[finding.figure] for finding in bad if finding.figure in ABOUT_FIGURE]
    if not why.changes and why.unknown:
        names = " and ".join(why.unknown)
        advice.append(f"record {names} of every night (job.yaml), so that the next change can be explained")
    return advice
