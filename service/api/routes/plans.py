"""/v1/plans: the search alone, without agents or a session. For small workloads: the answer is waited for."""

from typing import Any

from fastapi import APIRouter

from service.api.dependencies import PartsOf, Submitter
from service.api.schemas.plans import ExplainCreate, ExplanationPublic
from service.api.schemas.reports import ReportPublic
from service.api.schemas.scenario import SearchCreate
from service.api.strict_route import StrictRoute
from service.api.turns import INSTEAD, Progress, in_turn
from tools.errors import InputError
from tools.recommend.optimize import best_plans, optimize, workload_of
from tools.recommend.score import complete
from tools.recommend.why_not import explain_plan
from tools.scenario import Scenario, parse_scenario

MOST_DEVICES = 2048

router = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=StrictRoute)


@router.post("/search", summary="Search every legal plan now", response_model=ReportPublic)
def search_plans(given: SearchCreate, parts: PartsOf, caller: Submitter) -> dict[str, Any]:
    """What `asap optimize` gives, by search and rules alone."""
    scenario = _small(given)
    return in_turn(parts, lambda progress: optimize(scenario, progress))


@router.post("/explain", summary="Say what speaks against a plan", response_model=ExplanationPublic)
def explain(asked: ExplainCreate, parts: PartsOf, caller: Submitter) -> dict[str, Any]:
    """The rule it breaks, the memory it lacks, or the term that makes it slower."""
    if not isinstance(asked.plan, dict):
        raise InputError("plan", asked.plan, "allowed: an object with fields of a plan")
    scenario, plan = _small(asked.scenario), dict(asked.plan)
    return in_turn(parts, lambda progress: _explained(scenario, plan, progress))


def _explained(scenario: Scenario, asked: dict[str, Any], progress: Progress) -> dict[str, Any]:
    workload = workload_of(scenario)
    winner = best_plans(workload, progress)[0][0]
    return {
        "winner": winner.model_dump(),
        **explain_plan(workload, complete(workload, winner, asked), winner),
    }


def _small(given: SearchCreate) -> Scenario:
    scenario = parse_scenario(given.body(), need_plan=False)
    if scenario.traces is not None:
        raise InputError("traces", scenario.traces, f"not read here; {INSTEAD}")
    devices = scenario.cluster.num_devices
    if devices > MOST_DEVICES:
        raise InputError("cluster.num_devices", devices, f"at most {MOST_DEVICES} here; {INSTEAD}")
    return scenario
