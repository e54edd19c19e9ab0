"""Recomputation as a dial: of plans that fit only if every layer is recomputed, how little suffices.

Two ways, as far as the framework has them: some layers of a stage (Megatron's `--recompute-method block`), or
some modules of every layer (`--recompute-modules`); memory is filled instead of jumping from all kept to
nothing. Every share of the layers in eighths and every set of modules is tried.
"""

from dataclasses import replace
from itertools import chain, combinations

import numpy as np

from tools.cost.encode import ALL_LAYERS, carried_facts
from tools.cost.memory import GIB
from tools.cost.predict import Costs
from tools.recommend.choose import expected_cost
from tools.recommend.workload import Workload
from tools.scenario import RECOMPUTES, SEARCHED_FIELDS, Scenario, get_framework
from tools.scenario.columns import encode_value
from tools.scenario.levers import offered_levers
from tools.scenario.spec import RecomputeModule
from tools.search.ranked import Ranked, together
from tools.search.space import Mask, encode_modules, to_columns

EIGHTHS = range(1, 8)
MAX_DIALLED = 2000
"""Plans with full recomputation that are tried, the fastest first."""
CONTAINED = {"moe": {"moe_act", "shared_experts"}}
"""Modules that repeat others as a part."""


def with_dial(workload: Workload, ranked: Ranked) -> Ranked:
    """The plans, and those that recompute every layer once more with what recomputation costs least."""
    full = RECOMPUTES.index("full")
    rows = np.flatnonzero(ranked.plans["recompute"] == full) if ranked.plans else np.zeros(0, np.intp)
    if not len(rows):
        return ranked
    stated = undialled(ranked)
    start = stated.take(rows[np.argsort(ranked.step_time_s[rows], kind="stable")[:MAX_DIALLED]])
    best = _with_fewer_layers(workload, start, start)
    best = _with_modules(workload, start, best)
    moved = (best.plans["recompute_layers"] > 0) | (best.plans["recompute_modules"] > 0)
    return together([stated, best.take(moved & ~_excluded(workload, best))])


def _excluded(workload: Workload, ranked: Ranked) -> Mask:
    """What was measured, or would fail like another, is not brought back by its recomputation."""
    out = np.zeros(len(ranked.step_time_s), dtype=np.bool_)
    for values in workload.constraints.excluded:
        named = [name for name in values if name in SEARCHED_FIELDS]
        matches = [ranked.plans[name] == encode_value(name, values[name]) for name in named]
        out |= np.logical_and.reduce(matches)
    return out


def undialled(ranked: Ranked) -> Ranked:
    """The plans as they are, with columns that say so."""
    nothing = np.zeros(len(ranked.step_time_s), dtype=np.int64)
    return replace(ranked, plans={"recompute_layers": nothing, "recompute_modules": nothing, **ranked.plans})


def _with_fewer_layers(workload: Workload, start: Ranked, best: Ranked) -> Ranked:
    if not get_framework(workload.scenario.training.framework).recompute_layers:
        return best
    layers = -(-workload.scenario.model.num_hidden_layers // start.plans["pp"])
    chunks = start.plans["vpp"]
    for eighths in EIGHTHS:
        count = np.maximum(eighths * layers // (8 * chunks), 1) * chunks
        costs = workload.costs(to_columns(start.plans), recomputed_layers=count / ALL_LAYERS)
        best = _better(workload, best, costs, count < layers, recompute_layers=count)
    return best


def _with_modules(workload: Workload, start: Ranked, best: Ranked) -> Ranked:
    if not workload.constraints.permits("recompute", "selective"):
        return best
    selective = np.full_like(start.plans["recompute"], RECOMPUTES.index("selective"))
    columns = to_columns({**start.plans, "recompute": selective})
    everywhere = np.ones(len(start.step_time_s), dtype=np.bool_)
    for modules in module_sets(workload.scenario):
        costs = workload.costs(columns, carried_facts(None, modules))
        code = np.full_like(selective, encode_modules(modules))
        best = _better(
            workload,
            best,
            costs,
            everywhere,
            recompute=selective,
            recompute_layers=np.zeros_like(selective),
            recompute_modules=code,
        )
    return best


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


def _better(workload: Workload, best: Ranked, costs: Costs, allowed: Mask, **columns: np.ndarray) -> Ranked:
    """The rows that fit and are sooner done with these columns, the others as they are."""
    changed = Ranked({**best.plans, **columns}, costs.step_time_s, costs.memory_bytes)
    moves = allowed & (costs.memory_bytes <= workload.limit_gib * GIB)
    moves &= expected_cost(workload, changed) < expected_cost(workload, best)
    return Ranked(
        {name: np.where(moves, changed.plans[name], column) for name, column in best.plans.items()},
        np.where(moves, changed.step_time_s, best.step_time_s),
        np.where(moves, changed.memory_bytes, best.memory_bytes),
    )
