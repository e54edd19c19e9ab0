"""Exhaustive search: every legal plan is decided, the fitting ones are timed, the best are kept.

Three facts of the cost model save work without losing any optimum: no sharding needs less memory than ZeRO-3
over all data ranks without its gathered layers, so a branch that does not fit even so is closed; less
recomputation is never slower, so each plan is timed with the least that fits; sequence parallelism never
costs time or memory, so a plan without it is not timed where the framework accepts the same plan with it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.coefficients import resolve
from tools.cost.encode import encode_plans
from tools.cost.inputs import Array, Inputs
from tools.cost.memory import activity_bytes, memory_bytes, with_state
from tools.cost.memory_settings import memory_settings
from tools.cost.step import step_core, with_data_parallelism
from tools.scenario import RECOMPUTES, Plan, PlanColumns, Scenario, columns_of
from tools.sharding.constraints import Constraints
from tools.sharding.space import Mask, PlanSpace, Table, count, encoded, joined, to_columns, where

KEPT = 4096
"""Plans kept of each block and in the end: enough to choose different proposals from."""
DEGREES_A_BLOCK = 2
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Ranked:
    """Plans that fit, with their time and memory."""

    plans: Table
    step_time_s: Array
    memory_bytes: Array

    def take(self, rows: Mask | np.ndarray) -> "Ranked":
        return Ranked(where(self.plans, rows), self.step_time_s[rows], self.memory_bytes[rows])


NOTHING = Ranked({}, np.zeros(0), np.zeros(0))


@dataclass(frozen=True)
class Found:
    """The best plans, fastest first; how many legal plans were decided and how many of them were timed."""

    best: Ranked
    front: Ranked
    searched: int
    timed: int
    seconds: float


class Search:
    """One scenario's search."""

    def __init__(
        self,
        scenario: Scenario,
        constraints: Constraints,
        calibration: Calibration | None = None,
        kept: int = KEPT,
    ) -> None:
        self.scenario = scenario
        self.constraints = constraints
        self.kept = kept
        self.space = PlanSpace(scenario, constraints)
        _, keys = encode_plans(scenario, _nothing())
        self.coefficients = resolve(keys, (calibration or shipped_calibration()).shifts)
        self.settings = memory_settings(keys.framework, [scenario.training.precision])

    def run(self, progress: Progress | None = None) -> Found:
        """Nothing found leaves `best` empty."""
        started = time.perf_counter()
        degrees = self._undominated(self.space.degrees())
        searched = timed = 0
        kept = NOTHING
        for start in range(0, count(degrees), DEGREES_A_BLOCK):
            block = where(degrees, np.arange(start, min(start + DEGREES_A_BLOCK, count(degrees))))
            decided, best = self._decide(block)
            searched, timed = searched + decided, timed + len(best.step_time_s)
            kept = _best(_joined([kept, _best(best, self.kept)]), self.kept)
            if progress:
                progress((start + count(block)) / count(degrees))
        return Found(kept, _front(kept), searched, timed, time.perf_counter() - started)

    def _undominated(self, degrees: Table) -> Table:
        """Without sequence parallelism only where the same degrees with it are not legal."""
        keys = np.stack([degrees[name] for name in ("tp", "pp", "cp")], axis=1)
        split = {tuple(key) for key in keys[degrees["sequence_parallel"] == 1].tolist()}
        lone = np.array([tuple(key) not in split for key in keys.tolist()], dtype=np.bool_)
        return where(degrees, lone | (degrees["sequence_parallel"] == 1))

    def _decide(self, degrees: Table) -> tuple[int, Ranked]:
        """How many plans the degrees stand for (by recomputation), and those that fit, timed."""
        codes = self._recompute_codes()
        cores = self.space.with_micro_batch(self.space.with_experts(self.space.with_pipeline(degrees)))
        open_rows = self._can_fit(cores, codes[-1])
        closed = int(np.sum(~open_rows))
        cores = where(cores, open_rows)
        numbered = {**cores, "core": np.arange(count(cores))}
        table = self.space.with_sharding(numbered)
        decided = (count(table) + closed) * len(codes)
        return decided, self._timed(cores, table, codes)

    def _recompute_codes(self) -> list[int]:
        allowed = self.constraints.allowed.get("recompute", RECOMPUTES)
        return sorted(encoded("recompute", name) for name in allowed)

    def _can_fit(self, cores: Table, code: int) -> Mask:
        """Whether the plan fits when everything is sharded over all data ranks and recomputed."""
        sharded = {**cores, "zero_stage": np.full(count(cores), 3), "dp_shard": cores["dp"] * cores["cp"]}
        x = self._inputs(sharded, code)
        state = memory_bytes(x, replace(self.settings, gathered_layers=np.zeros(()))).total
        return np.asarray(state <= self._limit_bytes(x))

    def _timed(self, cores: Table, table: Table, codes: list[int]) -> Ranked:
        """Each plan with the least recomputation that fits; those that never fit are dropped.

        What sharding does not change is computed once a core and shared by all its shardings."""
        left = table
        found: list[Ranked] = []
        plain = {"zero_stage": np.ones_like(cores["tp"]), "dp_shard": np.ones_like(cores["tp"])}
        for code in codes:
            if not count(left):
                break
            core_inputs = self._inputs({**cores, **plain}, code)
            activity = activity_bytes(core_inputs, self.settings)
            x = self._inputs(left, code)
            memory = with_state(x, self.settings, activity.take(left["core"])).total
            fits = np.asarray(memory <= self._limit_bytes(x))
            found.append(self._ranked(core_inputs, where(left, fits), memory[fits], code))
            left = where(left, ~fits)
        return self._near_today(_joined(found))

    def _near_today(self, ranked: Ranked) -> Ranked:
        """Those with few enough changes from today's plan."""
        today, most = self.scenario.plan, self.constraints.max_changes
        if most is None or today is None or not ranked.plans:
            return ranked
        return ranked.take(count_changes(today, ranked.plans) <= most)

    def _ranked(self, core_inputs: Inputs, table: Table, memory: Array, code: int) -> Ranked:
        core = step_core(core_inputs, self.coefficients).take(table["core"])
        times = with_data_parallelism(self._inputs(table, code), self.coefficients, core).total
        plans = {name: column for name, column in table.items() if name != "core"}
        return Ranked({**plans, "recompute": np.full(count(table), code)}, times, memory)

    def _limit_bytes(self, x: Inputs) -> Array:
        return x.memory_bytes * self.constraints.max_memory_fraction

    def _inputs(self, table: Table, code: int) -> Inputs:
        columns = to_columns({**table, "recompute": np.full(count(table), code)})
        return encode_plans(self.scenario, columns)[0]


def count_changes(today: Plan, plans: Table) -> NDArray[np.int64]:
    """In how many independent fields each plan differs; dp and schedule follow from the others."""
    followers = ("dp", "schedule", "dp_shard")
    names = [name for name in plans if name not in followers and getattr(today, name) is not None]
    changed = sum(
        (plans[name] != encoded(name, getattr(today, name)) for name in names),
        np.zeros(len(plans["tp"]), dtype=np.int64),
    )
    whole = plans["dp_shard"] == plans["dp"] * plans["cp"]
    same_shard = (plans["dp_shard"] == today.dp_shard) | (whole & (today.dp_shard == today.dp * today.cp))
    return np.asarray(changed + ~same_shard, dtype=np.int64)


def _nothing() -> PlanColumns:
    return columns_of([])


def _joined(parts: list[Ranked]) -> Ranked:
    filled = [part for part in parts if part.plans]
    if not filled:
        return NOTHING
    return Ranked(
        joined([part.plans for part in filled]),
        np.concatenate([part.step_time_s for part in filled]),
        np.concatenate([part.memory_bytes for part in filled]),
    )


def _best(ranked: Ranked, most: int) -> Ranked:
    """The fastest, and every plan of the Pareto front of time against memory."""
    if not ranked.plans:
        return ranked
    ordered = ranked.take(np.argsort(ranked.step_time_s, kind="stable"))
    keep = pareto_front(ordered.memory_bytes)
    keep[:most] = True
    return ordered.take(keep)


def _front(ranked: Ranked) -> Ranked:
    return ranked.take(pareto_front(ranked.memory_bytes)) if ranked.plans else ranked


def pareto_front(memory_of_faster_first: Array) -> Mask:
    """Which plans, sorted by time, need less memory than every faster one."""
    before = np.concatenate([[np.inf], memory_of_faster_first[:-1]])
    return np.asarray(memory_of_faster_first < np.minimum.accumulate(before))
