"""A proposal: prediction, speed-up with its interval, reasons, evidence, risks; and the check that computes
every number of a recommendation a second time, from the plans alone.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tools.cost.predict import Prediction
from tools.recommend.words import changes, difference, largest, short, span
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
        "prediction": prediction.model_dump(),
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
    ratio = today[1].step_time_s / prediction.step_time_s
    error = 0.0 if today[1].step_time_s == prediction.step_time_s else workload.pair_error
    return {
        "speedup": ratio,
        "speedup_low": ratio * math.exp(-error),
        "speedup_high": ratio * math.exp(error),
    }


def _rationale(
    workload: Workload, plan: Plan, prediction: Prediction, today: tuple[Plan, Prediction] | None
) -> str:
    if today is None:
        return f"{short(plan)}: {prediction.step_time_s:.3g} s a step, of which {largest(prediction)}."
    before = today[1]
    ratio = before.step_time_s / prediction.step_time_s
    if not before.fits:
        needed = f"{before.peak_memory_gib:.1f} GiB of {workload.capacity_gib:.1f}"
        start = f"Today's plan needs {needed}; this one fits."
    else:
        start = f"{span(before.step_time_s, prediction.step_time_s)} s a step ({ratio:.2f}x)."
    inside = before.fits and abs(math.log(ratio)) <= workload.pair_error
    doubt = (
        " The difference is inside the error of a comparison: measure before you switch." if inside else ""
    )
    return f"{start} {_capitalised(difference(before, prediction))}.{doubt}"


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _evidence(
    workload: Workload, plan: Plan, prediction: Prediction, today: tuple[Plan, Prediction] | None
) -> list[dict[str, str]]:
    memory = f"{prediction.peak_memory_gib:.1f} of {workload.capacity_gib:.1f} GiB"
    found = [
        {"kind": "model", "ref": "breakdown_s", "says": largest(prediction)},
        {"kind": "model", "ref": "memory_gib", "says": f"peak memory {memory}"},
    ]
    if today is not None:
        found.append({"kind": "model", "ref": "baseline", "says": f"today: {largest(today[1])}"})
    return found


def _risks(workload: Workload, plan: Plan, prediction: Prediction) -> list[str]:
    risks = []
    margin = workload.capacity_gib - prediction.peak_memory_gib
    if margin < TIGHT_GIB_SHARE * workload.capacity_gib:
        risks.append(f"only {margin:.1f} GiB of memory are left: fragmentation may exceed that")
    slower = _on_slow_links(workload, plan, prediction)
    if slower > 1.02:
        risks.append(f"with half the network bandwidth between nodes the step is {slower - 1:.0%} longer")
    if plan.tp > workload.scenario.cluster.devices_per_node:
        risks.append("tensor parallelism crosses nodes")
    low, high = prediction.step_time_low_s, prediction.step_time_high_s
    risks.append(f"the prediction's 80% interval is {span(low, high)} s")
    return risks


def _on_slow_links(workload: Workload, plan: Plan, prediction: Prediction) -> float:
    slow = workload.costs(columns_of([plan]), slow_bandwidth=SLOW_LINK)
    return float(slow.step_time_s[0]) / prediction.step_time_s


TOLERANCE = 1e-9
Fault = dict[str, str]


def recheck(
    workload: Workload, proposals: Sequence[Mapping[str, Any]], baseline: Mapping[str, Any] | None
) -> dict[str, Any]:
    """`checked` numbers and the `faults` among them; each fault names the place."""
    today = workload.today()
    pairs: list[tuple[str, object, object]] = []
    faults: list[Fault] = []
    if baseline is not None and today is not None:
        pairs += _pairs("baseline", baseline, today[1].model_dump())
    for one in proposals:
        place, plan = f"proposals[{one['rank'] - 1}]", Plan.model_validate(one["plan"])
        faults += [{"place": place, "says": says} for says in _broken(workload, plan)]
        if not any(fault["place"] == place for fault in faults):
            pairs += _pairs(place, one, _again(workload, plan, today))
    faults += [
        {"place": place, "says": f"stated {stated}, computed {computed}"}
        for place, stated, computed in pairs
        if not _equal(stated, computed)
    ]
    return {"checked": len(pairs), "faults": faults, "holds": not faults}


def _broken(workload: Workload, plan: Plan) -> Iterator[str]:
    """What forbids the plan: the framework's rules, the memory."""
    refusal = workload.refusal(plan)
    if refusal:
        yield f"the framework refuses it: {refusal}"
    elif workload.predict([plan])[0].peak_memory_gib > workload.limit_gib * (1 + TOLERANCE):
        yield f"it needs more than the {workload.limit_gib:.1f} GiB that are usable"


def _again(workload: Workload, plan: Plan, today: tuple[Plan, Prediction] | None) -> dict[str, Any]:
    prediction = workload.predict([plan])[0]
    told = changes(today[0], plan) if today else []
    return {"prediction": prediction.model_dump(), **speedup(workload, prediction, today), "changes": told}


def _pairs(place: str, stated: Any, computed: Any) -> list[tuple[str, object, object]]:  # noqa: ANN401 - JSON
    """Every leaf that was computed, beside what was stated in its place; and what a list states beyond."""
    if isinstance(computed, Mapping):
        parts = computed.items()
        return [pair for name, part in parts for pair in _pairs(f"{place}.{name}", _part(stated, name), part)]
    if isinstance(computed, list):
        lengths = [len(one) for one in (stated, computed) if isinstance(one, list)]
        return [
            pair
            for index in range(max(lengths))
            for pair in _pairs(f"{place}[{index}]", _part(stated, index), _part(computed, index))
        ]
    return [(place, stated, computed)]


def _part(value: Any, name: Any) -> Any:  # noqa: ANN401 - JSON
    try:
        return value[name]
    except (KeyError, IndexError, TypeError):
        return None


def _equal(stated: object, computed: object) -> bool:
    if isinstance(stated, float) and isinstance(computed, float):
        return math.isclose(stated, computed, rel_tol=TOLERANCE)
    return stated == computed
