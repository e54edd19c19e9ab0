"""How the choice changes if the cluster is not what it seems or has half or twice the devices, and the trade
of time against memory.

Other sizes reuse the plans that the search kept instead of searching again.
"""

from dataclasses import replace

import numpy as np

from tools.physics.inputs import Array
from tools.physics.memory import GIB
from tools.recommend.report import ParetoPoint, Sensitivity
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import PlanColumns, PlanFacts, legal_mask
from tools.scenario.spec import AXES, MAX_DEVICES
from tools.search.ranked import Ranked, together
from tools.search.search import SearchOutcome
from tools.search.space import permitted_mask

SCALED = ("dp", "pp", *(name for name in AXES if name not in ("dp", "pp")))
FRONT_POINTS = 20
OTHER_LINKS: dict[str, dict[str, float | Array]] = {
    "half the bandwidth between nodes": {"scale_out_bandwidth": 0.5},
    "twice the bandwidth between nodes": {"scale_out_bandwidth": 2.0},
    "half the bandwidth inside the node": {"scale_up_bandwidth": 0.5},
}


def sensitivity(workload: Workload, result: SearchOutcome) -> list[Sensitivity]:
    """The best of the plans kept by the search and of its front, under other link speeds, less memory, and
    with half and twice the devices at the same batch."""
    ranked = together([result.best, result.front])
    limit, winner = workload.limit_gib * GIB, int(np.argmin(ranked.step_time_s))
    timed = {
        name: (workload.costs(ranked.plans, **factors).step_time_s, limit)
        for name, factors in OTHER_LINKS.items()
    }
    timed["a tenth less memory"] = (ranked.step_time_s, 0.9 * limit)
    cases = []
    for name, (times_s, limit_bytes) in timed.items():
        row = _fastest(times_s, ranked.memory_bytes, limit_bytes)
        if row is None:
            none = "none of the best plans fits"
            cases.append(Sensitivity(if_=name, best=None, stays=False, summary=none))
            continue
        plan = ranked.plans.plan(row)
        says = "the fastest plan stays" if row == winner else f"the fastest becomes {short(plan)}"
        step_time_s = float(times_s[row])
        cases.append(
            Sensitivity(if_=name, best=plan, step_time_s=step_time_s, stays=row == winner, summary=says)
        )
    return cases + other_sizes(workload, ranked)


def other_sizes(workload: Workload, kept: Ranked) -> list[Sensitivity]:
    """Half and twice the devices at the same batch."""
    now, cases = workload.scenario.cluster.num_devices, []
    for up, down in [(1, 2)] * (now % 2 == 0) + [(2, 1)] * (2 * now <= MAX_DEVICES):
        devices = now * up // down
        name = f"{devices} device{'s' if devices > 1 else ''}"
        cluster = workload.scenario.cluster.model_copy(update={"num_devices": devices})
        scenario = workload.scenario.model_copy(update={"cluster": cluster})
        plans = _carry_over(kept.plans, up, down)
        facts = PlanFacts(scenario.model, scenario.cluster, scenario.training, plans)
        plans = plans.take(permitted_mask(workload.constraints, plans) & legal_mask(facts))
        other = replace(workload, scenario=scenario)
        row = None
        if len(plans["tp"]):
            costs = other.costs(plans)
            row = _fastest(costs.step_time_s, costs.memory_bytes, other.limit_gib * GIB)
        if row is None:
            none = "none of the best plans, carried over, fits"
            cases.append(Sensitivity(if_=name, best=None, stays=False, summary=none))
            continue
        plan, step_time_s = plans.plan(row), float(costs.step_time_s[row])
        says = f"the fastest is {short(plan)}"
        cases.append(Sensitivity(if_=name, best=plan, step_time_s=step_time_s, stays=False, summary=says))
    return cases


def _carry_over(plans: PlanColumns, up: int, down: int) -> PlanColumns:
    """Each plan with one degree scaled, the sharding group as it is or scaled alike."""
    parts = []
    for degree in SCALED:
        whole = plans[degree] * up % down == 0
        scaled = plans.take(whole).with_columns(**{degree: plans[degree][whole] * up // down})
        shard = scaled["dp_shard"] * up
        divides = shard % down == 0
        parts += [scaled, scaled.take(divides).with_columns(dp_shard=shard[divides] // down)]
    return PlanColumns.joined(parts)


def _fastest(times_s: Array, memory_bytes: Array, limit_bytes: float) -> int | None:
    """The row of the fastest plan that fits."""
    fits = memory_bytes <= limit_bytes
    return int(np.argmin(np.where(fits, times_s, np.inf))) if np.any(fits) else None


def pareto(front: Ranked) -> list[ParetoPoint]:
    """Step time against memory: at most twenty points of the front, fastest first."""
    count = len(front.step_time_s)
    rows = np.unique(np.linspace(0, count - 1, min(count, FRONT_POINTS)).round().astype(int))
    return [
        ParetoPoint(
            step_time_s=float(front.step_time_s[row]),
            peak_memory_gib=float(front.memory_bytes[row]) / GIB,
            plan=front.plans.plan(int(row)),
        )
        for row in rows
    ]
