"""What a session says in one sentence: a pure function of losses, decision, measurement and evidence.

Pages, the list, exports, commands, reports and messages read this; none of them judges again.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from graph.request import Decision
from tools.physics.terms import Bottleneck
from tools.recommend.hypotheses import CAUSE_OF_TERM, Hypothesis
from tools.recommend.losses import Limit, limit_of, losses_of
from tools.recommend.report import Diagnosis, Proposal
from tools.recommend.words import format_same_decimals
from tools.recommend.workload import PredictedPlan, Workload
from tools.scenario.spec import ClosedModel
from tools.trace.causes import CAUSES, Cause

Stance = Literal["foreign", "unfit", "start", "switch", "keep"]
"""The traces are of another job; today's plan cannot run; there is no plan of today's; a proposal is better;
nothing is to be changed."""
UNSOLD: tuple[Stance, ...] = ("foreign", "unfit", "start")
"""Without a base that gains could be counted from."""
MAX_WORDS = 20
RUN_CAUSES: dict[str, Cause] = {
    cause: cause for cause in CAUSES if cause not in {"trace_mismatch", *CAUSE_OF_TERM.values()}
}
"""Faults of the run that traces show, and no plan has."""
MAX_NAME_WORDS = 3
POLICY = "policy"


class Gain(ClosedModel):
    """Over today's plan: measured where both were, else predicted."""

    speedup: float
    low: float
    high: float
    predicted: float | None


class Headline(ClosedModel):
    """The verdict with the figures that may stand beside it."""

    stance: Stance
    text: str
    """At most twenty words."""
    decision: Literal["approved", "rejected"] | None = None
    """By a person; a policy's approvals are no news to anybody."""
    rank: int | None
    """The proposal that counts, and that is exported if none is named; None: no proposal does."""
    limit: Limit
    gain: Gain | None = None
    """The only speedup that may be shown as the result; None: nothing is gained, or there is no base."""
    is_measured: bool = False
    """Whether the plan that counts was measured."""
    today_s: float | None = None
    """Measured where it was."""
    step_s: float
    mfu: float
    memory_gib: float
    fit_probability: float
    split: dict[Bottleneck, float] = Field(default_factory=dict)
    """Shares of the diagnosed step, by what takes them."""

    @property
    def sells(self) -> bool:
        """Whether gains over today's plan mean something."""
        return self.stance not in UNSOLD


def headline_of(
    workload: Workload,
    today: PredictedPlan | None,
    diagnosis: Diagnosis,
    proposals: Sequence[Proposal],
    *,
    hypotheses: Sequence[Hypothesis] = (),
    decisions: Sequence[Decision] = (),
    trial_s: float | None = None,
    others_tried: bool = True,
    is_default: bool = False,
    is_tuned: bool = False,
) -> Headline:
    """`today` is the baseline, which `is_default` says to be the framework's own; `trial_s` is its step in
    a trial."""
    measured_s = trial_s or measured_today_s(diagnosis)
    today_runs = measured_s is not None or (today is not None and workload.has_run(today.plan))
    stance = _stance(today, today_runs, diagnosis, proposals[0])
    last = next((made for made in reversed(decisions) if made.action in ("approve", "reject")), None)
    if last and (last.by == POLICY or (is_tuned and last.action == "approve")):
        last = None  # in a tuned session a person approves what is measured next
    rank: int | None = 1
    if last:
        rank = min(last.proposal, len(proposals)) if last.action == "approve" else None
        stance = stance if rank or stance in UNSOLD else "keep"
    elif stance == "keep":
        rank = next((each.rank for each in proposals if _is_today(each)), None)
    counts = proposals[rank - 1] if rank else None
    measured = counts.measured if counts else None
    shown = counts.prediction if counts else today.prediction if today else proposals[0].prediction
    step_s = measured.step_time_s if measured else shown.step_time_s
    headline = Headline(
        stance=stance,
        text="",
        decision=None if last is None else "approved" if rank else "rejected",
        rank=rank,
        limit=_limit(workload, today, diagnosis, proposals, hypotheses),
        gain=_gain(counts, stance) if counts else None,
        is_measured=measured is not None,
        today_s=measured_s or (today and today.prediction.step_time_s),
        step_s=step_s if counts or not measured_s else measured_s,
        mfu=shown.mfu,
        memory_gib=shown.peak_memory_gib,
        fit_probability=shown.fit_probability,
        split=diagnosis.shares,
    )
    who = last.by if last and last.by and len(last.by.split()) <= MAX_NAME_WORDS else "A person"
    base, unfit = "the default" if is_default else "today", today and workload.why_unfit(today)
    text = _sentence(headline, who, base, others_tried, today, unfit, diagnosis)
    return headline.model_copy(update={"text": text})


def measured_today_s(diagnosis: Diagnosis) -> float | None:
    """By traces of this job, or by what notes state; traces of another job measure nothing here."""
    if diagnosis.cause == "trace_mismatch":
        return None
    if diagnosis.recalibrated:
        return diagnosis.recalibrated.measured_s
    return diagnosis.profile.step_time_s if diagnosis.profile else None


def _stance(today: PredictedPlan | None, today_runs: bool, diagnosis: Diagnosis, first: Proposal) -> Stance:
    if diagnosis.cause == "trace_mismatch":
        return "foreign"
    if today is None:
        return "start"
    if not (today.prediction.fits or today_runs):
        return "unfit"
    if first.measured:
        if first.measured.speedup_low is None:  # today's plan could not be measured
            return "start"
        return "switch" if first.measured.speedup_low > 1.0 and not _is_today(first) else "keep"
    is_slower = (first.speedup or 1.0) < 1.0
    return "keep" if diagnosis.lever or _is_today(first) or is_slower else "switch"


def _is_today(proposal: Proposal) -> bool:
    """In a cold start nothing is said to change either."""
    return not proposal.changes and not proposal.settings


def _gain(counts: Proposal, stance: Stance) -> Gain | None:
    """What was measured outranks what is predicted; without a base there is no gain."""
    known = counts.measured or counts
    if stance in UNSOLD or _is_today(counts):
        return None
    if known.speedup is None or known.speedup_low is None or known.speedup_high is None:
        return None
    ends = {"low": known.speedup_low, "high": known.speedup_high}
    return Gain(speedup=known.speedup, predicted=counts.speedup, **ends)


def _limit(
    workload: Workload,
    today: PredictedPlan | None,
    diagnosis: Diagnosis,
    proposals: Sequence[Proposal],
    hypotheses: Sequence[Hypothesis],
) -> Limit:
    """A fault of the run that traces show stands before what its plan costs."""
    first = next(iter(hypotheses), None)
    if first and first.source == "profile" and first.seconds and first.cause in RUN_CAUSES:
        name, share = CAUSES[RUN_CAUSES[first.cause]].label, first.share or 0.0
        return Limit(key=first.cause, name=name, seconds=first.seconds, share=share, source="profile")
    plans = [PredictedPlan(each.plan, each.prediction) for each in proposals]
    diagnosed, *_ = [*([today] if today else []), *plans]
    others = [losses_of(workload, each) for each in plans]
    return limit_of(diagnosed.prediction, losses_of(workload, diagnosed), others)


def _sentence(
    headline: Headline,
    who: str,
    base: str,
    others_tried: bool,
    today: PredictedPlan | None,
    unfit: str | None,
    diagnosis: Diagnosis,
) -> str:
    """A person's decision first, then what was measured, then what is predicted."""
    rank, gain, limit = headline.rank, headline.gain, headline.limit
    pace, share = f"{format_same_decimals(headline.step_s)[0]} s per step", f"{limit.share:.0%}"
    how, whose = "measured" if headline.is_measured else "predicted", f"{base}'s"
    faster = f"{gain.speedup:.2f}x as fast as {base} ({gain.low:.2f} to {gain.high:.2f})" if gain else ""
    if headline.decision == "rejected":
        return f"{who} rejected the proposals: nothing is to be changed."
    if headline.stance == "foreign":
        beside, took_s = "", diagnosis.profile and diagnosis.profile.step_time_s
        if took_s and today:
            took, predicted = format_same_decimals(took_s, today.prediction.step_time_s)
            beside = f": {took} s measured, {predicted} s predicted"
        settled = f" {who} approved proposal {rank}." if headline.decision else ""
        return f"The traces are not of this job{beside}.{settled}"
    if headline.decision == "approved":
        return f"{who} approved proposal {rank}: {f'{how} {faster}, ' if faster else ''}{pace}."
    if headline.is_measured:
        if headline.stance == "keep":
            rivals = "no plan that was tried is clearly faster" if others_tried else "no other plan was tried"
            return f"Measured: {whose} plan takes {pace}; {rivals}."
        return f"Measured: proposal {rank} takes {pace}; {faster or f'{whose} plan could not be measured'}."
    if headline.stance == "unfit":
        return f"Today's plan {unfit}; proposal {rank} fits: {pace}."
    if headline.stance == "start":
        loss = f" {limit.kind}: {limit.name}, {share} of it." if limit.source == "model" else ""
        return f"Start with proposal {rank}: {pace}, {headline.mfu:.0%} MFU.{loss}"
    if headline.stance == "keep":
        if limit.source == "profile":
            return f"Keep {whose} plan; the largest loss is elsewhere: {limit.name}, {share}."
        loss = f"Largest loss: {limit.name}, {share} of its step"
        return f"Keep {whose} plan: no plan is clearly faster. {loss}."
    offered = f"proposal {rank} is predicted {f'{gain.speedup:.2f}x as fast' if gain else f'at {pace}'}."
    if limit.source == "profile":
        return f"{limit.name[:1].upper()}{limit.name[1:]}: {share} of {whose} step; {offered}"
    return f"{limit.kind}: {limit.name}, {share} of {whose} step; {offered}"
