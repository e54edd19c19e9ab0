"""Plans as columns of integers, which the rules, the cost model and the search read: one plan or millions.

The columns are the fields of `Plan`. A choice (text, true or false) is stored as its position, a set of words
as one bit for each, and a carried field that is not stated as 0 (so that false is 1 and true 2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from tools.scenario.model import ModelSpec
from tools.scenario.spec import (
    PLAN_ROLES,
    SEARCHED_FIELDS,
    ClusterSpec,
    PipelineSchedule,
    Plan,
    PlanValue,
    Recompute,
    RecomputeModule,
    TrainingSpec,
    plan_bounds,
)

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
RowIndex = BoolArray | NDArray[np.intp] | slice
ColumnValue = PlanValue | tuple[str, ...]
"""A value of any field of a plan, searched or not."""

SCHEDULES: tuple[str, ...] = get_args(PipelineSchedule)
RECOMPUTES: tuple[str, ...] = get_args(Recompute)
MODULES: tuple[str, ...] = get_args(RecomputeModule)
NOT_STATED = -1
"""The code of a null recompute."""
CHOICES: Mapping[str, tuple[PlanValue, ...]] = {
    name: (False, True) if annotation is bool else get_args(literal)
    for name, annotation in ((name, Plan.model_fields[name].annotation) for name in SEARCHED_FIELDS)
    for literal in (annotation, *get_args(annotation))
    if annotation is bool or get_origin(literal) is Literal
}
"""Searched fields without an order, and their values by code."""
MIN_VALUES: Mapping[str, PlanValue] = {
    name: CHOICES[name][0] if name in CHOICES else plan_bounds(name)[0] for name in SEARCHED_FIELDS
}
"""The lowest number or the first choice of each searched field."""


class MissingColumn(LookupError):
    """A field of a plan that a partly built table does not have yet."""


class PlanColumns(dict[str, IntArray]):
    """One array per field of a plan; the arrays need only broadcast to one another.

    A column is an attribute too, true or false as such: a field that is not there yet raises `MissingColumn`,
    a name that no plan has AttributeError. A search may note columns of its own beside those of the plan.
    """

    sequence_parallel: BoolArray  # for type checkers; all other columns are integers

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> "PlanColumns":
        """The plans as arrays of one entry per plan."""
        columns = cls()
        for name in PLAN_ROLES:
            values = [getattr(plan, name) for plan in plans]
            if name not in SEARCHED_FIELDS or isinstance(CHOICES.get(name, (0,))[0], str):
                values = [encode_value(name, value) for value in values]
            columns[name] = np.array(values, dtype=np.int64)
        return columns

    @classmethod
    def joined(cls, tables: Sequence["PlanColumns"]) -> "PlanColumns":
        """Tables one below the other; what only some of them state is not stated in the others."""
        names = dict.fromkeys(name for table in tables for name in table)
        absent = [np.zeros(table.rows, dtype=np.int64) for table in tables]
        return cls(
            (name, np.concatenate([t.get(name, zero) for t, zero in zip(tables, absent, strict=True)]))
            for name in names
        )

    def __getattr__(self, name: str) -> IntArray:
        if name not in PLAN_ROLES:
            raise AttributeError(f"a plan has no field {name!r}")
        if name not in self:
            raise MissingColumn(name)
        column = self[name]
        return column.astype(np.bool_) if CHOICES.get(name) == (False, True) else column

    @property
    def rows(self) -> int:
        return len(next(iter(self.values()), ()))

    def take(self, rows: RowIndex) -> "PlanColumns":
        return PlanColumns((name, column[rows]) for name, column in self.items())

    def with_columns(self, **columns: IntArray) -> "PlanColumns":
        """With these columns in place of its own, or beside them."""
        return PlanColumns(self, **columns)

    def plan(self, row: int) -> Plan:
        fields = {name: decode_value(name, int(self[name][row])) for name in PLAN_ROLES if name in self}
        return Plan.model_validate(fields)

    # As the properties of `Plan` with the same names.

    @property
    def data_ranks(self) -> IntArray:
        return self.dp * self.cp

    @property
    def sharding_stage(self) -> IntArray:
        return np.where(self.dp_shard > 1, self.zero_stage, 0)

    @property
    def is_hybrid_sharded(self) -> BoolArray:
        return (self.sharding_stage > 0) & (self.dp_shard < self.data_ranks)


def encode_value(name: str, value: ColumnValue) -> int:
    """A plan's value as the integer that stands for it in a column."""
    if name in CHOICES:
        return NOT_STATED if value is None else CHOICES[name].index(value)
    if isinstance(value, tuple):
        return sum(1 << MODULES.index(module) for module in value)
    if value is None and name not in SEARCHED_FIELDS:
        return 0
    if isinstance(value, bool) and name not in SEARCHED_FIELDS:
        return value + 1
    if not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}, not an integer")
    return value


def decode_value(name: str, code: int) -> ColumnValue:
    """What the integer of a column stands for."""
    if name in CHOICES:
        return None if code == NOT_STATED else CHOICES[name][code]
    if name == "recompute_modules":
        return tuple(module for bit, module in enumerate(MODULES) if code >> bit & 1) or None
    if name == "reshard_after_forward":
        return bool(code - 1) if code else None
    return code if code or name in SEARCHED_FIELDS else None


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """Everything a rule may look at: the workload, and the plans tried on it."""

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    plan: PlanColumns

    @property
    def micro_batches(self) -> IntArray:
        """Micro-batches per rank and step (rounded down if the batch does not divide)."""
        return self.training.global_batch_size // (self.plan.dp * self.plan.micro_batch_size)


def divides(divisor: IntArray | int, number: IntArray | int) -> BoolArray:
    """Which entries of the divisor divide the number."""
    return np.asarray(np.mod(number, divisor) == 0, dtype=np.bool_)


def equals(left: NDArray[np.generic], right: NDArray[np.generic] | int) -> BoolArray:
    """Which entries are the same (NumPy's own == is typed Any)."""
    return np.asarray(left == right, dtype=np.bool_)


def has_schedule(facts: PlanFacts, name: str) -> BoolArray:
    return equals(facts.plan.schedule, SCHEDULES.index(name))
