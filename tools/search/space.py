"""Every plan that the device count, the model and the framework allow, as columns of integers.

The table grows field by field; after each field every applicable rule of `tools.scenario` prunes it.
"""

from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from tools.scenario import (
    SCHEDULES,
    SEARCHED_FIELDS,
    Facts,
    Plan,
    PlanColumns,
    Scenario,
    columns_of,
    get_framework,
    practice_for,
    rules_for,
)
from tools.scenario.columns import MissingColumn, decode_value
from tools.scenario.spec import PlanValue, RecomputeModule
from tools.search.constraints import Constraints

Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]
Table = dict[str, NDArray[np.int64]]
Options = list[tuple[int, ...]]

MAX_SLOTS = 3
"""Chunks beyond the layers that a framework may fill with embedding, loss and MTP."""


def divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


class PlanSpace:
    """The steps by which a table of plans grows for one scenario."""

    def __init__(self, scenario: Scenario, constraints: Constraints) -> None:
        self.scenario = scenario
        self._framework = get_framework(scenario.training.framework)
        self._constraints = constraints
        # A user who states a field has a reason: practice does not restrict it.
        usual = practice_for(scenario.training.framework) if constraints.space == "practice" else ()
        stated = {f"plan.{name}" for name in constraints.fields}
        self._rules = [
            *rules_for(scenario.training.framework),
            *(rule for rule in usual if rule.field not in stated),
        ]

    def degrees(self) -> Table:
        """Every (tp, pp, cp, dp) whose product is the number of devices, with sequence parallelism."""
        devices, layers = self.scenario.cluster.num_devices, self.scenario.model.num_hidden_layers
        products = [
            (tp, pp, cp, devices // (tp * pp * cp))
            for tp in divisors(devices)
            for pp in divisors(devices // tp)
            if pp <= layers + MAX_SLOTS
            for cp in divisors(devices // (tp * pp))
            if self.scenario.training.global_batch_size % (devices // (tp * pp * cp)) == 0
        ]
        rows = np.array(products, dtype=np.int64).reshape(-1, 4)
        table = self._legal({name: rows[:, i] for i, name in enumerate(("tp", "pp", "cp", "dp"))})
        return self._grow(
            table, ("sequence_parallel",), table["tp"], lambda tp: [(0,), (1,)] if tp > 1 else [(0,)]
        )

    def with_pipeline(self, table: Table) -> Table:
        """Adds vpp and schedule."""
        max_chunks = self.scenario.model.num_hidden_layers + MAX_SLOTS
        usual = SCHEDULES.index(self._framework.schedule)
        schedules = self._values("schedule", SCHEDULES)

        def options(pp: int) -> Options:
            if pp == 1:  # nothing is scheduled: whatever the user allows
                allowed = [code for code in schedules if self._permits(("schedule",), (code,))]
                return [(1, usual if usual in allowed or not allowed else allowed[0])]
            return [(vpp, code) for vpp in range(1, max_chunks // pp + 1) for code in schedules]

        return self._grow(table, ("vpp", "schedule"), table["pp"], options)

    def with_experts(self, table: Table) -> Table:
        """Adds ep and etp: any layout over the ranks of a stage, whatever the tensor groups."""
        experts = divisors(self.scenario.model.num_experts) if self.scenario.model.is_moe else []

        def options(ranks: int) -> Options:
            fitting = [ep for ep in experts if ranks % ep == 0]
            return [(ep, etp) for ep in fitting for etp in divisors(ranks // ep)] or [(1, 1)]

        return self._grow(table, ("ep", "etp"), table["tp"] * table["cp"] * table["dp"], options)

    def with_sharding(self, table: Table) -> Table:
        """Adds zero_stage and dp_shard: none, every hybrid size, the whole data-parallel group."""
        permitted = self._values("zero_stage", range(4))
        stages = [stage for stage in permitted if self._constraints.permits("zero_stage", stage)]

        def options(ranks: int) -> Options:
            # Sharding over one rank is no sharding; it is kept only if framework or user always shard.
            plain: Options = [(0, 1)] if 0 in stages else []
            sizes = [d for d in divisors(ranks) if d > 1 or (ranks == 1 and not plain)]
            return plain + [(z, d) for z in stages if z for d in sizes]

        return self._grow(table, ("zero_stage", "dp_shard"), table["dp"] * table["cp"], options)

    def with_micro_batch(self, table: Table) -> Table:
        """Adds micro_batch_size: every divisor of a data rank's share of the batch."""
        batch = self.scenario.training.global_batch_size
        return self._grow(
            table, ("micro_batch_size",), table["dp"], lambda dp: [(size,) for size in divisors(batch // dp)]
        )

    def _grow(
        self, table: Table, names: tuple[str, ...], by: NDArray[np.int64], options: Callable[[int], Options]
    ) -> Table:
        """Each row with each of the options for its value of `by` that the user and the rules permit."""
        parts = []
        for value in np.unique(by):
            permitted = [o for o in options(int(value)) if self._permits(names, o)]
            parts.append(_cross(where(table, by == value), names, permitted))
        return self._legal(joined(parts) if parts else _cross(table, names, []))

    def _permits(self, names: tuple[str, ...], option: tuple[int, ...]) -> bool:
        pairs = zip(names, option, strict=True)
        return all(self._constraints.permits(name, decode_value(name, code)) for name, code in pairs)

    def _legal(self, table: Table) -> Table:
        """The rows that break no rule, as far as the fields that are there can tell."""
        s = self.scenario
        facts = Facts(s.model, s.cluster, s.training, to_columns(table))
        legal = permitted_mask(self._constraints, table)
        for rule in self._rules:
            try:
                legal &= ~rule.breaks(facts)
            except MissingColumn:
                continue  # applied once the table has the field
        return where(table, legal)

    def _values(self, name: str, known: Sequence[PlanValue]) -> list[int]:
        """Positions in `known` that the framework's rule on this field alone permits."""
        rules = [r for r in self._framework.rules if r.check == "one_of" and r.field == f"plan.{name}"]
        return [i for i, value in enumerate(known) if all(value in rule.values for rule in rules)]


def permitted_mask(constraints: Constraints, table: Table) -> Mask:
    """The rows whose values the user's constraints on single fields permit."""
    mask = np.ones(count(table), dtype=np.bool_)
    for name in constraints.fields:
        if name in table:
            codes, rows = np.unique(table[name], return_inverse=True)
            verdicts = [constraints.permits(name, decode_value(name, int(code))) for code in codes]
            mask &= np.asarray(verdicts, dtype=np.bool_)[rows]
    return mask


def decode_row(table: Table, row: int) -> dict[str, PlanValue]:
    """One row as the searched fields of a plan."""
    return {name: decode_value(name, int(table[name][row])) for name in SEARCHED_FIELDS}


def get_plan(table: Table, row: int) -> Plan:
    """One row as a plan."""
    dialled = {
        name: int(table[name][row]) for name in ("recompute_layers", "recompute_modules") if name in table
    }
    values: dict[str, PlanValue | tuple[str, ...]] = {**decode_row(table, row)}
    if dialled.get("recompute_layers"):
        values["recompute_layers"] = dialled["recompute_layers"]
    if dialled.get("recompute_modules"):
        code = dialled["recompute_modules"]
        values["recompute_modules"] = tuple(m for bit, m in enumerate(MODULES) if code >> bit & 1)
    return Plan.model_validate(values)


MODULES: tuple[str, ...] = get_args(RecomputeModule)


def encode_modules(modules: Sequence[str]) -> int:
    """A set of recomputed modules as a number: one bit each."""
    return sum(1 << MODULES.index(module) for module in modules)


def table_of(plans: Sequence[Plan]) -> Table:
    """Plans whose recomputation is stated, as a table."""
    columns = columns_of(plans)
    return {name: getattr(columns, name).astype(np.int64) for name in SEARCHED_FIELDS}


def to_columns(table: Table) -> PlanColumns:
    """The columns with the types that rules expect, as far as the table has them."""
    columns = {name: table[name] for name in SEARCHED_FIELDS if name in table}
    if "sequence_parallel" in columns:
        return PlanColumns(**{**columns, "sequence_parallel": table["sequence_parallel"].astype(np.bool_)})
    return PlanColumns(**columns)


def with_stage(table: Table, stage: int, ranks: NDArray[np.int64]) -> Table:
    """Every row sharded at this ZeRO stage over as many ranks."""
    return {**table, "zero_stage": np.full(count(table), stage), "dp_shard": ranks}


def count(table: Table) -> int:
    return len(table["tp"])


def where(table: Table, rows: Mask | Rows) -> Table:
    return {name: column[rows] for name, column in table.items()}


def joined(tables: Sequence[Table]) -> Table:
    return {name: np.concatenate([t[name] for t in tables]) for name in tables[0]}


def _cross(table: Table, names: tuple[str, ...], options: Options) -> Table:
    rows = count(table)
    grown = {key: np.repeat(column, len(options)) for key, column in table.items()}
    values = np.array(options, dtype=np.int64).reshape(len(options), len(names))
    return grown | {name: np.tile(values[:, i], rows) for i, name in enumerate(names)}
