"""Whether a workload is worth a session tonight, and the session: here, or in the service's queue.

Every night the search alone says which plan is best; a session is run where that has changed, where it gains
enough and was not proposed yet, or where the step got slower. What was proposed stays open until then.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from graph.context import Context
from graph.request import parse_request
from graph.session import Session
from service import __version__
from service.nightly.definition import Budget
from tools.errors import AsapError, InfeasibleError
from tools.recommend.optimize import best_plans, workload_of
from tools.recommend.proposal import speedup
from tools.recommend.words import short
from tools.scenario import Plan, parse_scenario

Data = dict[str, Any]
WORTH_SAYING = 1.01
"""A best plan that changed, but gains less than this, is no news."""
KEPT = ("plan", "speedup", "speedup_low", "speedup_high", "changes", "rationale")


@dataclass(frozen=True)
class Answer:
    """What came of a session: a report, a wait for a person, or a failure in plain words."""

    report: Data | None = None
    session_id: str | None = None
    waiting_for: Data | None = None
    failure: str | None = None


class Reoptimizer(Protocol):
    def run(self, workload: str, request: Data) -> Answer: ...


class InProcess:
    """Runs the agents here and now; nobody can be asked."""

    def __init__(self, context: Context, budget: Budget | None = None) -> None:
        limits, wanted = context.limits, budget or Budget()
        smaller = replace(
            limits,
            session_s=min(wanted.session_s or limits.session_s, limits.session_s),
            tokens=limits.tokens if wanted.tokens is None else min(wanted.tokens, limits.tokens),
            cost=limits.cost if wanted.cost is None else min(wanted.cost, limits.cost),
        )
        self._context = replace(context, limits=smaller)

    def run(self, workload: str, request: Data) -> Answer:
        try:
            outcome = Session(f"nightly-{workload}", self._context).run(parse_request(request))
        except AsapError as error:
            return Answer(failure=str(error))
        return Answer(report=outcome.report)


def find_best(described: Data, previous: Mapping[str, Any] | None) -> Data:
    """The plan the search puts first, and its speed-up; not searched again where nothing has changed."""
    asked = _digest(described)
    if previous and previous.get("asked") == asked:
        return dict(previous)
    workload = workload_of(parse_scenario(described, need_plan=False))
    try:
        plan = best_plans(workload)[0][0]
    except InfeasibleError as error:
        return {"asked": asked, "plan": None, "speedup": None, "infeasible": str(error)}
    gain = speedup(workload, workload.predict([plan])[0], workload.today())["speedup"]
    return {"asked": asked, "plan": plan.model_dump(mode="json"), "speedup": gain, "infeasible": None}


def _digest(described: Data) -> str:
    """Of all that the search depends on."""
    content = {name: part for name, part in described.items() if name not in ("traces", "notes", "id")}
    text = json.dumps([__version__, content], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def reason_to_ask(
    best: Data,
    last_best: Mapping[str, Any] | None,
    proposed: Mapping[str, Any] | None,
    gain: float,
    slower: bool,
) -> str | None:
    """Why a session is run tonight; None where there is nothing new to find out."""
    if best["plan"] is None:
        return None
    if slower:
        return "the step got slower"
    if proposed and proposed["best_plan"] == best["plan"]:
        return None
    found = best["speedup"]
    if found is None:
        return "no plan is known to run today"
    if last_best and last_best.get("plan") not in (None, best["plan"]) and found >= WORTH_SAYING:
        return "the best plan changed"
    return f"the best plan is {found:.2f}x as fast by prediction" if found >= gain else None


def proposal_of(answer: Answer, best: Data, reason: str, at: float, gain: float) -> Data | None:
    """What a night keeps of a session's first proposal; one that waits for a person has its plan only.

    Nothing where it gains less than was asked for and may as well gain nothing.
    """
    report = answer.report or {}
    proposals = (answer.waiting_for or report).get("proposals")
    if not proposals:
        return None
    first = proposals[0]
    if answer.waiting_for and first["plan"] == best["plan"]:
        first = {**first, "speedup": best["speedup"]}
    if (first.get("speedup") or gain) < gain and (first.get("speedup_low") or 0.0) <= 1.0:
        return None
    return {
        **{name: first.get(name) for name in KEPT},
        "summary": short(Plan.model_validate(first["plan"])),
        "verdict": report.get("verdict"),
        "first_step": report.get("first_step"),
        "best_plan": best["plan"],
        "since": at,
        "reason": reason,
        "session_id": answer.session_id,
        "waits": answer.waiting_for is not None,
    }
