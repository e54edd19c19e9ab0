"""A proposal: prediction, speed-up with its interval, reasons, evidence, risks; and the check that computes
every number of a recommendation anew from the stored scenario and holds it against what must be true.
"""

import math
from collections.abc import Sequence

import numpy as np
from pydantic import JsonValue

from tools.model.checks import TOLERANCE, CheckedFigure, compare, contradictions, reproduced
from tools.model.predict import Prediction
from tools.physics.memory import GIB
from tools.physics.terms import BOTTLENECKS
from tools.recommend.measured import citations
from tools.recommend.report import (
    Evidence,
    NumberFault,
    Proposal,
    Robustness,
    Speedup,
    Verification,
    changes,
)
from tools.recommend.switch import checkpoint_under, two_runs
from tools.recommend.words import difference, largest, short, span
from tools.recommend.workload import LESS_MEMORY, PredictedPlan, Workload
from tools.scenario import Plan, PlanColumns
from tools.scenario.spec import ClosedModel

TIGHT_GIB_SHARE = 0.05
SLOW_NODE = 0.9
"""The speed of a node that a hot or shared device slows down, as far as clusters leave it in service."""


def proposal(
    workload: Workload, rank: int, plan: Plan, prediction: Prediction, today: PredictedPlan | None
) -> Proposal:
    evidence, risks = model_evidence(workload, prediction), []
    if today is None:
        rationale = own_terms(plan, prediction)
    else:
        before = today.prediction
        evidence.append(Evidence(kind="model", ref="baseline", says=f"today: {largest(before)}"))
        ratio, moved = before.step_time_s / prediction.step_time_s, difference(before, prediction)
        start = f"{span(before.step_time_s, prediction.step_time_s)} s per step ({ratio:.2f}x)."
        if unfit := workload.why_unfit(today):
            start = f"Today's plan {unfit}; this one fits."
        rationale = f"{start} {moved[:1].upper()}{moved[1:]}."
        if before.fits and abs(math.log(ratio)) <= workload.pair_error:
            rationale += " The difference is inside the error of a comparison: measure before you switch."
    margin = workload.capacity_gib - prediction.peak_memory_gib
    if margin < TIGHT_GIB_SHARE * workload.capacity_gib:
        risks.append(f"only {margin:.1f} GiB of memory are left: fragmentation may exceed that")
    robustness = robustness_of(workload, plan, prediction)
    slower = robustness.half_network_s / prediction.step_time_s
    if slower > 1.02:
        risks.append(f"with half the network bandwidth between nodes the step is {slower - 1:.0%} longer")
    if plan.tp > workload.scenario.cluster.devices_per_node:
        risks.append("tensor parallelism crosses nodes")
    cited, crashes = citations(workload, plan, prediction)
    gain, scenario = speedup(workload, prediction, today), workload.scenario
    return Proposal(
        **dict(gain),
        checkpoint=checkpoint_under(scenario, today.plan, plan, prediction.parameters) if today else None,
        two_runs=two_runs(scenario, gain) if today else None,
        robustness=robustness,
        rank=rank,
        plan=plan,
        prediction=prediction,
        changes=changes(today.plan, plan) if today else [],
        rationale=rationale,
        evidence=[*cited, *evidence],
        risks=[*crashes, *risks, interval_risk(prediction)],
    )


def own_terms(plan: Plan, prediction: Prediction) -> str:
    """What a plan takes, beside no other."""
    return f"{short(plan)}: {prediction.step_time_s:.3g} s per step, of which {largest(prediction)}."


def robustness_of(workload: Workload, plan: Plan, prediction: Prediction) -> Robustness:
    columns, parts = PlanColumns.of([plan]), prediction.breakdown_s
    computed_s = sum(parts[name] for name in (*BOTTLENECKS["compute"], *BOTTLENECKS["memory"]))
    needed = np.array([prediction.peak_memory_gib * GIB / (1.0 - LESS_MEMORY)])
    return Robustness(
        expected_s=prediction.step_time_s,
        worst_s=prediction.step_time_high_s,
        half_network_s=workload.on_slow_links([plan])[0],
        slow_node_s=prediction.step_time_s + computed_s * (1.0 / SLOW_NODE - 1.0),
        fits_less_memory=float(workload.fit_probability(columns, needed)[0]),
    )


def speedup(workload: Workload, prediction: Prediction, today: PredictedPlan | None) -> Speedup:
    """Against today's plan; what is wrong for both cancels, so the interval is that of a comparison."""
    if today is None:
        return Speedup()
    before_s, after_s = today.prediction.step_time_s, prediction.step_time_s
    ratio = before_s / after_s
    error = 0.0 if before_s == after_s else workload.pair_error
    return Speedup(speedup=ratio, speedup_low=ratio * math.exp(-error), speedup_high=ratio * math.exp(error))


def model_evidence(workload: Workload, prediction: Prediction) -> list[Evidence]:
    """The largest terms of the step and the peak memory."""
    memory = f"peak memory {prediction.peak_memory_gib:.1f} of {workload.capacity_gib:.1f} GiB"
    return [
        Evidence(kind="model", ref="breakdown_s", says=largest(prediction)),
        Evidence(kind="model", ref="memory_gib", says=memory),
    ]


def interval_risk(prediction: Prediction) -> str:
    """The one risk that every proposal has; what shows the interval anyway leaves it out."""
    return (
        f"the prediction's 80% interval is {span(prediction.step_time_low_s, prediction.step_time_high_s)} s"
    )


def recheck(workload: Workload, proposals: Sequence[Proposal], baseline: Prediction | None) -> Verification:
    """Every number of the proposals and of the baseline, computed anew from the scenario as it is stored, and
    held against what every prediction must obey."""
    today = workload.today()
    compared: list[CheckedFigure] = []
    faults: list[NumberFault] = []

    def check(place: str, tuned: Workload, plan: Plan, stated: Prediction) -> None:
        found = contradictions(tuned.with_plan(plan), stated, tuned.calibration)
        faults.extend(NumberFault(place=f"{place}.{fault.path}", message=fault.message) for fault in found)

    if baseline is not None and today is not None:
        today = PredictedPlan(today.plan, _again(workload, today.plan))
        compared += compare("baseline", _numbers(baseline), _numbers(today.prediction))
        check("baseline", workload, today.plan, baseline)
    for proposal in proposals:
        place = f"proposals[{proposal.rank - 1}]"
        tuned = workload.with_settings(proposal.settings)
        prediction = _again(tuned, proposal.plan)
        if refusal := tuned.refusal(proposal.plan):
            faults.append(NumberFault(place=place, message=f"the framework refuses it: {refusal}"))
        elif prediction.peak_memory_gib > tuned.limit_gib * (1 + TOLERANCE) and not tuned.has_run(
            proposal.plan
        ):
            says = f"it needs more than the {tuned.limit_gib:.1f} GiB that are usable"
            faults.append(NumberFault(place=place, message=says))
        else:
            # Over a plan that cannot run nothing is gained.
            base = today if proposal.speedup is not None or (today and today.prediction.fits) else None
            follows = {
                **dict(speedup(tuned, prediction, base)),
                "prediction": prediction,
                "changes": changes(today.plan, proposal.plan) if today else [],
            }
            computed = _numbers(proposal.model_copy(update=follows), {*follows})
            compared += compare(place, _numbers(proposal, {*follows}), computed)
            check(f"{place}.prediction", tuned, proposal.plan, proposal.prediction)
    differing = (figure for figure in compared if not figure.holds)
    faults += (
        NumberFault(place=figure.path, message=f"stated {figure.stated}, computed {figure.computed}")
        for figure in differing
    )
    return Verification(checked=len(compared), faults=faults, holds=not faults)


def _again(workload: Workload, plan: Plan) -> Prediction:
    return reproduced([workload.with_plan(plan)], workload.calibration)[0]


def _numbers(result: ClosedModel, include: set[str] | None = None) -> JsonValue:
    numbers: JsonValue = result.model_dump(mode="json", include=include)
    return numbers
