"""When a workload is re-optimized, by search or session, and the proposal kept open from night to night."""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Protocol

from graph.context import Context
from graph.report import Report, WaitingProposal
from graph.request import Budget, SessionOptions, parse_request
from graph.session import Session
from service import __version__
from service.render.text import seconds
from tools.errors import AsapError, InfeasibleError
from tools.nightly.night import StatedWorkload
from tools.nightly.result import BestPlan, NightResult, OpenProposal, PlanSpeedup, SessionRecord
from tools.recommend.optimize import best_plans, workload_of
from tools.recommend.proposal import speedup
from tools.recommend.report import MeasuredPlan, Proposal, Speedup
from tools.recommend.words import short
from tools.scenario import parse_scenario

MIN_NEWS_SPEEDUP = 1.01
"""A best plan that changed, but gains less than this, is no news."""
FAR_RATIO = 1.3
"""A prediction of today's plan that is further from the measurement earns a warning."""


@dataclass(frozen=True)
class SessionAnswer:
    """How a session ended: with a report, waiting for a person, or with a failure in plain words."""

    report: Report | None = None
    session_id: str | None = None
    waiting_for: list[WaitingProposal] | None = None
    failure: str | None = None
    is_busy: bool = False
    """It has not ended yet."""

    @property
    def is_open(self) -> bool:
        return self.is_busy or self.waiting_for is not None

    @property
    def state(self) -> dict[str, str | bool | None]:
        """What a record keeps of it; `trials` says why its trials ended, if it had any."""
        stopping = self.report.stopping if self.report else None
        trials = (stopping.reason or None) if stopping else None
        return {"failure": self.failure, "is_open": self.is_open, "trials": trials}


class Reoptimizer(Protocol):
    def run(self, workload: str, request: StatedWorkload) -> SessionAnswer: ...

    def look(self, session_id: str) -> SessionAnswer | None:
        """The state of a session of an earlier night; None if it is unknown."""


class LocalReoptimizer:
    """Runs the agents in this process; no person can be asked for approval."""

    def __init__(self, context: Context, run_id: str, budget: Budget | None = None) -> None:
        limits = context.limits.within(budget)
        self._context, self._run_id = replace(context, limits=limits), run_id

    def run(self, workload: str, request: StatedWorkload) -> SessionAnswer:
        try:
            parsed = parse_request(request)
            if parsed.options.mode == "tune" and self._context.trials:
                self._context.trials.check(parsed.scenario, parsed.options.template)
            # Trials are identified by their session: each night measures anew.
            outcome = Session(f"{self._run_id}.{workload}", self._context).run(parsed)
        except AsapError as error:
            return SessionAnswer(failure=str(error))
        return SessionAnswer(report=outcome.report)

    def look(self, session_id: str) -> SessionAnswer | None:
        """Local sessions end with their night; those of a server are its own."""
        return None


@dataclass(frozen=True)
class PlanUpdate:
    """What a night says about faster plans."""

    best: BestPlan | None = None
    asked: SessionRecord | None = None
    """The last session."""
    proposal: OpenProposal | None = None
    reoptimized: SessionRecord | None = None
    """Tonight's session."""


def update_proposal(
    reoptimizer: Reoptimizer,
    name: str,
    request: StatedWorkload,
    before: NightResult | None,
    gain: float,
    is_slower: bool,
    at: float,
) -> PlanUpdate:
    """`before` is the last night's result; `gain` the speed-up that a session is worth."""
    last_best = before.best if before else None
    # The search reads neither the session's options nor the traces.
    ignored = (*SessionOptions.model_fields, "traces")
    best = find_best({name: part for name, part in request.items() if name not in ignored}, last_best)
    asked, proposal = (before.asked, before.proposal) if before else (None, None)
    known = reoptimizer.look(asked.session_id) if asked and asked.session_id else None
    if asked and known:  # a person may have decided meanwhile
        asked = asked.model_copy(update=known.state)
        if not known.is_busy:
            proposal = None if known.failure else proposal_of(known, asked, gain)
    reason = reason_to_ask(best, last_best, asked, gain, is_slower)
    tonight = None
    if reason:
        answer = reoptimizer.run(name, request)
        best_now = PlanSpeedup(plan=best.plan, speedup=best.speedup)
        about = {"reason": reason, "session_id": answer.session_id, "best": best_now, "at": at}
        tonight = asked = SessionRecord.model_validate({**about, **answer.state})
        proposal = proposal_of(answer, asked, gain) or proposal
    if proposal and best.plan:
        # A proposal is over when its plan runs, or when no plan gains anything any more.
        today = request.get("plan") or {}
        stated = proposal.plan.model_dump(mode="json")
        runs_already = all(today.get(name) == value for name, value in stated.items())
        if not runs_already and (best.speedup is None or best.speedup > 1.0):
            return PlanUpdate(best, asked, proposal, tonight)
    return PlanUpdate(best, asked, None, tonight)


def find_best(described: StatedWorkload, previous: BestPlan | None) -> BestPlan:
    """The plan the search puts first, and its speed-up; not searched again if nothing has changed."""
    content = {name: part for name, part in described.items() if name not in ("traces", "notes", "id")}
    text = json.dumps([__version__, content], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if previous and previous.asked == digest:
        return previous
    workload = workload_of(parse_scenario(described, need_plan=False))
    try:
        plan = best_plans(workload)[0][0]
    except InfeasibleError as error:
        return BestPlan(asked=digest, plan=None, speedup=None, infeasible=str(error))
    today = workload.today()
    return BestPlan(
        asked=digest,
        plan=plan,
        speedup=speedup(workload, workload.predict([plan])[0], today).speedup,
        today_s=today.prediction.step_time_s if today else None,
    )


def reason_to_ask(
    best: BestPlan, last_best: BestPlan | None, asked: SessionRecord | None, gain: float, is_slower: bool
) -> str | None:
    """Why a session is run tonight; None if there is nothing new to find out."""
    if best.plan is None or (asked and asked.is_open):
        return None
    if is_slower:
        return "the step got slower"
    if asked and not asked.failure and asked.best.plan == best.plan:
        return None
    if best.speedup is None:
        return "no plan is known to run today"
    if last_best and last_best.plan not in (None, best.plan) and best.speedup >= MIN_NEWS_SPEEDUP:
        return "the best plan changed"
    return f"the best plan is predicted to be {best.speedup:.2f}x as fast" if best.speedup >= gain else None


def proposal_of(answer: SessionAnswer, asked: SessionRecord, gain: float) -> OpenProposal | None:
    """What a night keeps of a session's proposal: the first one, or the one that a person approved.

    None if a person rejected it, or if it gains less than `gain` and may as well gain nothing.
    """
    report = answer.report
    proposals = answer.waiting_for or (report.proposals if report else [])
    last = report.decisions[-1] if report and report.decisions else None
    if not proposals or (last and last.action == "reject"):
        return None
    rank = last.proposal if last and last.action == "approve" else 1
    chosen: Proposal | WaitingProposal = proposals[min(rank, len(proposals)) - 1]
    details = chosen if isinstance(chosen, Proposal) else None
    speed: Speedup | MeasuredPlan
    # A measurement replaces the prediction; a proposal that waits has the search's own.
    if chosen.measured is not None and chosen.measured.speedup is not None:
        speed = chosen.measured
    elif details:
        speed = details
    else:
        is_best = chosen.plan == asked.best.plan
        speed = Speedup(speedup=asked.best.speedup if is_best else chosen.speedup)
    if (speed.speedup or gain) < gain and (speed.speedup_low or 0.0) <= 1.0:
        return None
    return OpenProposal(
        plan=chosen.plan,
        speedup=speed.speedup,
        speedup_low=speed.speedup_low,
        speedup_high=speed.speedup_high,
        changes=details.changes if details else None,
        rationale=details.rationale if details else None,
        measured=chosen.measured,
        summary=short(chosen.plan),
        verdict=report.verdict if report else None,
        first_step=report.first_step if report else None,
        since=asked.at,
        reason=asked.reason,
        session_id=answer.session_id,
        waits=answer.waiting_for is not None,
    )


def prediction_warnings(best: BestPlan | None, step_time_s: float) -> list[str]:
    """If the prediction of today's plan is far from what was measured."""
    predicted_s = best.today_s if best else None
    if not predicted_s or 1 / FAR_RATIO <= predicted_s / step_time_s <= FAR_RATIO:
        return []
    times = f"today's plan takes {seconds(step_time_s)}, and is predicted to take {seconds(predicted_s)}"
    return [f"{times}: treat predicted gains with caution"]
