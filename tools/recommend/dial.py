"""Recomputation as a dial: of plans that fit only if every layer is recomputed, how little suffices.

Two ways, as far as the framework has them: some layers of a stage (Megatron's `--recompute-method block`), or
some modules of every layer (`--recompute-modules`); memory is filled instead of jumping from all kept to
nothing. Every share of the layers in eighths and every set of modules is tried.
"""

from dataclasses import replace
from itertools import chain, combinations

import numpy as np

from tools.physics.memory import GIB
from tools.recommend.choose import expected_cost
from tools.recommend.workload import Workload
from tools.scenario import RECOMPUTES, SEARCHED_FIELDS, PlanColumns, Scenario, get_framework
from tools.scenario.columns import BoolArray, IntArray, encode_value
from tools.scenario.levers import offered_levers
from tools.scenario.spec import RecomputeModule
from tools.search.ranked import Ranked, together

FULL = RECOMPUTES.index("full")
EIGHTHS = range(1, 8)
MAX_DIALLED = 2000
"""Plans with full recomputation that are tried, the fastest first."""
CONTAINED = {"moe": {"moe_act", "shared_experts"}}
"""Modules that repeat others as a part."""


def with_dial(workload: Workload, ranked: Ranked) -> Ranked:
    """The plans, and those that recompute every layer once more with what recomputation costs least."""
    rows = np.flatnonzero(ranked.plans["recompute"] == FULL) if ranked.plans else np.zeros(0, np.intp)
    if not len(rows):
        return ranked
    stated = with_dial_columns(ranked)
    start = stated.take(rows[np.argsort(ranked.step_time_s[rows], kind="stable")[:MAX_DIALLED]])
    best = start
    if get_framework(workload.scenario.training.framework).recompute_layers:
        layers = -(-workload.scenario.model.num_hidden_layers // start.plans["pp"])
        chunks = start.plans["vpp"]
        for eighths in EIGHTHS:
            count = np.maximum(eighths * layers // (8 * chunks), 1) * chunks
            best = _better(workload, best, start, count < layers, recompute_layers=count)
    if workload.constraints.permits("recompute", "selective"):
        nothing = np.zeros_like(start.plans["recompute"])
        for modules in module_sets(workload.scenario):
            best = _better(
                workload,
                best,
                start,
                nothing == 0,
                recompute=nothing + RECOMPUTES.index("selective"),
                recompute_layers=nothing,
                recompute_modules=nothing + encode_value("recompute_modules", modules),
            )
    added = (best.plans["recompute_layers"] > 0) | (best.plans["recompute_modules"] > 0)
    # What was measured, or would fail like another, is not brought back by its recomputation.
    for values in workload.constraints.excluded:
        named = [name for name in values if name in SEARCHED_FIELDS]
        added &= ~np.logical_and.reduce(
            [best.plans[name] == encode_value(name, values[name]) for name in named]
        )
    return together([stated, best.take(added)])


def with_dial_columns(ranked: Ranked) -> Ranked:
    """The plans as they are, with the columns that the dial sets; 0 where they have none."""
    nothing = np.zeros(len(ranked.step_time_s), dtype=np.int64)
    stated = {"recompute_layers": nothing, "recompute_modules": nothing, **ranked.plans}
    return replace(ranked, plans=PlanColumns(stated))


def module_sets(scenario: Scenario) -> list[tuple[RecomputeModule, ...]]:
    """Every set of modules that the framework's release can repeat in this model, none inside another."""
    has = {"experts": scenario.model.is_moe, "latent_attention": bool(scenario.model.kv_lora_rank)}
    offered: list[RecomputeModule] = [
        lever.value  # type: ignore[misc]
        for lever in offered_levers(scenario)
        if lever.setting == "recompute_modules" and all(has.get(need, False) for need in lever.needs)
    ]
    sets = chain.from_iterable(combinations(offered, size) for size in range(1, len(offered) + 1))
    return [modules for modules in sets if not any({*modules} & CONTAINED.get(m, set()) for m in modules)]


def _better(
    workload: Workload, best: Ranked, start: Ranked, allowed: BoolArray, **columns: IntArray
) -> Ranked:
    """The rows that fit and are sooner done if `start` has these columns, the others as they are."""
    costs = workload.costs(start.plans.with_columns(**columns))
    changed = Ranked(best.plans.with_columns(**columns), costs.step_time_s, costs.memory_bytes)
    moves = allowed & (costs.memory_bytes <= workload.limit_gib * GIB)
    moves &= expected_cost(workload, changed) < expected_cost(workload, best)
    plans = {name: np.where(moves, changed.plans[name], column) for name, column in best.plans.items()}
    return Ranked(
        PlanColumns(plans),
        np.where(moves, changed.step_time_s, best.step_time_s),
        np.where(moves, changed.memory_bytes, best.memory_bytes),
    )
