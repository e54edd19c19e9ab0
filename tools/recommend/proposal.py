"""A proposal: prediction, speed-up with its interval, reasons, evidence, risks; and the check that computes
every number of a recommendation a second time, by another implementation, from the plans alone.
"""

import math
from collections.abc import Sequence
from itertools import zip_longest

from tools.cost.predict import Prediction
from tools.cost.reference import reference_prediction
from tools.recommend.report import Evidence, Fault, Proposal, Speedup, Verification, changes
from tools.recommend.words import difference, largest, short, span
from tools.recommend.workload import PredictedPlan, Workload
from tools.scenario import Plan

TIGHT_GIB_SHARE = 0.05


def proposal(
    workload: Workload, rank: int, plan: Plan, prediction: Prediction, today: PredictedPlan | None
) -> Proposal:
    gain = speedup(workload, prediction, today)
    return Proposal(
        rank=rank,
        plan=plan,
        prediction=prediction,
        speedup=gain.speedup,
        speedup_low=gain.speedup_low,
        speedup_high=gain.speedup_high,
        changes=changes(today.plan, plan) if today else [],
        rationale=_rationale(workload, plan, prediction, today),
        evidence=_evidence(workload, prediction, today),
        risks=_risks(workload, plan, prediction),
    )


def speedup(workload: Workload, prediction: Prediction, today: PredictedPlan | None) -> Speedup:
    """Against today's plan; what is wrong for both cancels, so the interval is that of a comparison."""
    if today is None:
        return Speedup()
    before_s, after_s = today.prediction.step_time_s, prediction.step_time_s
    ratio = before_s / after_s
    error = 0.0 if before_s == after_s else workload.pair_error
    return Speedup(speedup=ratio, speedup_low=ratio * math.exp(-error), speedup_high=ratio * math.exp(error))


def _rationale(workload: Workload, plan: Plan, prediction: Prediction, today: PredictedPlan | None) -> str:
    if today is None:
        return f"{short(plan)}: {prediction.step_time_s:.3g} s per step, of which {largest(prediction)}."
    before = today.prediction
    ratio = before.step_time_s / prediction.step_time_s
    if not before.fits:
        needed = f"{before.peak_memory_gib:.1f} GiB of {workload.capacity_gib:.1f}"
        start = f"Today's plan needs {needed}; this one fits."
    else:
        start = f"{span(before.step_time_s, prediction.step_time_s)} s per step ({ratio:.2f}x)."
    inside = before.fits and abs(math.log(ratio)) <= workload.pair_error
    doubt = (
        " The difference is inside the error of a comparison: measure before you switch." if inside else ""
    )
    return f"{start} {_capitalise(difference(before, prediction))}.{doubt}"


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _evidence(workload: Workload, prediction: Prediction, today: PredictedPlan | None) -> list[Evidence]:
    evidence = model_evidence(workload, prediction)
    if today is not None:
        evidence.append(Evidence(kind="model", ref="baseline", says=f"today: {largest(today.prediction)}"))
    return evidence


def model_evidence(workload: Workload, prediction: Prediction) -> list[Evidence]:
    """The largest terms of the step and the peak memory."""
    memory = f"peak memory {prediction.peak_memory_gib:.1f} of {workload.capacity_gib:.1f} GiB"
    return [
        Evidence(kind="model", ref="breakdown_s", says=largest(prediction)),
        Evidence(kind="model", ref="memory_gib", says=memory),
    ]


def _risks(workload: Workload, plan: Plan, prediction: Prediction) -> list[str]:
    risks = []
    margin = workload.capacity_gib - prediction.peak_memory_gib
    if margin < TIGHT_GIB_SHARE * workload.capacity_gib:
        risks.append(f"only {margin:.1f} GiB of memory are left: fragmentation may exceed that")
    slower = workload.on_slow_links([plan])[0] / prediction.step_time_s
    if slower > 1.02:
        risks.append(f"with half the network bandwidth between nodes the step is {slower - 1:.0%} longer")
    if plan.tp > workload.scenario.cluster.devices_per_node:
        risks.append("tensor parallelism crosses nodes")
    interval = span(prediction.step_time_low_s, prediction.step_time_high_s)
    risks.append(f"the prediction's 80% interval is {interval} s")
    return risks


TOLERANCE = 1e-9
NEGLIGIBLE = 1e-12
"""Seconds or GiB: a term that one side computes as zero and the other as a rounding error."""
Leaf = tuple[str, object, object]
"""A place, what is stated there and what was computed for it."""


def recheck(workload: Workload, proposals: Sequence[Proposal], baseline: Prediction | None) -> Verification:
    """Every number of the proposals and of the baseline, computed from the plans alone and compared."""
    today = workload.today()
    leaves: list[Leaf] = []
    faults: list[Fault] = []
    if baseline is not None and today is not None:
        again = workload.predict_anew([today.plan])[0]
        today = PredictedPlan(today.plan, _recompute(workload, today.plan, again))
        leaves += _leaves("baseline", baseline.model_dump(), today.prediction.model_dump())
    for proposal in proposals:
        place = f"proposals[{proposal.rank - 1}]"
        tuned = workload.with_settings(proposal.settings)
        prediction = tuned.predict_anew([proposal.plan])[0]
        refusal = _refusal(tuned, proposal.plan, prediction)
        if refusal:
            faults.append(Fault(place=place, says=refusal))
        else:
            computed = _compute_fields(tuned, proposal.plan, prediction, today)
            leaves += _leaves(place, proposal.model_dump(include=COMPUTED), computed)
    faults += [
        Fault(place=place, says=f"stated {stated}, computed {computed}")
        for place, stated, computed in leaves
        if not _equal(stated, computed)
    ]
    return Verification(checked=len(leaves), faults=faults, holds=not faults)


COMPUTED = {"prediction", "speedup", "speedup_low", "speedup_high", "changes"}
"""Fields of a proposal that follow from its plan."""


def _refusal(workload: Workload, plan: Plan, prediction: Prediction) -> str | None:
    """What forbids the plan: the framework's rules, the memory."""
    refusal = workload.refusal(plan)
    if refusal:
        return f"the framework refuses it: {refusal}"
    if prediction.peak_memory_gib > workload.limit_gib * (1 + TOLERANCE):
        return f"it needs more than the {workload.limit_gib:.1f} GiB that are usable"
    return None


def _compute_fields(
    workload: Workload, plan: Plan, prediction: Prediction, today: PredictedPlan | None
) -> dict[str, object]:
    prediction = _recompute(workload, plan, prediction)
    made = changes(today.plan, plan) if today else []
    return {
        "prediction": prediction.model_dump(),
        **speedup(workload, prediction, today).model_dump(),
        "changes": [change.model_dump() for change in made],
    }


def _recompute(workload: Workload, plan: Plan, prediction: Prediction) -> Prediction:
    """The prediction with its times and memory from the scalar reference, which shares no code with it."""
    scenario = workload.with_plan(plan)
    reference = reference_prediction(scenario, workload.calibration)
    peak_gib = sum(reference.memory_gib.values())
    return prediction.model_copy(
        update={
            "step_time_s": sum(reference.breakdown_s.values()),
            "breakdown_s": reference.breakdown_s,
            "memory_gib": reference.memory_gib,
            "peak_memory_gib": peak_gib,
            "fits": peak_gib <= workload.capacity_gib * (1 + TOLERANCE),
        }
    )


def _leaves(place: str, stated: object, computed: object) -> list[Leaf]:
    """Every leaf that was computed, beside what is stated in its place; and what a list states beyond."""
    if isinstance(computed, dict):
        stated = stated if isinstance(stated, dict) else {}
        parts = [(f"{place}.{name}", stated.get(name), part) for name, part in computed.items()]
    elif isinstance(computed, list):
        listed = stated if isinstance(stated, list) else []
        pairs = zip_longest(listed, computed)
        parts = [(f"{place}[{index}]", *pair) for index, pair in enumerate(pairs)]
    else:
        return [(place, stated, computed)]
    return [leaf for part in parts for leaf in _leaves(*part)]


def _equal(stated: object, computed: object) -> bool:
    if isinstance(stated, float) and isinstance(computed, float):
        return math.isclose(stated, computed, rel_tol=TOLERANCE, abs_tol=NEGLIGIBLE)
    return stated == computed
