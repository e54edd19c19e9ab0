"""The tools of `tools/trials`, as the agents call them: plain data in, plain data out, the context first."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from graph.context import Context
from graph.state import Data
from tools.cost.calibration import shipped_calibration
from tools.cost.memory import GIB
from tools.recommend.optimize import workload_of
from tools.recommend.proposal import proposal
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import Plan, parse_scenario
from tools.trials.first_plan import default_plan, with_recompute
from tools.trials.gate import compare
from tools.trials.measured_plan import MeasuredPlan
from tools.trials.stopping import Budget, Judgement, judge, surprise_of

PREDICTED = ("step_time_s", "step_time_low_s", "step_time_high_s", "peak_memory_gib")
FAILED_ALIKE = 2
"""So many failures, and nothing measured, are the installation's fault and not the plans'."""


def first_plan(context: Context, scenario: Data, plan: Data | None) -> Data:
    """What is measured first: today's plan, or the one that the framework would take unasked."""
    workload = workload_in(context, scenario)
    chosen = default_plan(workload) if plan is None else Plan.model_validate(plan)
    return with_recompute(workload, chosen).model_dump()


def predict_plan(context: Context, scenario: Data, plan: Data) -> Data:
    """What the model says now, to be held against what will be measured."""
    known = Plan.model_validate(plan)
    prediction = workload_in(context, scenario).predict([known])[0]
    return {"summary": short(known), **{name: prediction[name] for name in PREDICTED}}


def compare_trials(context: Context, baseline: Data, trial: Data) -> Data:
    """The fair-comparison gate: what was not the same, with both values, or how much faster the trial is."""
    return compare(baseline, trial)


def calibrate_model(context: Context, scenario: Data, trials: Sequence[Data]) -> Data:
    """The cost model as all measured trials make it, beginning with the installation's own."""
    from tools.trials.calibrate import calibrate

    measured = [
        MeasuredPlan(Plan.model_validate(one["plan"]), one["step_time_s"], one["noise"], one["terms"])
        for one in trials
    ]
    parsed = parse_scenario(scenario, need_plan=False)
    return calibrate(parsed, measured, context.calibration or shipped_calibration()).to_data()


def judge_trials(
    context: Context, trials: Sequence[Data], predictions: Sequence[Mapping[str, Any]], budget: Data
) -> Data:
    """Whether another trial is worth it: the gain expected of the plans left against noise and budget."""
    known = Budget(**budget)
    measured = [one for one in trials if one["status"] == "measured"]
    if not measured:
        return asdict(_without_measurement(trials, known, bool(predictions)))
    best = min(measured, key=lambda one: one["step_time_s"])
    surprise = surprise_of(trials)
    return asdict(judge(best["step_time_s"], best["uncertainty"], predictions, known, surprise))


def _without_measurement(trials: Sequence[Data], budget: Budget, has_others: bool) -> Judgement:
    kinds = [(one.get("failure") or {}).get("kind", "not comparable") for one in trials]
    if len(kinds) >= FAILED_ALIKE or not has_others:
        return Judgement(True, f"nothing could be measured: {', '.join(kinds)}; see the trials' evidence")
    return Judgement(bool(budget.spent), budget.spent or "the first trial failed; another plan may run")


def measured_proposals(context: Context, scenario: Data, trials: Sequence[Data]) -> list[Data]:
    """Plans that were measured as proposals, the fastest first; today's own only where nothing beats it."""
    workload = workload_in(context, scenario)
    ordered = sorted(trials, key=lambda one: float(one["step_time_s"]))
    kept = [one for i, one in enumerate(ordered) if one["role"] != "baseline" or i == 0]
    return [_proposal(workload, rank, one) for rank, one in enumerate(kept, start=1)]


def _proposal(workload: Workload, rank: int, trial: Data) -> Data:
    plan = Plan.model_validate(trial["plan"])
    made: Data = dict(proposal(workload, rank, plan, workload.predict([plan])[0], workload.today()))
    made["measured"] = {
        **{name: trial[name] for name in ("step_time_s", "interval_s", "noise")},
        **{name: trial[name] for name in ("speedup", "speedup_low", "speedup_high")},
        "peak_memory_gib": trial["peak_memory_bytes"] / GIB if trial["peak_memory_bytes"] else None,
        "predicted_step_time_s": trial["predicted"]["step_time_s"],
        "trial": trial["key"],
    }
    made["evidence"] = [*made["evidence"], {"kind": "trial", "ref": trial["key"], "says": trial["says"]}]
    return made


def workload_in(context: Context, scenario: Data) -> Workload:
    """The scenario as the session predicts it now."""
    return workload_of(parse_scenario(scenario, need_plan=False), context.learned or context.calibration)
