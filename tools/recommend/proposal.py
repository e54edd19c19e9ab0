"""A proposal in the contract's shape: prediction, speed-up with its interval, reasons, evidence, risks."""

import math

from tools.cost.predict import Prediction
from tools.recommend.span import span
from tools.recommend.words import changes, difference, largest, memory_gib, seconds, short
from tools.recommend.workload import Workload
from tools.scenario import Plan, columns_of

TIGHT_GIB_SHARE = 0.05
SLOW_LINK = 0.5


def proposal(
    workload: Workload, rank: int, plan: Plan, prediction: Prediction, today: tuple[Plan, Prediction] | None
) -> dict[str, object]:
    return {
        "rank": rank,
        "plan": plan.model_dump(),
        "prediction": prediction,
        **speedup(workload, prediction, today),
        "changes": changes(today[0], plan) if today else [],
        "rationale": _rationale(workload, plan, prediction, today),
        "evidence": _evidence(workload, plan, prediction, today),
        "risks": _risks(workload, plan, prediction),
        "measured": None,
    }


def speedup(
    workload: Workload, prediction: Prediction, today: tuple[Plan, Prediction] | None
) -> dict[str, float | None]:
    """Against today's plan; what is wrong for both cancels, so the interval is that of a comparison."""
    if today is None:
        return {"speedup": None, "speedup_low": None, "speedup_high": None}
    ratio = seconds(today[1]) / seconds(prediction)
    error = 0.0 if seconds(today[1]) == seconds(prediction) else workload.pair_error
    return {
        "speedup": ratio,
        "speedup_low": ratio * math.exp(-error),
        "speedup_high": ratio * math.exp(error),
    }


def _rationale(
    workload: Workload, plan: Plan, prediction: Prediction, today: tuple[Plan, Prediction] | None
) -> str:
    if today is None:
        return f"{short(plan)}: {seconds(prediction):.3g} s a step, of which {largest(prediction)}."
    before = today[1]
    ratio = seconds(before) / seconds(prediction)
    if not before["fits"]:
        start = (
            f"Today's plan needs {memory_gib(before):.1f} GiB of {workload.capacity_gib:.1f}; this one fits."
        )
    else:
        start = f"{span(seconds(before), seconds(prediction))} s a step ({ratio:.2f}x)."
    inside = before["fits"] and abs(math.log(ratio)) <= workload.pair_error
    doubt = (
        " The difference is inside the error of a comparison: measure before you switch." if inside else ""
    )
    return f"{start} {_capitalised(difference(before, prediction))}.{doubt}"


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _evidence(
    workload: Workload, plan: Plan, prediction: Prediction, today: tuple[Plan, Prediction] | None
) -> list[dict[str, str]]:
    memory = f"{memory_gib(prediction):.1f} of {workload.capacity_gib:.1f} GiB"
    found = [
        {"kind": "model", "ref": "breakdown_s", "says": largest(prediction)},
        {"kind": "model", "ref": "memory_gib", "says": f"peak memory {memory}"},
    ]
    if today is not None:
        found.append({"kind": "model", "ref": "baseline", "says": f"today: {largest(today[1])}"})
    return found


def _risks(workload: Workload, plan: Plan, prediction: Prediction) -> list[str]:
    risks = []
    margin = workload.capacity_gib - memory_gib(prediction)
    if margin < TIGHT_GIB_SHARE * workload.capacity_gib:
        risks.append(f"only {margin:.1f} GiB of memory are left: fragmentation may exceed that")
    slower = _on_slow_links(workload, plan, prediction)
    if slower > 1.02:
        risks.append(f"with half the network bandwidth between nodes the step is {slower - 1:.0%} longer")
    if plan.tp > workload.scenario.cluster.devices_per_node:
        risks.append("tensor parallelism crosses nodes")
    low, high = float(str(prediction["step_time_low_s"])), float(str(prediction["step_time_high_s"]))
    risks.append(f"the prediction's 80% interval is {span(low, high)} s")
    return risks


def _on_slow_links(workload: Workload, plan: Plan, prediction: Prediction) -> float:
    slow = workload.costs(columns_of([plan]), slow_bandwidth=SLOW_LINK)
    return float(slow.step_time_s[0]) / seconds(prediction)
