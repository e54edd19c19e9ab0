"""Computes every number of a recommendation a second time, from the plans alone."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tools.cost.predict import Prediction
from tools.recommend.proposal import speedup
from tools.recommend.words import changes
from tools.recommend.workload import Workload
from tools.scenario import Plan

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
        pairs += _pairs("baseline", baseline, today[1])
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
    elif float(str(workload.predict([plan])[0]["peak_memory_gib"])) > workload.limit_gib * (1 + TOLERANCE):
        yield f"it needs more than the {workload.limit_gib:.1f} GiB that are usable"


def _again(workload: Workload, plan: Plan, today: tuple[Plan, Prediction] | None) -> dict[str, Any]:
    prediction = workload.predict([plan])[0]
    told = changes(today[0], plan) if today else []
    return {"prediction": prediction, **speedup(workload, prediction, today), "changes": told}


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
