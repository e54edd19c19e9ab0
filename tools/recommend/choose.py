"""Reduces the plans that fit to the three that an engineer would run first.

Plans with the same (tp, pp, cp, ep) are a family: they communicate alike. How likely a family is to be the
one to run follows from its predicted time, over the probability of fitting (a plan that crashes is paid for
and tried again), and from the habits of practitioners: the weights of a conditional logit over published
recipes (McFadden, 1974; `research/preferences.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

import kb_seed
from tools.cost.inputs import Array
from tools.cost.predict import fit_probability
from tools.recommend.workload import Workload
from tools.scenario import RECOMPUTES, Plan, get_framework
from tools.scenario.limits import scale_up_size
from tools.scenario.spec import FULL_SHARDING
from tools.search.ranked import Ranked
from tools.search.space import Rows, Table, get_plan

MAX_PROPOSALS = 3
FAMILY = ("tp", "pp", "cp", "ep")
TIE = 0.02
"""Log of time: what differs by less is the same, and the simpler plan is taken."""
MIN_PROBABILITY = 1e-3
MAX_TRIES = 40
"""Plans of a family that are tried until one can be expressed in the framework's configuration."""


@dataclass(frozen=True)
class Preferences:
    """What a recipe's features are worth to practitioners, and what a log of predicted time is."""

    time: float
    weights: Mapping[str, float]


@cache
def shipped_preferences() -> Preferences:
    data = json.loads(kb_seed.folder("calibration").joinpath("preferences.json").read_text())
    return Preferences(time=data["time"], weights=data["weights"])


def features(workload: Workload, ranked: Ranked) -> dict[str, Array]:
    """One column per feature, one row per plan."""
    p, s = ranked.plans, workload.scenario
    tensor, pipeline, context, experts = (_doublings(p[name]) for name in FAMILY)
    domain = scale_up_size(s.cluster, workload.device)
    own_experts = min(domain, s.model.num_experts) if s.model.is_moe else 1
    is_sharded_first = float(get_framework(s.training.framework).sharding_stage == FULL_SHARDING)
    columns: dict[str, NDArray[np.generic]] = {
        "tensor_parallel": p["tp"] > 1,
        "tensor_doublings": tensor,
        "tensor_doublings_beside_fsdp": tensor * is_sharded_first,
        "pipelined": p["pp"] > 1,
        "pipeline_doublings": pipeline,
        "pipeline_doublings_beside_fsdp": pipeline * is_sharded_first,
        "pipeline_not_interleaved": (p["pp"] > 1) & (p["vpp"] == 1) & _interleaves(s.training.framework),
        "tensor_and_pipeline": (p["tp"] > 1) & (p["pp"] > 1),
        "context_doublings": context,
        "context_doublings_beside_fsdp": context * is_sharded_first,
        "expert_doublings_beside_fsdp": experts * is_sharded_first,
        "experts_beyond_domain": _doublings(p["ep"] * p["etp"] / domain),
        "experts_short_of_domain": np.log2(own_experts / np.minimum(p["ep"], own_experts)),
        "full_recompute": (p["recompute"] == RECOMPUTES.index("full")) * _recomputed_share(workload, p),
        "filled_memory": ranked.memory_bytes / workload.device.memory_bytes,
    }
    return {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}


def _recomputed_share(workload: Workload, plans: Table) -> Array:
    """Of a stage's layers, if they are recomputed: all of them if the table does not say how many."""
    layers = plans.get("recompute_layers", np.zeros_like(plans["pp"]))
    of_stage = np.ceil(workload.scenario.model.num_hidden_layers / plans["pp"])
    return np.where(layers > 0, layers / of_stage, 1.0)


def _doublings(degree: NDArray[np.generic]) -> Array:
    return np.asarray(np.log2(np.maximum(degree, 1.0)))


def _interleaves(framework: str) -> bool:
    return framework == "megatron-core"


@dataclass(frozen=True)
class Families:
    """The families of the plans that fit: which plan is in which, the row of the plan that stands for each,
    and its cost: the log of its time over its probability of fitting, above the least."""

    of_plan: Rows
    rows: Rows
    cost: Array
    columns: Array

    def utility(self, preferences: Preferences) -> Array:
        weights = np.array([*preferences.weights.values()])
        return np.asarray(self.columns @ weights - preferences.time * self.cost)


def families(workload: Workload, ranked: Ranked) -> Families:
    cost = expected_cost(workload, ranked)
    degrees = np.stack([ranked.plans[name] for name in FAMILY], axis=1)
    keys, of_plan = np.unique(degrees, axis=0, return_inverse=True)
    of_plan = np.asarray(of_plan).ravel()
    rows = np.array(
        [_simplest_first(ranked, cost, np.flatnonzero(of_plan == k))[0] for k in range(len(keys))]
    )
    columns = np.stack([*features(workload, ranked.take(rows)).values()], axis=1)
    return Families(of_plan, rows, cost[rows] - cost.min(), columns)


def expected_cost(workload: Workload, ranked: Ranked) -> Array:
    """Log of the time until a step has run: a plan is tried again as often as it is expected not to fit."""
    memory = np.asarray(float(workload.device.memory_bytes))
    likely = fit_probability(ranked.memory_bytes, memory, workload.calibration.memory_error)
    return np.log(ranked.step_time_s) - np.log(np.maximum(likely, MIN_PROBABILITY))


def _simplest_first(ranked: Ranked, cost: Array, rows: Rows) -> Rows:
    """The rows by cost, but of those that tie with the best: fewest chunks, then least memory."""
    is_tied = cost[rows] <= cost[rows].min() + TIE
    tied, others = rows[is_tied], rows[~is_tied]
    by_simplicity = np.lexsort((cost[tied], ranked.memory_bytes[tied], ranked.plans["vpp"][tied]))
    return np.concatenate([tied[by_simplicity], others[np.argsort(cost[others], kind="stable")]])


def choose(workload: Workload, ranked: Ranked, preferences: Preferences | None = None) -> list[Plan]:
    """At most three plans of different families: the recommended one, the fastest by prediction if that is of
    another family, then the likeliest of the others. None of them beats the first in time and memory."""
    if not len(ranked.step_time_s):
        return []
    rows = _three(workload, ranked, preferences or shipped_preferences(), can_be_written=True)
    if not rows:  # today's plan cannot be written either: `limit_to_expressible`
        rows = _three(workload, ranked, preferences or shipped_preferences(), can_be_written=False)
    return [get_plan(ranked.plans, row) for row in rows]


def _three(
    workload: Workload, ranked: Ranked, preferences: Preferences, *, can_be_written: bool
) -> list[int]:
    def is_accepted(row: int) -> bool:
        plan = get_plan(ranked.plans, row)
        return not can_be_written or workload.why_inexpressible(plan) is None

    def stand_in(family: int) -> int | None:
        rows = _simplest_first(ranked, cost, np.flatnonzero(found.of_plan == family))
        return next((int(row) for row in rows[:MAX_TRIES] if is_accepted(int(row))), None)

    found, cost = families(workload, ranked), expected_cost(workload, ranked)
    order = _likely_first(workload, ranked, found, preferences)
    by_time = np.argsort(ranked.step_time_s, kind="stable")
    fastest = next((int(row) for row in by_time if is_accepted(int(row))), None)
    chosen: list[int] = []
    for family in order:
        if len(chosen) == MAX_PROPOSALS:
            break
        if len(chosen) == 1 and fastest is not None and found.of_plan[fastest] != found.of_plan[chosen[0]]:
            chosen.append(fastest)
        if all(found.of_plan[row] != family for row in chosen):
            row = stand_in(int(family))
            chosen += [] if row is None else [row]
    return _undominated_first(ranked, cost, found, chosen[:MAX_PROPOSALS])


def _likely_first(workload: Workload, ranked: Ranked, found: Families, preferences: Preferences) -> Rows:
    """Families by utility; those that are slower by more than a comparison errs stand behind all others."""
    behind = np.log(ranked.step_time_s[found.rows])
    is_slower = behind > behind.min() + workload.pair_error
    return np.lexsort((-found.utility(preferences), is_slower))


def _undominated_first(ranked: Ranked, cost: Array, found: Families, chosen: list[int]) -> list[int]:
    """The first must not be beaten in time and memory by another: a plan of its family that ties with it and
    is not beaten takes its place, else the one that beats it."""

    def beats(row: int, other: int) -> bool:
        faster = ranked.step_time_s[row] < ranked.step_time_s[other]
        return bool(faster and ranked.memory_bytes[row] <= ranked.memory_bytes[other])

    if not any(beats(row, chosen[0]) for row in chosen[1:]):
        return chosen
    same_family = np.flatnonzero(
        (found.of_plan == found.of_plan[chosen[0]]) & (cost <= cost[chosen[0]] + TIE)
    )
    free = [int(row) for row in same_family if not any(beats(other, int(row)) for other in chosen[1:])]
    if free:
        return [min(free, key=lambda row: cost[row]), *chosen[1:]]
    first = min((row for row in chosen[1:] if beats(row, chosen[0])), key=lambda row: ranked.step_time_s[row])
    return [first, *(row for row in chosen if row != first)]


HABITS = {
    "tensor": "tensor parallelism",
    "pipeline": "pipeline parallelism",
    "context": "context parallelism",
    "expert": "expert parallelism",
    "full": "recomputation",
    "filled": "memory in use",
}
"""What the features speak of, by how their names begin."""


def deciding_habit(workload: Workload, pair: Ranked) -> str:
    """What speaks most for the first of two plans by published recipes: "less tensor parallelism"."""
    weights, columns = shipped_preferences().weights, features(workload, pair)
    ahead = {name: float(column[0] - column[1]) for name, column in columns.items()}
    by_habit = {habit: [name for name in columns if name.startswith(habit)] for habit in HABITS}
    decides = max(HABITS, key=lambda habit: sum(weights[name] * ahead[name] for name in by_habit[habit]))
    amount = "more" if sum(ahead[name] for name in by_habit[decides]) > 0 else "less"
    return f"{amount} {HABITS[decides]}"
