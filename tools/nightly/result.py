"""What a night says of a workload and of all of them, typed: stored as JSON and shown by every document, page
and command.

Made once when a night is reviewed, parsed once from the database (`NightResult.model_validate`).
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from tools.nightly.attribution import Attribution, Bisection
from tools.nightly.findings import STEP_TIME, NightFinding
from tools.nightly.night import Night, StoredResult
from tools.nightly.review import LEARNING, QUIET, SLOWER, Review
from tools.nightly.sensitivity import NightSensitivity
from tools.physics.terms import Bottleneck
from tools.recommend.report import Change, MeasuredPlan
from tools.scenario import Plan

NightOutcome = Literal["quiet", "slower", "regression", "broken"]
"""Slower: a regression of an earlier night is still open, and nothing else happened."""
STALE, BROKEN = "stale", "broken"
"""Statuses of a night beside those of a review: no new profile, and not read."""
FIGURES = ("step_time_s", "mfu", "peak_memory_bytes", "rank_spread_ratio")
FORMAT = 1
WORDS = {
    "got slower": "regressed",
    "still slower": "slower",
    "slow for one night": "suspected",
    "could not be read": BROKEN,
    "without a new profile": STALE,
    "back to normal": "recovered",
    "faster": "improved",
    "with a notice": "notice",
    "quiet": "quiet",
    "still learning": "learning",
}
FIRST_STATUSES = ("regressed", BROKEN, "slower", "suspected", "notice", STALE)


class NightSummary(StoredResult):
    """The last night in short."""

    key: str
    at: float
    source: str
    step_time_s: float
    mfu: float | None
    peak_memory_bytes: float | None
    rank_spread_ratio: float | None
    num_steps: int
    terms_s: dict[str, float]


class NightDiagnosis(StoredResult):
    """What limits the step, from the night's profile."""

    bottleneck: Bottleneck
    severity: float
    confidence: float
    summary: str = ""
    next_to_profile: list[str] = Field(default_factory=list)


class BestPlan(StoredResult):
    """The plan that the search puts first."""

    asked: str
    """Digest of what the search depends on: it is not repeated while this stays the same."""
    plan: Plan | None
    speedup: float | None
    today_s: float | None = None
    """Predicted step time of today's plan."""
    infeasible: str | None = None


class PlanSpeedup(StoredResult):
    plan: Plan | None
    speedup: float | None


class SessionRecord(StoredResult):
    """A session about the workload: why it was run and how it ended."""

    reason: str
    session_id: str | None
    failure: str | None
    is_open: bool
    trials: str | None = None
    """Why its trials ended, if it had any."""
    best: PlanSpeedup
    at: float


class OpenProposal(StoredResult):
    """A session's proposal that is neither rejected nor running yet."""

    plan: Plan
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    changes: list[Change] | None
    rationale: str | None
    measured: MeasuredPlan | None
    summary: str
    verdict: str | None
    first_step: str | None
    since: float
    reason: str
    session_id: str | None
    waits: bool
    """For a person's approval: then it is known by its plan only."""


class FigureTrend(StoredResult):
    """A figure on the nights that have it, with its level."""

    nights: list[int]
    values: list[float]
    levels: list[float]


class Trend(StoredResult):
    at: list[float] = Field(default_factory=list)
    figures: dict[str, FigureTrend] = Field(default_factory=dict)
    terms_s: dict[str, list[float | None]] = Field(default_factory=dict)


class NightResult(StoredResult):
    """What one night says of one workload."""

    name: str
    status: str
    """A review's status, or stale or broken."""
    reason: str | None = None
    """Why it is stale or broken."""
    model: str | None = None
    device: str | None = None
    num_devices: int | None = None
    hours_per_day: float
    night: NightSummary | None = None
    num_nights: int = 0
    num_other_nights: int = 0
    is_alarm: bool = False
    findings: list[NightFinding] = Field(default_factory=list)
    attribution: Attribution | None = None
    sensitivity: NightSensitivity | None = None
    """What change would be found by when; None while there are too few nights."""
    bisection: Bisection | None = None
    diagnosis: NightDiagnosis | None = None
    advice: list[str] = Field(default_factory=list)
    lost_device_hours_per_day: float = 0.0
    best: BestPlan | None = None
    asked: SessionRecord | None = None
    """The last session about this workload."""
    proposal: OpenProposal | None = None
    reoptimized: SessionRecord | None = None
    """The session of this night."""
    gained_device_hours_per_day: float = 0.0
    wasted_device_hours_per_day: float = 0.0
    trend: Trend = Field(default_factory=Trend)
    notes: list[str] = Field(default_factory=list)

    @property
    def headline(self) -> NightFinding | None:
        return next((finding for finding in self.findings if finding.figure == STEP_TIME), None)

    @property
    def is_changed(self) -> bool:
        """Whether something about it is to be seen: the digest has a plot of it."""
        return bool(self.findings) and self.status not in (STALE, BROKEN)

    @property
    def lost_device_hours_per_week(self) -> float:
        return 7 * self.lost_device_hours_per_day

    @property
    def step_times_s(self) -> list[float]:
        trend = self.trend.figures.get(STEP_TIME)
        return trend.values if trend else []

    def broken(self, reason: str, hours_per_day: float) -> "NightResult":
        """What was known before stays, so that the pages can still show it."""
        changed = {
            "status": BROKEN,
            "reason": reason,
            "hours_per_day": hours_per_day,
            "is_alarm": False,
            "advice": [],
            "bisection": None,
            "reoptimized": None,
        }
        return self.model_copy(update=changed)


class NightReport(StoredResult):
    """One night over all workloads of a configuration, under the date of the newest night it looks at."""

    format: int = FORMAT
    asap: str
    run_id: str | None
    title: str
    at: float
    made_at: float
    outcome: NightOutcome
    summary: str
    lost_device_hours_per_day: float
    gained_device_hours_per_day: float
    workloads: list[NightResult]

    @property
    def is_uneventful(self) -> bool:
        """Whether one line says all of it: nothing changed, and no session was run."""
        return all(
            result.status in (QUIET, LEARNING) and not result.findings and result.reoptimized is None
            for result in self.workloads
        )


def summary_of_night(night: Night) -> NightSummary:
    return NightSummary.model_validate(night.model_dump(include=set(NightSummary.model_fields)))


def trend_of(review: Review) -> Trend:
    nights, figures = review.nights, {}
    for name in FIGURES:
        values = [getattr(night, name) for night in nights]
        points = {position: value for position, value in enumerate(values) if value is not None}
        if points:
            levels = review.levels.get(name, [])
            figures[name] = FigureTrend(nights=list(points), values=list(points.values()), levels=levels)
    terms = sorted({term for night in nights for term in night.terms_s})
    return Trend(
        at=[night.at for night in nights],
        figures=figures,
        terms_s={term: [night.terms_s.get(term) for night in nights] for term in terms},
    )


def report_of(
    workloads: Sequence[NightResult], title: str, at: float, run_id: str | None, version: str, made_at: float
) -> NightReport:
    """The most costly first, after what could not be read: nothing is known of it."""
    counts = {words: sum(result.status == status for result in workloads) for words, status in WORDS.items()}
    parts = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
    proposed = sum(result.proposal is not None for result in workloads)
    plans = f"; {proposed} with a faster plan proposed" if proposed else ""

    def order(result: NightResult) -> tuple[int, float, str]:
        rank = FIRST_STATUSES.index(result.status) if result.status in FIRST_STATUSES else len(FIRST_STATUSES)
        return rank, -result.wasted_device_hours_per_day, result.name

    return NightReport(
        asap=version,
        run_id=run_id,
        title=title,
        at=max((result.night.at for result in workloads if result.night), default=at),
        made_at=made_at,
        outcome=outcome_of(workloads),
        summary=f"{len(workloads)} workload{'' if len(workloads) == 1 else 's'}: {parts}{plans}",
        lost_device_hours_per_day=sum(result.lost_device_hours_per_day for result in workloads),
        gained_device_hours_per_day=sum(result.gained_device_hours_per_day for result in workloads),
        workloads=sorted(workloads, key=order),
    )


def is_stale(report: NightReport) -> bool:
    return all(result.status == STALE for result in report.workloads)


def outcome_of(workloads: Sequence[NightResult]) -> NightOutcome:
    """A regression outweighs a workload that could not be read."""
    if any(result.is_alarm for result in workloads):
        return "regression"
    if any(result.status == BROKEN for result in workloads):
        return "broken"
    return "slower" if any(result.status == SLOWER for result in workloads) else "quiet"
