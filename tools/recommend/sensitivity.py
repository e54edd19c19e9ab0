"""How the choice changes when the cluster is not what it seems, and the trade of time against memory."""

import numpy as np

from tools.cost.inputs import Array
from tools.cost.memory import GIB
from tools.recommend.other_sizes import other_sizes
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import Plan
from tools.sharding.ranked import Ranked, together
from tools.sharding.search import Found
from tools.sharding.space import decoded, to_columns

FRONT_POINTS = 20


def sensitivity(workload: Workload, found: Found) -> list[dict[str, object]]:
    """The best of the plans kept by the search and of its front, under other link speeds and memory."""
    cases = {
        "half the bandwidth between nodes": {"slow_bandwidth": 0.5},
        "twice the bandwidth between nodes": {"slow_bandwidth": 2.0},
        "half the bandwidth inside the node": {"fast_bandwidth": 0.5},
    }
    ranked = together([found.best, found.front])
    limit, plans = workload.limit_gib * GIB, to_columns(ranked.plans)
    told = [
        _case(name, ranked, workload.costs(plans, **factors).step_time_s, limit)
        for name, factors in cases.items()
    ]
    told.append(_case("a tenth less memory", ranked, ranked.step_time_s, 0.9 * limit))
    return told + other_sizes(workload, ranked)


def _case(name: str, ranked: Ranked, times: Array, limit_bytes: float) -> dict[str, object]:
    allowed = ranked.memory_bytes <= limit_bytes
    if not np.any(allowed):
        return {"if": name, "best": None, "stays": False, "says": "none of the best plans fits"}
    row = int(np.argmin(np.where(allowed, times, np.inf)))
    plan = Plan.model_validate(decoded(ranked.plans, row))
    same = row == int(np.argmin(ranked.step_time_s))
    return {
        "if": name,
        "best": plan.model_dump(),
        "step_time_s": float(times[row]),
        "stays": same,
        "says": "the fastest plan stays" if same else f"the fastest becomes {short(plan)}",
    }


def pareto(found: Found) -> list[dict[str, object]]:
    """Step time against memory: at most twenty points of the front, fastest first."""
    front = found.front
    count = len(front.step_time_s)
    rows = np.unique(np.linspace(0, count - 1, min(count, FRONT_POINTS)).round().astype(int))
    return [
        {
            "step_time_s": float(front.step_time_s[row]),
            "peak_memory_gib": float(front.memory_bytes[row]) / GIB,
            "plan": decoded(front.plans, int(row)),
        }
        for row in rows
    ]
