"""Plans as columns of arrays, which the rules, the cost model and the search read: one plan or millions.

The columns are the searched fields of `Plan`. Choices (text, true or false) are stored as their position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from tools.scenario.model import ModelSpec
from tools.scenario.spec import (
    SEARCHED_FIELDS,
    ClusterSpec,
    Plan,
    PlanValue,
    Recompute,
    Schedule,
    TrainingSpec,
    plan_bounds,
)

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

SCHEDULES: tuple[str, ...] = get_args(Schedule)
RECOMPUTES: tuple[str, ...] = get_args(Recompute)
NOT_STATED = -1
"""The code of a null recompute."""


def _choices(annotation: object) -> tuple[PlanValue, ...]:
    """The values of a field without an order, in the order of their codes; empty for a number."""
    if annotation is bool:
        return (False, True)
    for part in (annotation, *get_args(annotation)):
        if get_origin(part) is Literal:
            return get_args(part)
    return ()


CHOICES: Mapping[str, tuple[PlanValue, ...]] = {
    name: choices for name in SEARCHED_FIELDS if (choices := _choices(Plan.model_fields[name].annotation))
}
"""Fields without an order, and their values by code."""
MIN_VALUES: Mapping[str, PlanValue] = {
    name: CHOICES[name][0] if name in CHOICES else plan_bounds(name)[0] for name in SEARCHED_FIELDS
}
"""The lowest number or the first choice of each searched field."""


def encode_value(name: str, value: PlanValue) -> int:
    """A plan's value as the integer that stands for it in a column."""
    if name in CHOICES:
        return NOT_STATED if value is None else CHOICES[name].index(value)
    if not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}, not an integer")
    return value


def decode_value(name: str, code: int) -> PlanValue:
    """What the integer of a column stands for."""
    if name not in CHOICES:
        return code
    return None if code == NOT_STATED else CHOICES[name][code]


class MissingColumn(LookupError):
    """A field of a plan that a partly built table does not have yet."""


class PlanColumns:
    """One array per searched field of a plan; the arrays need only broadcast to one another.

    A field that is not there yet raises `MissingColumn`; a name that no plan has, AttributeError.
    """

    __slots__ = ("_columns",)
    sequence_parallel: BoolArray  # for type checkers; all other columns are integers

    def __init__(self, **columns: NDArray[Any]) -> None:
        if unknown := columns.keys() - set(SEARCHED_FIELDS):
            raise TypeError(f"no searched fields of a plan: {', '.join(sorted(unknown))}")
        self._columns = columns

    def __getattr__(self, name: str) -> IntArray:
        if name in SEARCHED_FIELDS:
            try:
                return self._columns[name]
            except KeyError:
                raise MissingColumn(name) from None
        raise AttributeError(f"a plan has no searched field {name!r}")

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


@dataclass(frozen=True, slots=True)
class Facts:
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


def equals(left: NDArray[Any], right: NDArray[Any] | int) -> BoolArray:
    """Which entries are the same (NumPy's own == is typed Any)."""
    return np.asarray(left == right, dtype=np.bool_)


def has_schedule(facts: Facts, name: str) -> BoolArray:
    """Which plans run the named schedule."""
    return equals(facts.plan.schedule, SCHEDULES.index(name))


def columns_of(plans: Sequence[Plan]) -> PlanColumns:
    """The plans as arrays of one entry per plan."""
    return PlanColumns(**{name: np.asarray(_codes(name, plans)) for name in SEARCHED_FIELDS})


def _codes(name: str, plans: Sequence[Plan]) -> list[Any]:
    values = [getattr(plan, name) for plan in plans]
    is_text = name in CHOICES and CHOICES[name] != (False, True)  # rules combine flags with & and ~
    return [encode_value(name, value) for value in values] if is_text else values
