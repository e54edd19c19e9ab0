"""From thousands of fitting plans to three that an engineer would look at.

Plans a few percent behind the fastest, well inside the error of a comparison, are ordered by prediction and
experts' preference together; slower ones by prediction alone. Proposals really differ: no two share the
degrees that shape communication and the way state is sharded.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tools.recommend.preference import features, reluctance
from tools.recommend.writable import find_unwritable
from tools.scenario import Plan, Scenario
from tools.sharding.ranked import Ranked
from tools.sharding.space import Table, decoded

MOST = 3
PREFERENCE_WINDOW = 0.05
"""How far (log of step time) a plan may be behind the fastest and still be preferred to it."""
FAMILY = ("tp", "pp", "cp", "ep", "etp")
"""Fields that shape communication: plans that share them are neighbours, not alternatives."""


def choose(
    scenario: Scenario, ranked: Ranked, capacity_bytes: float, weights: Mapping[str, float]
) -> list[Plan]:
    """At most three plans, best first."""
    if not len(ranked.step_time_s):
        return []
    order = preferred_order(scenario, ranked, capacity_bytes, weights)
    rows = different(ranked.plans, order, lambda row: _is_writable(scenario, ranked.plans, row))
    return [_plan(ranked.plans, row) for row in rows or different(ranked.plans, order)]


def _plan(plans: Table, row: int) -> Plan:
    return Plan.model_validate(decoded(plans, row))


def _is_writable(scenario: Scenario, plans: Table, row: int) -> bool:
    return find_unwritable(scenario, _plan(plans, row)) is None


def preferred_order(
    scenario: Scenario, ranked: Ranked, capacity_bytes: float, weights: Mapping[str, float]
) -> NDArray[np.intp]:
    behind = np.log(ranked.step_time_s / ranked.step_time_s.min())
    score = behind + reluctance(features(scenario, ranked, capacity_bytes), weights)
    beyond = behind > PREFERENCE_WINDOW
    return np.lexsort((np.where(beyond, behind, score), beyond))


def different(
    plans: Table, order: NDArray[np.intp], accepts: Callable[[int], bool] = lambda row: True
) -> list[int]:
    """The first accepted rows of the order that really differ from one another."""
    chosen: list[int] = []
    for row in order:
        if all(_differs(plans, int(row), other) for other in chosen) and accepts(int(row)):
            chosen.append(int(row))
        if len(chosen) == MOST:
            break
    return chosen


def _differs(plans: Table, row: int, other: int) -> bool:
    gathered = (plans["zero_stage"][row] >= 3) != (plans["zero_stage"][other] >= 3)
    return bool(gathered) or any(plans[name][row] != plans[name][other] for name in FAMILY)
