"""What a workload may be re-optimized by: the search alone, or a session, here or in the service's queue."""

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
from tools.scenario import parse_scenario

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
        "speedup": speedup(workload, workload.predict([plan])[0], today)["speedup"],
        "today_s": today[1]["step_time_s"] if today else None,
        "infeasible": None,
    }


def _digest(described: Data) -> str:
    """Of all that the search depends on."""
    content = {name: part for name, part in described.items() if name not in ("traces", "notes", "id")}
    text = json.dumps([__version__, content], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
