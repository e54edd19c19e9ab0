"""Exhaustive search: every legal plan is decided, and those that may be among the best are timed.

Three bounds close branches early: ZeRO-3 over all data ranks needs the least memory; no sharding is
faster than the step without data-parallel traffic and optimizer; sequence parallelism costs neither time
nor memory (if a reduce-scatter costs at most half an all-reduce). Keeps the fastest plans and the Pareto
front of time against memory.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.encode import encode_plans, scenario_device
from tools.cost.inputs import Array, Inputs
from tools.cost.memory import StageBytes, activity_bytes, state_bytes
from tools.cost.step import Pace, Sharded, before_sharding_s, pace_of, sharded_parts, step_core, step_time_s
from tools.scenario import RECOMPUTES, Plan, Scenario, columns_of
from tools.scenario.columns import encode_value
from tools.scenario.spec import FULL_SHARDING
from tools.search.constraints import Constraints, Space
from tools.search.ranked import (
    MAX_EXPLORED,
    NOTHING,
    Found,
    Ranked,
    best_of,
    fastest_first,
    front_of,
    together,
)
from tools.search.space import Mask, PlanSpace, Rows, Table, count, to_columns, where, with_stage

KEPT = 4096
"""Plans kept of each block and in the end: enough to choose different proposals from."""
KEPT_OF_PRACTICE = 20_000
"""All of them, but for mixtures of experts on thousands of devices."""
CORES_PER_BLOCK = 32_768
"""About as many are evaluated at once as stay in the processor's cache with all that is computed of them."""
MAX_BLOCK = 16
"""Degrees at once: what the first blocks find closes branches of the next."""
FEW_CORES = 2048
"""Cores that cost hardly more than one, whatever the number of degrees they come from."""
ROUNDING = 1.0 - 1e-9
"""A bound computed in another order than what it bounds may be off by rounding."""
Progress = Callable[[float], None]


@dataclass(frozen=True)
class SearchOutcome:
    """The best plans and the front, fastest first; how many plans were decided, and how many timed.

    `space` is what was searched in the end: all legal plans if none that people usually run fits."""

    best: Ranked
    front: Ranked
    searched: int
    timed: int
    seconds: float
    space: Space = "all"
    every: Ranked = NOTHING
    """All plans that were timed and fit, fastest first; of very many the fastest and the front."""


@dataclass(frozen=True)
class Evaluated:
    """Cores with one recomputation: what sharding does not change, and bounds of what it could reach."""

    code: int
    pace: Pace
    activity: StageBytes
    min_s: Array
    min_bytes: Array

    def take(self, rows: Rows) -> "Evaluated":
        activity, pace = self.activity.take(rows), self.pace.take(rows)
        return Evaluated(self.code, pace, activity, self.min_s[rows], self.min_bytes[rows])


@dataclass(frozen=True)
class Shardings:
    """How the parameters of each place of a block may be sharded, in the order of places."""

    table: Table
    min_state: StageBytes
    """By place, with as little on a rank as can be."""
    state: StageBytes
    parts: Sharded
    counts: Rows
    """By place."""

    def pairs(self, places: Rows) -> tuple[Rows, Rows]:
        """Each core, given by its place, with each sharding of that place: rows of both tables."""
        counts = self.counts[places]
        core = np.repeat(np.arange(len(places)), counts)
        begins = np.cumsum(self.counts) - self.counts
        offset = np.arange(len(core)) - np.repeat(np.cumsum(counts) - counts, counts)
        return core, begins[places[core]] + offset


@dataclass(frozen=True)
class Candidates:
    """Plans but for recomputation: pairs of a core and a sharding."""

    cores: Table
    shardings: Table
    core: Rows
    sharding: Rows

    def numbers(self, rows: Rows, code: int) -> Table:
        """Plans by their numbers, which are quick to sort and to copy."""
        return {"number": rows, "recompute": np.full(len(rows), code)}

    def written(self, numbers: Table) -> Table:
        """The plans with all their fields."""
        rows = numbers["number"]
        cores, shardings = where(self.cores, self.core[rows]), where(self.shardings, self.sharding[rows])
        plans = {**cores, **shardings, "recompute": numbers["recompute"]}
        return {name: column for name, column in plans.items() if name != "place"}


class Search:
    """One scenario's search."""

    def __init__(
        self,
        scenario: Scenario,
        constraints: Constraints,
        calibration: Calibration | None = None,
        kept: int | None = None,
    ) -> None:
        self.scenario = scenario
        self.constraints = constraints
        self.kept = KEPT if kept is None and constraints.space == "all" else kept or KEPT_OF_PRACTICE
        self.space = PlanSpace(scenario, constraints)
        self._workload, keys = encode_plans(scenario, columns_of([]))
        self.calibration = calibration or shipped_calibration()
        self.coefficients = self.calibration.coefficients(keys)
        self.settings = self.calibration.memory_settings(keys, [scenario.training.precision])
        self._device = scenario_device(scenario.cluster)
        self.limit_bytes = float(self._device.memory_bytes) * constraints.max_memory_fraction
        self.codes = [
            encode_value("recompute", name) for name in RECOMPUTES if constraints.permits("recompute", name)
        ]

    def run(self, progress: Progress | None = None) -> SearchOutcome:
        """Nothing found leaves `best` empty."""
        found = self._run(progress)
        if len(found.best.step_time_s) or self.constraints.space == "all":
            return found
        constraints = replace(self.constraints, space="all")
        everything = Search(self.scenario, constraints, self.calibration, self.kept)
        if everything.least_bytes() > everything.limit_bytes:
            return found  # no plan can fit: a bound tells it without a search
        return everything._run(progress)

    def _run(self, progress: Progress | None) -> SearchOutcome:
        started, space = time.perf_counter(), self.constraints.space
        if not self.codes:  # the user and the framework's configuration leave no recomputation in common
            return SearchOutcome(NOTHING, NOTHING, 0, 0, time.perf_counter() - started, space)
        degrees = self._likely_first(self._drop_dominated(self.space.degrees()))
        found = Found(self.kept, self.limit_bytes)
        searched, start, size = 0, 0, 1
        while start < count(degrees):
            block = where(degrees, np.arange(start, min(start + size, count(degrees))))
            start += count(block)
            cores, shardings = self._cores(block)
            searched += int(np.sum(shardings.counts[cores["place"]])) * len(self.codes)
            self._time_plans(cores, shardings, found)
            size = _degrees_per_block(count(cores) / count(block))
            if progress:
                progress(start / count(degrees))
        every = best_of(self._as_measured(found.explored), MAX_EXPLORED)
        kept, front = self._as_measured(found.kept), front_of(self._as_measured(found.front))
        seconds = time.perf_counter() - started
        return SearchOutcome(kept, front, searched, found.timed, seconds, space, every)

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
        min_s = self._min_s(self._pace(self._unsharded(cores, self.codes[0])))
        return where(degrees, np.lexsort((min_s, min_bytes > self.limit_bytes)))

    def _cores(self, degrees: Table) -> tuple[Table, Shardings]:
        """Plans but for sharding and recomputation, and how each place of them may be sharded.

        Shardings are listed before pipelines and micro-batches multiply them: no rule ties them together."""
        placed = self.space.with_experts(degrees)
        placed["place"] = np.arange(count(placed))
        table = self.space.with_sharding(placed)
        table = where(table, np.argsort(table["place"], kind="stable"))
        x = self._inputs(_single(table), self.codes[0])
        shardings = Shardings(
            {name: table[name] for name in ("zero_stage", "dp_shard")},
            self._min_state(placed),
            state_bytes(x, self.settings).total,
            sharded_parts(x, self.coefficients),
            np.bincount(table["place"], minlength=count(placed)),
        )
        return self.space.with_micro_batch(self.space.with_pipeline(placed)), shardings

    def _min_state(self, placed: Table) -> StageBytes:
        """When all is sharded over all data ranks and nothing is gathered."""
        x = self._inputs(with_stage(_single(placed), FULL_SHARDING, placed["dp"] * placed["cp"]), 0)
        return replace(state_bytes(x, self.settings), gathered=np.zeros(())).total

    def _activity(self, x: Inputs) -> StageBytes:
        return activity_bytes(x, self.settings).total

    def _min_bytes(self, cores: Table, code: int) -> Array:
        return (self._min_state(cores) + self._activity(self._unsharded(cores, code))).peak * ROUNDING

    def _pace(self, x: Inputs) -> Pace:
        return pace_of(x, step_core(x, self.coefficients))

    def _min_s(self, pace: Pace) -> Array:
        return before_sharding_s(self._workload, self.coefficients, pace) * ROUNDING

    def _evaluate(self, x: Inputs, code: int, activity: StageBytes, min_bytes: Array) -> Evaluated:
        pace = self._pace(x)
        return Evaluated(code, pace, activity, self._min_s(pace), min_bytes)

    def _time_plans(self, cores: Table, shardings: Shardings, found: Found) -> None:
        """Adds the fitting plans to what was found, each with the recomputation that suits it."""
        cores, evaluated = self._open(cores, shardings, found)
        candidates = Candidates(cores, shardings.table, *shardings.pairs(cores["place"]))
        fastest_s = np.full(len(candidates.core), np.inf)
        ranked, every = [], []
        for cores_of_kind in evaluated:
            open_cores = found.is_open(cores_of_kind.min_s, cores_of_kind.min_bytes)
            rows, plans = self._fitting(candidates, shardings, cores_of_kind, open_cores)
            found.timed += len(rows)
            better = plans.step_time_s < fastest_s[rows]
            fastest_s[rows] = np.minimum(fastest_s[rows], plans.step_time_s)
            wanted = np.flatnonzero(found.wants(plans.step_time_s, plans.memory_bytes))
            plans = self._near_today(plans.take(wanted), candidates)
            every.append(plans)
            ranked.append(plans.take(better[wanted]) if self.constraints.max_changes is None else plans)
        best, shown = best_of(together(ranked), self.kept), best_of(together(every), MAX_EXPLORED)
        if best.plans:
            found.add(*(replace(part, plans=candidates.written(part.plans)) for part in (best, shown)))

    def _open(self, cores: Table, shardings: Shardings, found: Found) -> tuple[Table, list[Evaluated]]:
        """Cores that are promising with some recomputation, with each of them.

        Before data parallelism recomputation only adds time. It may need more memory than none: a layer is
        worked on again."""
        inputs = [self._unsharded(cores, code) for code in self.codes]
        activities = [self._activity(x) for x in inputs]
        least = shardings.min_state.take(cores["place"])
        needed = [(least + activity).peak * ROUNDING for activity in activities]
        first = self._evaluate(inputs[0], self.codes[0], activities[0], needed[0])
        rows = np.flatnonzero(found.is_open(first.min_s, np.minimum.reduce(needed)))
        others = [
            self._evaluate(x.take(rows), code, activity.take(rows), min_bytes[rows])
            for x, code, activity, min_bytes in list(
                zip(inputs, self.codes, activities, needed, strict=True)
            )[1:]
        ]
        return where(cores, rows), [first.take(rows), *others]

    def _unsharded(self, cores: Table, code: int) -> Inputs:
        return self._inputs(with_stage(cores, 1, np.ones_like(cores["dp"])), code)

    def _fitting(
        self, candidates: Candidates, shardings: Shardings, evaluated: Evaluated, open_cores: Mask
    ) -> tuple[Rows, Ranked]:
        """Candidates that fit with this recomputation, timed; plans by their numbers."""
        rows = np.flatnonzero(open_cores[candidates.core])
        core, sharding = candidates.core[rows], candidates.sharding[rows]
        memory = (shardings.state.take(sharding) + evaluated.activity.take(core)).peak
        fits = np.flatnonzero(memory <= self.limit_bytes)
        if self.constraints.excluded:
            plans = candidates.written(candidates.numbers(rows[fits], evaluated.code))
            fits = fits[~self._excluded_mask(plans, evaluated.code)]
        pace, parts = evaluated.pace.take(core[fits]), shardings.parts.take(sharding[fits])
        times = step_time_s(self._workload, self.coefficients, pace, parts)
        return rows[fits], Ranked(candidates.numbers(rows[fits], evaluated.code), times, memory[fits])

    def _excluded_mask(self, table: Table, code: int) -> Mask:
        out = np.zeros(count(table), dtype=np.bool_)
        for values in self.constraints.excluded:
            matches = [table[name] == encode_value(name, values[name]) for name in values if name in table]
            recompute = values.get("recompute")
            is_meant = recompute is None or encode_value("recompute", recompute) == code
            out |= np.logical_and.reduce(matches) & is_meant
        return out

    def _near_today(self, ranked: Ranked, candidates: Candidates) -> Ranked:
        """Those with few enough changes from today's plan."""
        today, limit = self.scenario.plan, self.constraints.max_changes
        if limit is None or today is None:
            return ranked
        return ranked.take(count_changes(today, candidates.written(ranked.plans)) <= limit)

    def _inputs(self, table: Table, code: int) -> Inputs:
        columns = to_columns({**table, "recompute": np.full(count(table), code)})
        return encode_plans(self.scenario, columns)[0]


def _degrees_per_block(cores_per_degree: float) -> int:
    """As many as fill the cache, or MAX_BLOCK; more of them only if all their cores are few."""
    most, few = (cores / max(cores_per_degree, 1.0) for cores in (CORES_PER_BLOCK, FEW_CORES))
    return max(int(min(most, max(few, MAX_BLOCK))), 1)


def _single(table: Table) -> Table:
    """With one micro-batch in one chunk, on which nothing depends that is computed for a place."""
    ones = np.ones_like(table["tp"])
    return {**table, "vpp": ones, "micro_batch_size": ones, "schedule": np.zeros_like(ones)}


def _simple_cores(degrees: Table) -> Table:
    """The degrees without virtual stages, experts' own degrees or larger micro-batches."""
    ones = np.ones_like(degrees["tp"])
    return _single({**degrees, "ep": ones, "etp": ones})


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
