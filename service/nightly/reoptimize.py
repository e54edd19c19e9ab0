"""When a workload is re-optimized, by search or session, and the proposal kept open from night to night."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from graph.context import Context
from graph.request import OPTIONS, parse_request
from graph.session import Session
from service import __version__
from service.nightly.config import Budget
from service.render.text import seconds
from tools.errors import AsapError, InfeasibleError
from tools.recommend.optimize import best_plans, workload_of
from tools.recommend.proposal import speedup
from tools.recommend.words import short
from tools.scenario import Plan, parse_scenario

Data = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What came of a session: a report, a wait for a person, or a failure in plain words."""

    report: Data | None = None
    session_id: str | None = None
    waiting_for: Data | None = None
    failure: str | None = None
    is_busy: bool = False
    """It has not ended yet."""

    @property
    def is_open(self) -> bool:
        return self.is_busy or self.waiting_for is not None


class Reoptimizer(Protocol):
    def run(self, workload: str, request: Data) -> Answer: ...

    def look(self, session_id: str) -> Answer | None:
        """What became of a session of an earlier night; None where nobody knows it."""


class InProcess:
    """Runs the agents here and now; nobody can be asked."""

    def __init__(self, context: Context, run_id: str, budget: Budget | None = None) -> None:
        limits = context.limits.within(budget.model_dump() if budget else None)
        self._context, self._run_id = replace(context, limits=limits), run_id

    def run(self, workload: str, request: Data) -> Answer:
        try:
            parsed = parse_request(request)
            if parsed.mode == "tune" and self._context.trials:
                self._context.trials.check(parsed.scenario, parsed.template)
            # Trials are known by their session: each night measures anew.
            outcome = Session(f"{self._run_id}.{workload}", self._context).run(parsed)
        except AsapError as error:
            return Answer(failure=str(error))
        return Answer(report=outcome.report)

    def look(self, session_id: str) -> Answer | None:
        """Sessions of this kind end with their night; those of a server are its own."""
        return None


def find_best(described: Data, previous: Mapping[str, Any] | None) -> Data:
    """The plan the search puts first, and its speed-up; not searched again where nothing has changed."""
    asked = _digest(described)
    if previous and previous.get("asked") == asked:
        return dict(previous)
    workload = workload_of(parse_scenario(described, need_plan=False))
    try:
        plan = best_plans(workload)[0][0]
    except InfeasibleError as error:
        return {"asked": asked, "plan": None, "speedup": None, "today_s": None, "infeasible": str(error)}
    today = workload.today()
    return {
        "asked": asked,
        "plan": plan.model_dump(mode="json"),
        "speedup": speedup(workload, workload.predict([plan])[0], today).speedup,
        "today_s": today[1].step_time_s if today else None,
        "infeasible": None,
    }


def _digest(described: Data) -> str:
    """Of all that the search depends on."""
    content = {name: part for name, part in described.items() if name not in ("traces", "notes", "id")}
    text = json.dumps([__version__, content], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


WORTH_SAYING = 1.01
"""A best plan that changed, but gains less than this, is no news."""
FAR_RATIO = 1.3
KEPT = ("plan", "speedup", "speedup_low", "speedup_high", "changes", "rationale", "measured")
NOTHING_PLANNED: Data = {"best": None, "asked": None, "proposal": None, "reoptimized": None}
Before = Mapping[str, Any]
"""What was said of the workload last night; empty on the first."""


def replan(
    again: Reoptimizer, name: str, request: Data, before: Before, gain: float, is_slower: bool, at: float
) -> Data:
    """`best`, `asked` (the last session), `proposal` (if one is open), `reoptimized` (tonight's session)."""
    best = find_best(_described(request), before.get("best"))
    asked, proposal = _follow_up(again, before, gain)
    reason = reason_to_ask(best, before.get("best"), asked, gain, is_slower)
    tonight = None
    if reason:
        answer = again.run(name, request)
        tonight = asked = _asked(answer, reason, best, at)
        proposal = proposal_of(answer, asked, gain) or proposal
    still_open = _still_open(proposal, best, request.get("plan") or {})
    return {"best": best, "asked": asked, "proposal": still_open, "reoptimized": tonight}


def _described(request: Data) -> Data:
    """Without how far the session may go, and without the traces, which the search does not read."""
    return {name: part for name, part in request.items() if name not in (*OPTIONS, "traces")}


def _asked(answer: Answer, reason: str, best: Data, at: float) -> Data:
    return {
        "reason": reason,
        "session_id": answer.session_id,
        "failure": answer.failure,
        "is_open": answer.is_open,
        "trials": _trials(answer),
        "best": {"plan": best["plan"], "speedup": best["speedup"]},
        "at": at,
    }


def _follow_up(again: Reoptimizer, before: Before, gain: float) -> tuple[Data | None, Data | None]:
    """The last session and its proposal as they are now: a person may have decided meanwhile."""
    asked, proposal = before.get("asked"), before.get("proposal")
    answer = again.look(asked["session_id"]) if asked and asked["session_id"] else None
    if asked is None or answer is None:
        return asked, proposal
    asked = {**asked, "failure": answer.failure, "is_open": answer.is_open, "trials": _trials(answer)}
    if answer.is_busy or answer.failure:
        return asked, proposal if answer.is_busy else None
    return asked, proposal_of(answer, asked, gain)


def reason_to_ask(
    best: Data, last_best: Before | None, asked: Before | None, gain: float, is_slower: bool
) -> str | None:
    """Why a session is run tonight; None where there is nothing new to find out."""
    if best["plan"] is None or (asked and asked["is_open"]):
        return None
    if is_slower:
        return "the step got slower"
    if asked and not asked["failure"] and asked["best"]["plan"] == best["plan"]:
        return None
    found = best["speedup"]
    if found is None:
        return "no plan is known to run today"
    if last_best and last_best.get("plan") not in (None, best["plan"]) and found >= WORTH_SAYING:
        return "the best plan changed"
    return f"the best plan is {found:.2f}x as fast by prediction" if found >= gain else None


def proposal_of(answer: Answer, asked: Before, gain: float) -> Data | None:
    """What a night keeps of a session's proposal; one that waits for a person has its plan only.

    Nothing where a person declined, or where it gains less than was asked for and may as well gain nothing.
    """
    report = answer.report or {}
    chosen = _chosen((answer.waiting_for or report).get("proposals") or [], report.get("decisions") or [])
    if chosen is None:
        return None
    if answer.waiting_for and chosen["plan"] == asked["best"]["plan"]:
        chosen = {**chosen, "speedup": asked["best"]["speedup"]}
    kept = {name: chosen.get(name) for name in KEPT} | _measured(chosen)
    if (kept["speedup"] or gain) < gain and (kept["speedup_low"] or 0.0) <= 1.0:
        return None
    return {
        **kept,
        "summary": short(Plan.model_validate(chosen["plan"])),
        "verdict": report.get("verdict"),
        "first_step": report.get("first_step"),
        "since": asked["at"],
        "reason": asked["reason"],
        "session_id": answer.session_id,
        "waits": answer.waiting_for is not None,
    }


def _chosen(proposals: list[Data], decisions: list[Data]) -> Data | None:
    """The first one, or the one that a person approved."""
    last: Data = decisions[-1] if decisions else {"action": None}
    if not proposals or last["action"] == "reject":
        return None
    rank = int(last["proposal"]) if last["action"] == "approve" else 1
    return proposals[min(rank, len(proposals)) - 1]


def _trials(answer: Answer) -> str | None:
    """Why its trials ended, where it had any."""
    says = ((answer.report or {}).get("stopping") or {}).get("says")
    return str(says) if says else None


def _measured(proposal: Data) -> Data:
    """What a trial measured stands in place of the prediction."""
    measured = proposal.get("measured")
    if not isinstance(measured, Mapping) or measured.get("speedup") is None:
        return {}
    return {name: measured.get(name) for name in ("speedup", "speedup_low", "speedup_high")}


def doubt(best: Data | None, step_time_s: float) -> list[str]:
    """Said where the prediction of today's plan is far from what was measured."""
    predicted_s = (best or {}).get("today_s")
    if not predicted_s or 1 / FAR_RATIO <= predicted_s / step_time_s <= FAR_RATIO:
        return []
    told = f"today's plan takes {seconds(step_time_s)}, and is predicted to take {seconds(predicted_s)}"
    return [f"{told}: predicted gains are less certain than they say"]


def _still_open(proposal: Data | None, best: Data, today: Data) -> Data | None:
    """A proposal is over when its plan runs, or when nothing is gained by any plan any more."""
    if proposal is None or best["plan"] is None:
        return None
    is_taken = all(today.get(name) == value for name, value in proposal["plan"].items())
    if is_taken or (best["speedup"] is not None and best["speedup"] <= 1.0):
        return None
    return proposal
