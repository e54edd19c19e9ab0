"""How the choice changes if the cluster is not what it seems or has half or twice the devices, and the trade
of time against memory.

Other sizes reuse the plans that the search kept instead of searching again.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tools.cost.inputs import Array
from tools.cost.memory import GIB
from tools.recommend.report import ParetoPoint, Sensitivity
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import Facts, Plan, Scenario, legal_mask
from tools.scenario.spec import MAX_DEVICES
from tools.search.ranked import Ranked, together
from tools.search.search import SearchOutcome
from tools.search.space import Mask, Table, decode_row, get_plan, joined, permitted_mask, to_columns, where

DEGREES = ("dp", "pp", "tp", "cp")


def other_sizes(workload: Workload, kept: Ranked) -> list[Sensitivity]:
    """Half and twice the devices at the same batch."""
    devices = workload.scenario.cluster.num_devices
    factors = [(1, 2)] * (devices % 2 == 0) + [(2, 1)] * (2 * devices <= MAX_DEVICES)
    return [_on_devices(workload, kept, up, down) for up, down in factors]


def _on_devices(workload: Workload, kept: Ranked, up: int, down: int) -> Sensitivity:
    devices = workload.scenario.cluster.num_devices * up // down
    cluster = workload.scenario.cluster.model_copy(update={"num_devices": devices})
    scenario = workload.scenario.model_copy(update={"cluster": cluster})
    name = f"{devices} device{'s' if devices > 1 else ''}"
    carried = joined(list(_carry_over(kept.plans, up, down)))
    plans = where(carried, permitted_mask(workload.constraints, carried) & _legal(scenario, carried))
    result = _fastest(replace(workload, scenario=scenario), plans)
    if result is None:
        says = "none of the best plans, carried over, fits"
        return Sensitivity(if_=name, best=None, stays=False, says=says)
    plan, step_time_s = result
    says = f"the fastest is {short(plan)}"
    return Sensitivity(if_=name, best=plan, step_time_s=step_time_s, stays=False, says=says)


def _carry_over(plans: Table, up: int, down: int) -> Iterator[Table]:
    """Each plan with one degree scaled, the sharding group as it is or scaled alike."""
    for degree in DEGREES:
        whole = plans[degree] * up % down == 0
        scaled = {**where(plans, whole), degree: plans[degree][whole] * up // down}
        yield scaled
        shard = scaled["dp_shard"] * up
        yield {**where(scaled, shard % down == 0), "dp_shard": shard[shard % down == 0] // down}


def _legal(scenario: Scenario, plans: Table) -> Mask:
    facts = Facts(scenario.model, scenario.cluster, scenario.training, to_columns(plans))
    return np.asarray(np.broadcast_to(legal_mask(facts), plans["tp"].shape))


def _fastest(workload: Workload, plans: Table) -> tuple[Plan, float] | None:
    if not len(plans["tp"]):
        return None
    costs = workload.costs(to_columns(plans))
    fits = costs.memory_bytes <= workload.limit_gib * GIB
    if not np.any(fits):
        return None
    row = int(np.argmin(np.where(fits, costs.step_time_s, np.inf)))
    return Plan.model_validate(decode_row(plans, row)), float(costs.step_time_s[row])


FRONT_POINTS = 20


def sensitivity(workload: Workload, result: SearchOutcome) -> list[Sensitivity]:
    """The best of the plans kept by the search and of its front, under other link speeds and memory."""
    factors_of: dict[str, dict[str, float | Array]] = {
        "half the bandwidth between nodes": {"scale_out_bandwidth": 0.5},
        "twice the bandwidth between nodes": {"scale_out_bandwidth": 2.0},
        "half the bandwidth inside the node": {"scale_up_bandwidth": 0.5},
    }
    ranked = together([result.best, result.front])
    limit, plans = workload.limit_gib * GIB, to_columns(ranked.plans)
    cases = [
        _case(name, ranked, workload.costs(plans, None, **factors).step_time_s, limit)
        for name, factors in factors_of.items()
    ]
    cases.append(_case("a tenth less memory", ranked, ranked.step_time_s, 0.9 * limit))
    return cases + other_sizes(workload, ranked)


def _case(name: str, ranked: Ranked, times: Array, limit_bytes: float) -> Sensitivity:
    allowed = ranked.memory_bytes <= limit_bytes
    if not np.any(allowed):
        return Sensitivity(if_=name, best=None, stays=False, says="none of the best plans fits")
    row = int(np.argmin(np.where(allowed, times, np.inf)))
    plan = Plan.model_validate(decode_row(ranked.plans, row))
    same = row == int(np.argmin(ranked.step_time_s))
    return Sensitivity(
        if_=name,
        best=plan,
        step_time_s=float(times[row]),
        stays=same,
        says="the fastest plan stays" if same else f"the fastest becomes {short(plan)}",
    )


def pareto(front: Ranked) -> list[ParetoPoint]:
    """Step time against memory: at most twenty points of the front, fastest first."""
    count = len(front.step_time_s)
    rows = np.unique(np.linspace(0, count - 1, min(count, FRONT_POINTS)).round().astype(int))
    return [
        ParetoPoint(
            step_time_s=float(front.step_time_s[row]),
            peak_memory_gib=float(front.memory_bytes[row]) / GIB,
            plan=get_plan(front.plans, int(row)),
        )
        for row in rows
    ]
