"""Reduces thousands of fitting plans to three that an engineer would consider.

Plans within the error of a comparison are ordered by what experts prefer: weights of a conditional logit
over published recipes (`research/preferences.py`), in log step time that a feature must save.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

import kb_seed
from tools.cost.inputs import Array
from tools.recommend.workload import why_inexpressible
from tools.scenario import RECOMPUTES, Plan, Scenario, get_framework
from tools.search.ranked import Ranked
from tools.search.space import Table, get_plan, to_columns, where

REMATERIALISING = ("maxtext", "torchtitan")
"""Frameworks whose recipes recompute as a rule."""
SHARDED_FIRST = ("torch-fsdp", "torch-fsdp2", "torchtitan", "maxtext")
"""Frameworks built around sharded data parallelism, where other degrees are added last."""
TIGHT_MEMORY = 0.9


def features(scenario: Scenario, ranked: Ranked, capacity_bytes: float) -> dict[str, Array]:
    """One column per feature, one row per plan."""
    p, framework = ranked.plans, scenario.training.framework
    plans = to_columns(p)
    filled = ranked.memory_bytes / capacity_bytes
    sharded_first = float(framework in SHARDED_FIRST)
    default_stage = get_framework(framework).sharding_stage
    none, selective, full = (p["recompute"] == code for code in range(len(RECOMPUTES)))
    columns: dict[str, NDArray[np.generic]] = {
        "tensor_doublings": _doublings(p["tp"]),
        "tensor_doublings_beside_fsdp": _doublings(p["tp"]) * sharded_first,
        "pipeline_doublings": _doublings(p["pp"]),
        "pipeline_doublings_beside_fsdp": _doublings(p["pp"]) * sharded_first,
        "chunk_doublings": _doublings(p["vpp"]),
        "context_doublings": _doublings(p["cp"]),
        "expert_doublings": _doublings(p["ep"]),
        "sharded_experts": p["etp"] > 1,
        "micro_batch_doublings": _doublings(p["micro_batch_size"]),
        "micro_batch_doublings_in_pipeline": _doublings(p["micro_batch_size"]) * (p["pp"] > 1),
        "hybrid_sharding": plans.is_hybrid_sharded,
        "other_sharding_stage": (plans.data_ranks > 1) & (plans.sharding_stage != default_stage),
        "selective_recompute": selective,
        "full_recompute": full,
        "no_recompute_where_usual": none & (framework in REMATERIALISING),
        "tight_memory": filled > TIGHT_MEMORY,
        "filled_memory": filled,
    }
    return {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}


def _doublings(degree: NDArray[np.int64]) -> Array:
    return np.log2(np.maximum(degree, 1.0))


@cache
def shipped_weights() -> Mapping[str, float]:
    text = kb_seed.folder("calibration").joinpath("preferences.json").read_text()
    weights: dict[str, float] = json.loads(text)["weights"]
    return weights


def reluctance(columns: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
    """Log of step time that each plan's features would have to save."""
    return sum((weights[name] * column for name, column in columns.items()), np.zeros(()))


MAX_PROPOSALS = 3
PREFERENCE_WINDOW = 0.05
"""How far (log of step time) a plan may be behind the fastest and still be preferred to it."""
FAMILY = ("tp", "pp", "cp", "ep")
"""Fields that shape communication: plans that share them are neighbours, not alternatives."""


def choose(
    scenario: Scenario, ranked: Ranked, capacity_bytes: float, weights: Mapping[str, float]
) -> list[Plan]:
    """At most three plans, best first: of different families, and one of them the fastest."""
    if not len(ranked.step_time_s):
        return []
    order = preferred_order(scenario, ranked, capacity_bytes, weights)
    expressible = [*different(ranked.plans, order, lambda row: _is_expressible(scenario, ranked.plans, row))]
    if not expressible:
        rows = with_fastest(ranked, different(ranked.plans, order), int(np.argmin(ranked.step_time_s)))
        return [get_plan(ranked.plans, row) for row in rows]
    by_time = np.argsort(ranked.step_time_s, kind="stable")
    fastest = next(int(row) for row in by_time if _is_expressible(scenario, ranked.plans, int(row)))
    return [get_plan(ranked.plans, row) for row in with_fastest(ranked, expressible, fastest)]


def with_fastest(ranked: Ranked, rows: Sequence[int], fastest: int) -> list[int]:
    """The rows with the fastest among them: in its family's place, else in the last one."""
    if fastest in rows:
        return list(rows)
    own = next((i for i, row in enumerate(rows) if not _differs(ranked.plans, row, fastest)), None)
    if own is not None:
        return [*rows[:own], fastest, *rows[own + 1 :]]
    return [*rows[: MAX_PROPOSALS - 1], fastest]


def _is_expressible(scenario: Scenario, plans: Table, row: int) -> bool:
    return why_inexpressible(scenario, get_plan(plans, row)) is None


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
    """The first accepted rows of the order that really differ: in family, or if that is all, in sharding."""
    chosen: list[int] = []
    for differs in (_differs, _shards_otherwise):
        for row in order:
            if len(chosen) == MAX_PROPOSALS:
                return chosen
            if all(differs(plans, int(row), other) for other in chosen) and accepts(int(row)):
                chosen.append(int(row))
    return chosen


def _shards_otherwise(plans: Table, row: int, other: int) -> bool:
    is_sharded = to_columns(where(plans, np.array([row, other]))).is_fully_sharded
    gathered = bool(is_sharded[0] != is_sharded[1])
    return _differs(plans, row, other) or gathered or bool(plans["etp"][row] != plans["etp"][other])


def _differs(plans: Table, row: int, other: int) -> bool:
    return any(plans[name][row] != plans[name][other] for name in FAMILY)
