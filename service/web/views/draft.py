"""A report before there is one: what a person who is asked to decide needs of it."""

from graph.decisions import MOST_PROPOSALS
from graph.request import parse_request
from service.report.text import seconds, times
from service.report.view import learned_of
from service.store.rows import Data, SessionRow
from tools.recommend.optimize import analyse, workload_of
from tools.recommend.proposal import proposal
from tools.scenario import Plan, parse_scenario

ASKS = {
    "advise": "Decide which one to take; the report follows.",
    "tune": "Approve the one to be measured next, or reject one to end the trials.",
}
NOTHING_YET: Data = {
    "id": None,
    "first_step": None,
    "would_change": None,
    **{name: [] for name in ("rejected", "sensitivity", "beyond_contract", "pareto", "considered", "advice")},
    **{name: [] for name in ("cases", "decisions", "trials", "incidents", "route")},
    "notes": None,
    "profile": None,
    "searched": None,
}


def draft_of(row: SessionRow) -> Data:
    """What the graph asks about, by the same tools that write the report when a person has decided."""
    described = parse_request(row.request or {}).scenario
    question = row.waiting_for or {}
    scenario = parse_scenario({**described, "traces": None}, need_plan=False)
    workload = workload_of(scenario, learned_of(question))
    asked = question["proposals"][:MOST_PROPOSALS]
    plans, today = [Plan.model_validate(one["plan"]) for one in asked], workload.today()
    told = [
        {**proposal(workload, one["rank"], plan, prediction, today), "measured": one.get("measured")}
        for one, plan, prediction in zip(asked, plans, workload.predict(plans), strict=True)
    ]
    prediction, diagnosis = analyse(workload, workload.scenario.plan or plans[0])
    return {
        **NOTHING_YET,
        "verdict": _asks(prediction, diagnosis, told[0], row.mode),
        "diagnosis": {**diagnosis, "weighed": ""},
        "baseline": prediction if today else None,
        "proposals": told,
        "trials": question.get("trials", []),
        "calibration": question.get("calibration"),
    }


def _asks(prediction: Data, diagnosis: Data, first: Data, mode: str) -> str:
    """What is slow and what is proposed, before anybody has decided."""
    asks = f"Every number was computed twice. {ASKS[mode]}"
    limit = f"limited by {diagnosis['bottleneck']}"
    if first["speedup"] is None:
        step_s = float(first["prediction"]["step_time_s"])
        return f"Proposal 1 is predicted to take {seconds(step_s)} a step, {limit}. {asks}"
    return (
        f"Today's step is predicted to take {seconds(float(prediction['step_time_s']))}, {limit}. "
        f"Proposal 1 is predicted to be {times(first['speedup'])} as fast. {asks}"
    )
