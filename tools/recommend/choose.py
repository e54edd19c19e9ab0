"""From thousands of fitting plans to three that an engineer would look at.

Plans that the model cannot tell apart are ordered by how ordinary they are: an unusual feature must earn its
place. Proposals really differ: no two share the degrees that shape communication.
"""

import numpy as np
from numpy.typing import NDArray

from tools.cost.inputs import Array
from tools.scenario import RECOMPUTES, Plan, Scenario
from tools.sharding.search import Ranked
from tools.sharding.space import Table, decoded

EARNED_BY_FEATURE = 0.004
"""Share of the step that each unusual feature must save: well inside the error of a comparison of two plans."""
MOST = 3
FAMILY = ("tp", "pp", "cp", "ep", "etp")
"""Fields that shape communication: proposals of one family are neighbours, not alternatives."""
TIGHT_MEMORY = 0.92


def choose(scenario: Scenario, ranked: Ranked, capacity_bytes: float) -> list[Plan]:
    """At most three plans, best first."""
    if not len(ranked.step_time_s):
        return []
    score = ranked.step_time_s * (1.0 + EARNED_BY_FEATURE * oddity(scenario, ranked, capacity_bytes))
    order = np.argsort(score, kind="stable")
    chosen: list[int] = []
    for row in order:
        if all(_differs(ranked.plans, int(row), other) for other in chosen):
            chosen.append(int(row))
        if len(chosen) == MOST:
            break
    return [Plan.model_validate(decoded(ranked.plans, row)) for row in chosen]


def _differs(plans: Table, row: int, other: int) -> bool:
    sharded = (plans["zero_stage"][row] >= 3) != (plans["zero_stage"][other] >= 3)
    return bool(sharded) or any(plans[name][row] != plans[name][other] for name in FAMILY)


def oddity(scenario: Scenario, ranked: Ranked, capacity_bytes: float) -> Array:
    """How many unusual features each plan has, some counted in part."""
    p = ranked.plans
    data_ranks = p["dp"] * p["cp"]
    hybrid = (p["dp_shard"] < data_ranks) & (p["zero_stage"] > 0)
    unsharded = (p["zero_stage"] == 0) & (data_ranks > 1)
    features: list[tuple[float, NDArray[np.bool_]]] = [
        (1.0, hybrid),
        (0.5, unsharded),
        (1.0, p["zero_stage"] == 2),
        (0.5, p["cp"] > 1),
        (1.0, p["etp"] > 1),
        (2.0, p["tp"] > scenario.cluster.devices_per_node),
        (0.5, p["recompute"] == RECOMPUTES.index("selective")),
        (1.0, p["recompute"] == RECOMPUTES.index("full")),
        (1.0, ranked.memory_bytes > TIGHT_MEMORY * capacity_bytes),
    ]
    depth = 0.5 * np.log2(np.maximum(p["vpp"], 1.0)) * (p["vpp"] > 4)
    return depth + sum((weight * mask for weight, mask in features), np.zeros(len(data_ranks)))
