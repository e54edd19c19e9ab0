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
from tools.physics.inputs import Array, Indices
from tools.recommend.workload import LESS_MEMORY, SLOW_LINK, Workload
from tools.scenario import RECOMPUTES, Plan, get_framework
from tools.scenario.limits import scale_up_size
from tools.scenario.spec import FULL_SHARDING, MODEL_AXES
from tools.search.ranked import Ranked, front_bytes, front_of

MAX_PROPOSALS = 3
FAMILY = (*MODEL_AXES, "ep")
TIE = 0.02
"""Log of time: what differs by less is the same, and the simpler plan is taken."""
WINDOW = 0.03
"""What of the predicted time habit may give away."""
SAFE = 0.8
"""Probability of fitting that the first plan needs, if any has it."""
MIN_PROBABILITY = 1e-3
MAX_TRIES = 40
"""How often plans are chosen again without those that the framework's configuration cannot express, before
every plan is looked at."""


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
    tensor, pipeline, context, experts = (_doublings(p[name]) for name in ("tp", "pp", "cp", "ep"))
    domain = scale_up_size(s.cluster, workload.device)
    own_experts = min(domain, s.model.num_experts) if s.model.is_moe else 1
    is_sharded_first = float(get_framework(s.training.framework).sharding_stage == FULL_SHARDING)
    interleaves = s.training.framework == "megatron-core"
    # A table that does not say how many layers of a stage are recomputed means all of them.
    layers = p.get("recompute_layers", np.zeros_like(p["pp"]))
    recomputed = np.where(layers > 0, layers / np.ceil(s.model.num_hidden_layers / p["pp"]), 1.0)
    columns: dict[str, NDArray[np.generic]] = {
        "tensor_parallel": p["tp"] > 1,
        "tensor_doublings": tensor,
        "tensor_doublings_beside_fsdp": tensor * is_sharded_first,
        "pipelined": p["pp"] > 1,
        "pipeline_doublings": pipeline,
        "pipeline_doublings_beside_fsdp": pipeline * is_sharded_first,
        "pipeline_not_interleaved": (p["pp"] > 1) & (p["vpp"] == 1) & interleaves,
        "tensor_and_pipeline": (p["tp"] > 1) & (p["pp"] > 1),
        "context_doublings": context,
        "context_doublings_beside_fsdp": context * is_sharded_first,
        "expert_doublings_beside_fsdp": experts * is_sharded_first,
        "experts_beyond_domain": _doublings(p["ep"] * p["etp"] / domain),
        "experts_short_of_domain": np.log2(own_experts / np.minimum(p["ep"], own_experts)),
        "full_recompute": (p["recompute"] == RECOMPUTES.index("full")) * recomputed,
        "filled_memory": ranked.memory_bytes / workload.device.memory_bytes,
    }
    return {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}


def _doublings(degree: NDArray[np.generic]) -> Array:
    return np.asarray(np.log2(np.maximum(degree, 1.0)))


@dataclass(frozen=True)
class Families:
    """The families of the plans that fit: which plan is in which, the row of the plan that stands for each,
    and its cost: the log of its time over its probability of fitting, above the least."""

    of_plan: Indices
    rows: Indices
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
    members = (np.flatnonzero(of_plan == family) for family in range(len(keys)))
    rows = np.array([_simplest(ranked, cost, kin) for kin in members])
    columns = np.stack([*features(workload, ranked.take(rows)).values()], axis=1)
    return Families(of_plan, rows, cost[rows] - cost.min(), columns)


def expected_cost(workload: Workload, ranked: Ranked) -> Array:
    """Log of the time until a step has run: a plan is tried again as often as it is expected not to fit."""
    likely = probability_of_fitting(workload, ranked)
    return np.log(ranked.step_time_s) - np.log(np.maximum(likely, MIN_PROBABILITY))


def probability_of_fitting(workload: Workload, ranked: Ranked) -> Array:
    return workload.fit_probability(ranked.plans, ranked.memory_bytes)


def _simplest(ranked: Ranked, cost: Array, rows: Indices) -> int:
    """The simplest row that ties with the best: fewest chunks, then least memory."""
    tied = rows[cost[rows] <= cost[rows].min() + TIE]
    return int(tied[np.lexsort((cost[tied], ranked.memory_bytes[tied], ranked.plans["vpp"][tied]))[0]])


def choose(workload: Workload, ranked: Ranked, preferences: Preferences | None = None) -> list[Plan]:
    """At most three plans of different families: the one to run first, the fastest by prediction if that is
    of another family, then the likeliest of the others; none that the framework's configuration cannot
    express, unless the user's own constraint asks for it."""
    preferences, left = preferences or shipped_preferences(), np.arange(len(ranked.step_time_s))
    for _ in range(MAX_TRIES):
        rows = left[_choose(workload, ranked.take(left), preferences)]
        plans = [ranked.plans.plan(int(row)) for row in rows]
        faulty = [row for row, plan in zip(rows, plans, strict=True) if workload.why_inexpressible(plan)]
        if plans and not faulty:
            return plans
        left = np.setdiff1d(left, faulty)
    written = [row for row in left if not workload.why_inexpressible(ranked.plans.plan(int(row)))]
    rows = np.array(written, dtype=np.intp)
    if not written:  # the user's own constraint outranks what the configuration can express
        rows = np.array(
            [row for row in range(len(ranked.step_time_s)) if workload.is_forced(ranked.plans.plan(row))],
            dtype=np.intp,
        )
    return [ranked.plans.plan(int(rows[row])) for row in _choose(workload, ranked.take(rows), preferences)]


def _choose(workload: Workload, ranked: Ranked, preferences: Preferences) -> list[int]:
    if not len(ranked.step_time_s):
        return []
    candidates = candidates_for_first(workload, ranked)
    near = families(workload, ranked.take(candidates))
    first = _most_robust(workload, ranked, candidates[near.of_plan == np.argmax(near.utility(preferences))])
    found = families(workload, ranked)
    # Families that are slower by more than a comparison errs stand behind all others.
    log_time = np.log(ranked.step_time_s[found.rows])
    is_slow = log_time > log_time.min() + workload.pair_error
    order = found.rows[np.lexsort((-found.utility(preferences), is_slow))]
    chosen: dict[int, int] = {}
    for row in (first, np.argmin(ranked.step_time_s), *order):
        chosen.setdefault(int(found.of_plan[row]), int(row))
    return [*chosen.values()][:MAX_PROPOSALS]


def _most_robust(workload: Workload, ranked: Ranked, rows: Indices) -> int:
    """Among plans that tie, one that leaves a tenth of the memory, then the fastest with slow links
    between nodes."""
    cost = expected_cost(workload, ranked)[rows]
    tied = rows[cost <= cost.min() + TIE]
    slowed_s = workload.costs(ranked.plans.take(tied), scale_out_bandwidth=SLOW_LINK).step_time_s
    is_tight = ranked.memory_bytes[tied] > (1.0 - LESS_MEMORY) * workload.device.memory_bytes
    return int(tied[np.lexsort((slowed_s, is_tight))[0]])


def candidates_for_first(workload: Workload, ranked: Ranked) -> Indices:
    """Rows among which habit decides: likely to fit, hardly slower than the fastest of those, and beaten by
    none of them in time and memory."""
    likely = probability_of_fitting(workload, ranked)
    safe = np.flatnonzero(likely >= SAFE if np.any(likely >= SAFE) else likely >= 0.0)
    times, memory = ranked.step_time_s[safe], ranked.memory_bytes[safe]
    least_bytes = front_bytes(front_of(ranked.take(safe)), np.nextafter(times, 0.0))
    return np.asarray(safe[(times <= (1.0 + WINDOW) * times.min()) & (memory < least_bytes)])
