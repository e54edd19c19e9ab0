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

from tools.model.calibration import Calibration, shipped_calibration
from tools.model.predict import EVEN
from tools.physics.encode import encode_plans, scenario_device
from tools.physics.inputs import Array, Columns, Indices, Inputs
from tools.physics.memory import StageBytes, activity_bytes, state_bytes
from tools.physics.step import (
    Pace,
    Sharded,
    before_sharding_s,
    pace_of,
    sharded_parts,
    step_core,
    step_time_s,
)
from tools.scenario import RECOMPUTES, SEARCHED_FIELDS, Plan, PlanColumns, Scenario
from tools.scenario.columns import BoolArray, IntArray, encode_value
from tools.scenario.spec import FULL_SHARDING, MODEL_AXES
from tools.search.constraints import Constraints, Space
from tools.search.ranked import (
    MAX_EXPLORED,
    NOTHING,
    BestSoFar,
    Ranked,
    best_of,
    fastest_first,
    front_of,
    together,
)
from tools.search.space import PlanSpace

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
class Evaluated(Columns):
    """Cores with one recomputation: what sharding does not change, and bounds of what it could reach."""

    code: int
    pace: Pace
    activity: StageBytes
    min_s: Array
    min_bytes: Array


@dataclass(frozen=True)
class Shardings:
    """How the parameters of each place of a block may be sharded, in the order of places."""

    table: PlanColumns
    min_state: StageBytes
    """By place, with as little on a rank as can be."""
    state: StageBytes
    parts: Sharded
    counts: Indices
    """By place."""

    def pairs(self, places: Indices) -> tuple[Indices, Indices]:
        """Each core, given by its place, with each sharding of that place: rows of both tables."""
        counts = self.counts[places]
        core = np.repeat(np.arange(len(places)), counts)
        begins = np.cumsum(self.counts) - self.counts
        offset = np.arange(len(core)) - np.repeat(np.cumsum(counts) - counts, counts)
        return core, begins[places[core]] + offset


@dataclass(frozen=True)
class Candidates:
    """Plans but for recomputation: pairs of a core and a sharding."""

    cores: PlanColumns
    shardings: PlanColumns
    core: Indices
    sharding: Indices

    def written(self, numbers: PlanColumns) -> PlanColumns:
        """The plans with all their fields, of their numbers, which are quicker to sort and to copy."""
        rows = numbers["number"]
        cores, shardings = self.cores.take(self.core[rows]), self.shardings.take(self.sharding[rows])
        plans = PlanColumns(cores, **shardings, recompute=numbers["recompute"])
        del plans["place"]
        return plans


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
        self._workload, keys = encode_plans(scenario, PlanColumns.of([]))
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
        degrees = self._drop_dominated(self.space.degrees())
        # In the order of a guess, so that good plans are kept early and bounds close more branches.
        guessed = _simple_cores(degrees)
        min_s = self._min_s(self._pace(self._unsharded(guessed, self.codes[0])))
        too_large = self._min_bytes(guessed, self.codes[-1]) > self.limit_bytes
        degrees = degrees.take(np.lexsort((min_s, too_large)))
        found = BestSoFar(self.kept, self.limit_bytes)
        searched, start, size = 0, 0, 1
        while start < degrees.rows:
            block = degrees.take(np.arange(start, min(start + size, degrees.rows)))
            start += block.rows
            cores, shardings = self._cores(block)
            searched += int(np.sum(shardings.counts[cores["place"]])) * len(self.codes)
            self._time_plans(cores, shardings, found)
            # As many degrees as fill the cache, or MAX_BLOCK; more of them only if all their cores are few.
            per_degree = max(cores.rows / block.rows, 1.0)
            size = max(int(min(CORES_PER_BLOCK / per_degree, max(FEW_CORES / per_degree, MAX_BLOCK))), 1)
            if progress:
                progress(start / degrees.rows)
        every = best_of(self._as_measured(found.explored), MAX_EXPLORED)
        kept, front = self._as_measured(found.kept), front_of(self._as_measured(found.front))
        seconds = time.perf_counter() - started
        return SearchOutcome(kept, front, searched, found.timed, seconds, space, every)

    def least_bytes(self) -> float:
        """A bound of the memory per device that any plan needs, unsearched; infinite if none is legal."""
        degrees = self.space.degrees()
        if not self.codes or not degrees.rows:
            return np.inf
        return float(np.min(self._min_bytes(_simple_cores(degrees), self.codes[-1])))

    def _as_measured(self, ranked: Ranked) -> Ranked:
        """Timed as runs show beyond the constants, without what runs say will crash; the bounds know the
        constants only."""
        if not ranked.plans:
            return ranked
        x, keys = encode_plans(self.scenario, ranked.plans)
        ranked = replace(ranked, step_time_s=ranked.step_time_s * self.calibration.factor(x, keys))
        if self.calibration.seen:
            likely = self.calibration.fit_probability(x, keys, ranked.memory_bytes)
            ranked = ranked.take(likely >= EVEN)
        return fastest_first(ranked)

    def _drop_dominated(self, degrees: PlanColumns) -> PlanColumns:
        """Without sequence parallelism only if the same degrees with it are not legal."""
        scatters_cheaply = self._device.collectives.reduce_scatter_passes <= 1.0
        if self.constraints.max_changes is not None or not scatters_cheaply:
            return degrees  # switching it on may be one change too many, or cost more than it saves
        keys = np.stack([degrees[name] for name in MODEL_AXES], axis=1)
        split = {tuple(key) for key in keys[degrees["sequence_parallel"] == 1].tolist()}
        lone = np.array([tuple(key) not in split for key in keys.tolist()], dtype=np.bool_)
        return degrees.take(lone | (degrees["sequence_parallel"] == 1))

    def _cores(self, degrees: PlanColumns) -> tuple[PlanColumns, Shardings]:
        """Plans but for sharding and recomputation, and how each place of them may be sharded.

        Shardings are listed before pipelines and micro-batches multiply them: no rule ties them together."""
        placed = self.space.with_experts(degrees)
        placed["place"] = np.arange(placed.rows)
        table = self.space.with_sharding(placed)
        table = table.take(np.argsort(table["place"], kind="stable"))
        x = self._inputs(_single(table), self.codes[0])
        shardings = Shardings(
            PlanColumns({name: table[name] for name in ("zero_stage", "dp_shard")}),
            self._min_state(placed),
            state_bytes(x, self.settings).total,
            sharded_parts(x, self.coefficients),
            np.bincount(table["place"], minlength=placed.rows),
        )
        return self.space.with_micro_batch(self.space.with_pipeline(placed)), shardings

    def _min_state(self, placed: PlanColumns) -> StageBytes:
        """When all is sharded over all data ranks and nothing is gathered."""
        x = self._inputs(_sharded(_single(placed), FULL_SHARDING, placed.data_ranks), 0)
        return replace(state_bytes(x, self.settings), gathered=np.zeros(())).total

    def _activity(self, x: Inputs) -> StageBytes:
        return activity_bytes(x, self.settings).total

    def _min_bytes(self, cores: PlanColumns, code: int) -> Array:
        return (self._min_state(cores) + self._activity(self._unsharded(cores, code))).peak * ROUNDING

    def _pace(self, x: Inputs) -> Pace:
        return pace_of(x, step_core(x, self.coefficients))

    def _min_s(self, pace: Pace) -> Array:
        return before_sharding_s(self._workload, self.coefficients, pace) * ROUNDING

    def _evaluate(self, x: Inputs, code: int, activity: StageBytes, min_bytes: Array) -> Evaluated:
        pace = self._pace(x)
        return Evaluated(code, pace, activity, self._min_s(pace), min_bytes)

    def _time_plans(self, cores: PlanColumns, shardings: Shardings, found: BestSoFar) -> None:
        """Adds the fitting plans to what was found, each with the recomputation that suits it."""
        cores, evaluated = self._open(cores, shardings, found)
        candidates = Candidates(cores, shardings.table, *shardings.pairs(cores["place"]))
        fastest_s = np.full(len(candidates.core), np.inf)
        limit, today = self.constraints.max_changes, self.scenario.plan
        ranked, every = [], []
        for cores_of_kind in evaluated:
            open_cores = found.is_open(cores_of_kind.min_s, cores_of_kind.min_bytes)
            rows, plans = self._fitting(candidates, shardings, cores_of_kind, open_cores)
            found.timed += len(rows)
            better = plans.step_time_s < fastest_s[rows]
            fastest_s[rows] = np.minimum(fastest_s[rows], plans.step_time_s)
            wanted = np.flatnonzero(found.wants(plans.step_time_s, plans.memory_bytes))
            plans = plans.take(wanted)
            if today is not None and limit is not None:
                changes = count_changes(today, candidates.written(plans.plans))
                plans, wanted = plans.take(changes <= limit), wanted[changes <= limit]
            every.append(plans)
            ranked.append(plans.take(better[wanted]) if limit is None else plans)
        best, shown = best_of(together(ranked), self.kept), best_of(together(every), MAX_EXPLORED)
        if best.plans:
            found.add(*(replace(part, plans=candidates.written(part.plans)) for part in (best, shown)))

    def _open(
        self, cores: PlanColumns, shardings: Shardings, found: BestSoFar
    ) -> tuple[PlanColumns, list[Evaluated]]:
        """Cores that are promising with some recomputation, with each of them.

        Before data parallelism recomputation only adds time. It may need more memory than none: a layer is
        worked on again."""
        inputs = [self._unsharded(cores, code) for code in self.codes]
        activities = [self._activity(x) for x in inputs]
        least = shardings.min_state.take(cores["place"])
        needed = [(least + activity).peak * ROUNDING for activity in activities]
        first = self._evaluate(inputs[0], self.codes[0], activities[0], needed[0])
        rows = np.flatnonzero(found.is_open(first.min_s, np.minimum.reduce(needed)))
        evaluated = [first.take(rows)]
        for x, code, activity, min_bytes in zip(
            inputs[1:], self.codes[1:], activities[1:], needed[1:], strict=True
        ):
            evaluated.append(self._evaluate(x.take(rows), code, activity.take(rows), min_bytes[rows]))
        return cores.take(rows), evaluated

    def _unsharded(self, cores: PlanColumns, code: int) -> Inputs:
        return self._inputs(_sharded(cores, 1, np.ones_like(cores["dp"])), code)

    def _fitting(
        self, candidates: Candidates, shardings: Shardings, evaluated: Evaluated, open_cores: BoolArray
    ) -> tuple[Indices, Ranked]:
        """Candidates that fit with this recomputation, timed; plans by their numbers."""
        rows = np.flatnonzero(open_cores[candidates.core])
        core, sharding = candidates.core[rows], candidates.sharding[rows]
        memory = (shardings.state.take(sharding) + evaluated.activity.take(core)).peak
        fits = np.flatnonzero(memory <= self.limit_bytes)
        numbers = PlanColumns(number=rows[fits], recompute=np.full(len(fits), evaluated.code))
        if self.constraints.excluded:
            plans, left = candidates.written(numbers), np.ones(len(fits), dtype=np.bool_)
            for values in self.constraints.excluded:
                shared = [name for name in values if name in plans]
                matches = [plans[name] == encode_value(name, values[name]) for name in shared]
                left &= ~np.logical_and.reduce(matches)
            fits, numbers = fits[left], numbers.take(left)
        pace, parts = evaluated.pace.take(core[fits]), shardings.parts.take(sharding[fits])
        times = step_time_s(self._workload, self.coefficients, pace, parts)
        return rows[fits], Ranked(numbers, times, memory[fits])

    def _inputs(self, table: PlanColumns, code: int) -> Inputs:
        return encode_plans(self.scenario, table.with_columns(recompute=np.full(table.rows, code)))[0]


def _single(table: PlanColumns) -> PlanColumns:
    """With one micro-batch in one chunk, on which nothing depends that is computed for a place."""
    ones = np.ones_like(table["tp"])
    return table.with_columns(vpp=ones, micro_batch_size=ones, schedule=np.zeros_like(ones))


def _sharded(table: PlanColumns, stage: int, ranks: IntArray) -> PlanColumns:
    """Every row sharded at this ZeRO stage over as many ranks."""
    return table.with_columns(zero_stage=np.full(table.rows, stage), dp_shard=ranks)


def _simple_cores(degrees: PlanColumns) -> PlanColumns:
    """The degrees without virtual stages, experts' own degrees or larger micro-batches."""
    ones = np.ones_like(degrees["tp"])
    return _single(degrees.with_columns(ep=ones, etp=ones))


def count_changes(today: Plan, plans: PlanColumns) -> IntArray:
    """In how many independent fields each plan differs; dp and schedule follow from the others."""
    followers = ("dp", "schedule", "dp_shard")
    searched = [name for name in SEARCHED_FIELDS if name in plans and name not in followers]
    names = [name for name in searched if getattr(today, name) is not None]
    changed = sum(
        (plans[name] != encode_value(name, getattr(today, name)) for name in names),
        np.zeros(plans.rows, dtype=np.int64),
    )
    whole = plans["dp_shard"] == plans.data_ranks
    same_shard = (plans["dp_shard"] == today.dp_shard) | (whole & (today.dp_shard == today.data_ranks))
    return np.asarray(changed + ~same_shard, dtype=np.int64)
