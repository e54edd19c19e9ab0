"""Exhaustive search: every legal plan is decided, and those that may be among the best are timed.

Three bounds close branches early: ZeRO-3 over all data ranks needs the least memory; no sharding is
faster than the step without data-parallel traffic and optimizer; sequence parallelism costs neither time
nor memory (if a reduce-scatter costs at most half an all-reduce). Keeps the fastest plans and the Pareto
front of time against memory.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.constants import resolve
from tools.cost.encode import encode_plans, scenario_device
from tools.cost.inputs import Array, Inputs
from tools.cost.memory import Activity, activity_bytes, memory_bytes, with_state
from tools.cost.sizes import vocabulary_parameters
from tools.cost.step import BeforeDataParallel, step_core, with_data_parallelism
from tools.scenario import RECOMPUTES, Plan, Scenario, columns_of
from tools.scenario.columns import encode_value
from tools.scenario.spec import FULL_SHARDING
from tools.search.constraints import Constraints
from tools.search.space import Mask, PlanSpace, Rows, Table, count, joined, to_columns, where, with_stage


@dataclass(frozen=True)
class Ranked:
    """Plans that fit, with their time and memory."""

    plans: Table
    step_time_s: Array
    memory_bytes: Array

    def take(self, rows: Mask | Rows) -> "Ranked":
        return Ranked(where(self.plans, rows), self.step_time_s[rows], self.memory_bytes[rows])


NOTHING = Ranked({}, np.zeros(0), np.zeros(0))


def together(parts: Sequence[Ranked]) -> Ranked:
    filled = [part for part in parts if part.plans]
    if not filled:
        return NOTHING
    return Ranked(
        joined([part.plans for part in filled]),
        np.concatenate([part.step_time_s for part in filled]),
        np.concatenate([part.memory_bytes for part in filled]),
    )


def fastest_first(ranked: Ranked) -> Ranked:
    """Of plans as fast as each other the smallest first."""
    return ranked.take(np.lexsort((ranked.memory_bytes, ranked.step_time_s))) if ranked.plans else ranked


def best_of(ranked: Ranked, limit: int) -> Ranked:
    """The fastest, and every plan on the front of time against memory; fastest first."""
    ordered = fastest_first(ranked)
    keep = on_front(ordered.memory_bytes)
    keep[:limit] = True
    return ordered.take(keep) if ordered.plans else ordered


def front_of(ranked: Ranked) -> Ranked:
    """Plans that need less memory than every faster one; fastest first."""
    ordered = fastest_first(ranked)
    return ordered.take(on_front(ordered.memory_bytes)) if ordered.plans else ordered


def on_front(memory_of_faster_first: Array) -> Mask:
    """Which plans, sorted by time, need less memory than every faster one."""
    before = np.concatenate([[np.inf], memory_of_faster_first])[: len(memory_of_faster_first)]
    return np.asarray(memory_of_faster_first < np.minimum.accumulate(before))


def front_bytes(front: Ranked, step_time_s: Array) -> Array:
    """The least memory that plans of the front need that are as fast; infinite if none is."""
    behind = np.searchsorted(front.step_time_s, step_time_s, side="right")
    return np.concatenate([[np.inf], front.memory_bytes])[behind]


KEPT = 4096
"""Plans kept of each block and in the end: enough to choose different proposals from."""
MAX_EXPLORED = 200_000
"""Timed plans that are handed on for people to look at."""
DEGREES_PER_BLOCK = 2
ROUNDING = 1.0 - 1e-9
"""A bound computed in another order than what it bounds may be off by rounding."""
Progress = Callable[[float], None]


@dataclass(frozen=True)
class SearchOutcome:
    """The best plans and the front, fastest first; how many legal plans were decided, and how many timed."""

    best: Ranked
    front: Ranked
    searched: int
    timed: int
    seconds: float
    every: Ranked = NOTHING
    """All plans that were timed and fit, fastest first; of very many the fastest and the front."""


@dataclass(frozen=True)
class Evaluated:
    """Cores with one recomputation: what sharding does not change, and bounds of what it could reach."""

    code: int
    core: BeforeDataParallel
    activity: Activity
    min_s: Array
    min_bytes: Array

    def take(self, rows: Rows) -> "Evaluated":
        activity, core = self.activity.take(rows), self.core.take(rows)
        return Evaluated(self.code, core, activity, self.min_s[rows], self.min_bytes[rows])


def thinned(parts: list[Ranked]) -> list[Ranked]:
    """The same plans, sorted and cut only once they are twice as many as are kept: sorting takes time."""
    many = sum(len(part.step_time_s) for part in parts) > 2 * MAX_EXPLORED
    return [best_of(together(parts), MAX_EXPLORED)] if many else parts


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
        _, keys = encode_plans(scenario, columns_of([]))
        self.calibration = calibration or shipped_calibration()
        self.coefficients = resolve(keys, self.calibration.shifts)
        self.settings = self.calibration.memory_settings(keys, [scenario.training.precision])
        self._device = scenario_device(scenario.cluster)
        self.limit_bytes = float(self._device.memory_bytes) * constraints.max_memory_fraction
        self.codes = [
            encode_value("recompute", name) for name in RECOMPUTES if constraints.permits("recompute", name)
        ]

    def run(self, progress: Progress | None = None) -> SearchOutcome:
        """Nothing found leaves `best` empty."""
        started = time.perf_counter()
        if not self.codes:  # the user and the framework's configuration leave no recomputation in common
            return SearchOutcome(NOTHING, NOTHING, 0, 0, time.perf_counter() - started)
        degrees = self._likely_first(self._drop_dominated(self.space.degrees()))
        searched = timed = 0
        kept = front = NOTHING
        explored: list[Ranked] = []
        for start in range(0, count(degrees), DEGREES_PER_BLOCK):
            block = where(degrees, np.arange(start, min(start + DEGREES_PER_BLOCK, count(degrees))))
            cores, decided = self._cores(block)
            ranked, every = self._time_plans(cores, partial(self._promising, kept, front))
            searched, timed = searched + decided, timed + len(every.step_time_s)
            kept = best_of(together([kept, ranked]), self.kept)
            front = front_of(together([front, every]))
            explored = thinned([*explored, every])
            if progress:
                progress((start + count(block)) / count(degrees))
        every = best_of(self._as_measured(together(explored)), MAX_EXPLORED)
        kept, front = self._as_measured(kept), front_of(self._as_measured(front))
        return SearchOutcome(kept, front, searched, timed, time.perf_counter() - started, every)

    def least_bytes(self) -> float:
        """A bound of the memory per device that any plan needs, unsearched; infinite if none is legal."""
        degrees = self.space.degrees()
        if not self.codes or not count(degrees):
            return np.inf
        return float(np.min(self._min_bytes(_simple_cores(degrees), self.codes[-1])))

    def _as_measured(self, ranked: Ranked) -> Ranked:
        """Timed as runs of the cluster show beyond its constants; the bounds know the constants only."""
        if self.calibration.cluster is None or not ranked.plans:
            return ranked
        x, keys = encode_plans(self.scenario, to_columns(ranked.plans))
        times = ranked.step_time_s * self.calibration.factor(x, keys)
        return fastest_first(replace(ranked, step_time_s=times))

    def _drop_dominated(self, degrees: Table) -> Table:
        """Without sequence parallelism only if the same degrees with it are not legal."""
        scatters_cheaply = self._device.collectives.reduce_scatter_passes <= 1.0
        if self.constraints.max_changes is not None or not scatters_cheaply:
            return degrees  # switching it on may be one change too many, or cost more than it saves
        keys = np.stack([degrees[name] for name in ("tp", "pp", "cp")], axis=1)
        split = {tuple(key) for key in keys[degrees["sequence_parallel"] == 1].tolist()}
        lone = np.array([tuple(key) not in split for key in keys.tolist()], dtype=np.bool_)
        return where(degrees, lone | (degrees["sequence_parallel"] == 1))

    def _likely_first(self, degrees: Table) -> Table:
        """In the order of a guess, so that good plans are kept early and bounds close more branches."""
        cores = _simple_cores(degrees)
        min_bytes = self._min_bytes(cores, self.codes[-1])
        min_s = self._evaluate(cores, self.codes[0], min_bytes).min_s
        return where(degrees, np.lexsort((min_s, min_bytes > self.limit_bytes)))

    def _cores(self, degrees: Table) -> tuple[Table, int]:
        """Plans but for sharding and recomputation, and how many plans they stand for with both.

        Shardings are counted before pipelines and micro-batches multiply them: no rule ties them together."""
        placed = self.space.with_experts(degrees)
        placed["place"] = np.arange(count(placed))
        shardings = np.bincount(self.space.with_sharding(placed)["place"], minlength=count(placed))
        cores = self.space.with_micro_batch(self.space.with_pipeline(placed))
        return cores, int(np.sum(shardings[cores.pop("place")])) * len(self.codes)

    def _promising(self, kept: Ranked, front: Ranked, min_s: Array, min_bytes: Array) -> Mask:
        """Which bounds leave room to fit, and to come among the plans kept or onto the front."""
        last_s = kept.step_time_s[self.kept - 1] if len(kept.step_time_s) >= self.kept else np.inf
        gains = (min_s <= last_s) | (min_bytes < front_bytes(front, min_s))
        return np.asarray(gains & (min_bytes <= self.limit_bytes))

    def _min_bytes(self, cores: Table, code: int) -> Array:
        """Memory when all is sharded over all data ranks and nothing is gathered."""
        x = self._inputs(with_stage(cores, FULL_SHARDING, cores["dp"] * cores["cp"]), code)
        ungathered = replace(self.settings, gathered_layers=np.zeros(()))
        matrix = vocabulary_parameters(x) * x.value_bytes * self.settings.fragmentation_ratio
        return (memory_bytes(x, ungathered).total - matrix) * ROUNDING

    def _evaluate(self, cores: Table, code: int, min_bytes: Array) -> Evaluated:
        x = self._inputs(with_stage(cores, 1, np.ones_like(cores["dp"])), code)
        core = step_core(x, self.coefficients)
        unmoved = replace(core, dense=np.zeros(count(cores)), expert=np.zeros(count(cores)))
        min_s = with_data_parallelism(x, self.coefficients, unmoved).total * ROUNDING
        return Evaluated(code, core, activity_bytes(x, self.settings), min_s, min_bytes)

    def _time_plans(self, cores: Table, promising: Callable[[Array, Array], Mask]) -> tuple[Ranked, Ranked]:
        """The fitting plans to rank, each with the recomputation that suits it, and with every one."""
        cores, evaluated = self._open(cores, promising)
        table = self.space.with_sharding({**cores, "core": np.arange(count(cores))})
        fastest_s = np.full(count(table), np.inf)
        ranked, every = [], []
        for cores_of_kind in evaluated:
            bounds = promising(cores_of_kind.min_s, cores_of_kind.min_bytes)
            rows, plans = self._fitting(table, cores_of_kind, bounds)
            better = plans.step_time_s < fastest_s[rows]
            fastest_s[rows] = np.minimum(fastest_s[rows], plans.step_time_s)
            every.append(self._near_today(plans))
            ranked.append(plans.take(better))
        everything = together(every)
        return (together(ranked) if self.constraints.max_changes is None else everything), everything

    def _open(self, cores: Table, promising: Callable[[Array, Array], Mask]) -> tuple[Table, list[Evaluated]]:
        """Cores that are promising with some recomputation, with each of them.

        Before data parallelism recomputation only adds time. It may need more memory than none: a layer is
        worked on again."""
        needed = [self._min_bytes(cores, code) for code in self.codes]
        first = self._evaluate(cores, self.codes[0], needed[0])
        rows = np.flatnonzero(promising(first.min_s, np.minimum.reduce(needed)))
        cores = where(cores, rows)
        others = zip(self.codes[1:], needed[1:], strict=True)
        return cores, [first.take(rows), *(self._evaluate(cores, c, b[rows]) for c, b in others)]

    def _fitting(self, table: Table, evaluated: Evaluated, open_cores: Mask) -> tuple[Rows, Ranked]:
        """Rows of the table that fit with this recomputation, timed."""
        open_rows = np.flatnonzero(open_cores[table["core"]])
        opened = where(table, open_rows)
        x = self._inputs(opened, evaluated.code)
        memory = with_state(x, self.settings, evaluated.activity.take(opened["core"])).total
        fits = np.flatnonzero((memory <= self.limit_bytes) & ~self._excluded_mask(opened, evaluated.code))
        fitting = where(opened, fits)
        core = evaluated.core.take(fitting.pop("core"))
        times = with_data_parallelism(x.take(fits), self.coefficients, core).total
        plans = {**fitting, "recompute": np.full(len(fits), evaluated.code)}
        return open_rows[fits], Ranked(plans, times, memory[fits])

    def _excluded_mask(self, table: Table, code: int) -> Mask:
        out = np.zeros(count(table), dtype=np.bool_)
        for values in self.constraints.excluded:
            matches = [table[name] == encode_value(name, values[name]) for name in values if name in table]
            recompute = values.get("recompute")
            is_meant = recompute is None or encode_value("recompute", recompute) == code
            out |= np.logical_and.reduce(matches) & is_meant
        return out

    def _near_today(self, ranked: Ranked) -> Ranked:
        """Those with few enough changes from today's plan."""
        today, limit = self.scenario.plan, self.constraints.max_changes
        if limit is None or today is None:
            return ranked
        return ranked.take(count_changes(today, ranked.plans) <= limit)

    def _inputs(self, table: Table, code: int) -> Inputs:
        columns = to_columns({**table, "recompute": np.full(count(table), code)})
        return encode_plans(self.scenario, columns)[0]


def _simple_cores(degrees: Table) -> Table:
    """The degrees without virtual stages, experts' own degrees or larger micro-batches."""
    ones = {name: np.ones_like(degrees["tp"]) for name in ("vpp", "ep", "etp", "micro_batch_size")}
    return {**degrees, **ones, "schedule": np.zeros_like(degrees["tp"])}


def count_changes(today: Plan, plans: Table) -> NDArray[np.int64]:
    """In how many independent fields each plan differs; dp and schedule follow from the others."""
    followers = ("dp", "schedule", "dp_shard")
    names = [name for name in plans if name not in followers and getattr(today, name) is not None]
    changed = sum(
        (plans[name] != encode_value(name, getattr(today, name)) for name in names),
        np.zeros(len(plans["tp"]), dtype=np.int64),
    )
    whole = plans["dp_shard"] == plans["dp"] * plans["cp"]
    same_shard = (plans["dp_shard"] == today.dp_shard) | (whole & (today.dp_shard == today.dp * today.cp))
    return np.asarray(changed + ~same_shard, dtype=np.int64)
