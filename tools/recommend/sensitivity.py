"""How the choice changes when the cluster is not what it seems, and the trade of time against memory."""

import numpy as np

from tools.cost.coefficients import resolve
from tools.cost.encode import encode_plans
from tools.cost.evaluate import evaluate
from tools.cost.memory_settings import memory_settings
from tools.recommend.other_sizes import other_sizes
from tools.recommend.words import short
from tools.recommend.workload import GIB, Workload
from tools.scenario import Plan
from tools.sharding.ranked import Ranked, together
from tools.sharding.search import Found
from tools.sharding.space import decoded, to_columns

FRONT_POINTS = 20


def sensitivity(workload: Workload, found: Found) -> list[dict[str, object]]:
    """The best of the plans kept by the search and of its front, under other link speeds and memory."""
    gbps = workload.device.inter_node_bytes_per_s * 8 / 1e9
    fast = workload.device.intra_node_bytes_per_s / 1e9
    cases = [
        ("half the bandwidth between nodes", {"inter_node_gbps_per_device": gbps / 2}, 1.0),
        ("twice the bandwidth between nodes", {"inter_node_gbps_per_device": gbps * 2}, 1.0),
        ("half the bandwidth inside the node", {"intra_node_gbytes_per_s_per_device": fast / 2}, 1.0),
        ("a tenth less memory", {}, 0.9),
    ]
    ranked = together([found.best, found.front])
    told = [_case(workload, ranked, name, overrides, memory) for name, overrides, memory in cases]
    return told + other_sizes(workload, ranked)


def _case(
    workload: Workload, ranked: Ranked, name: str, overrides: dict[str, float], memory: float
) -> dict[str, object]:
    times = _times(workload.on(**overrides), ranked) if overrides else ranked.step_time_s
    allowed = ranked.memory_bytes <= workload.limit_gib * GIB * memory
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


def _times(workload: Workload, ranked: Ranked) -> np.ndarray:
    x, keys = encode_plans(workload.scenario, to_columns(ranked.plans))
    settings = memory_settings(keys.framework, [workload.scenario.training.precision])
    return evaluate(x, resolve(keys, workload.calibration.shifts), settings).step_time_s


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
