"""Plans as columns: what the rules look at, for one plan or for millions at once."""

from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from tools.scenario.spec import ClusterSpec, ModelSpec, Plan, Recompute, Schedule, TrainingSpec

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

SCHEDULES: tuple[str, ...] = get_args(Schedule)
RECOMPUTES: tuple[str, ...] = get_args(Recompute)
NOT_STATED = -1


@dataclass(frozen=True, slots=True)
class PlanColumns:
    """One array for each field of a plan; the arrays need only broadcast to one another.

    `schedule` and `recompute` hold positions in SCHEDULES and RECOMPUTES (NOT_STATED for a null recompute).
    """

    tp: IntArray
    pp: IntArray
    vpp: IntArray
    cp: IntArray
    ep: IntArray
    etp: IntArray
    dp: IntArray
    dp_shard: IntArray
    zero_stage: IntArray
    micro_batch_size: IntArray
    sequence_parallel: BoolArray
    recompute: IntArray
    schedule: IntArray


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything a rule may look at: the workload, and the plans tried on it."""

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    plan: PlanColumns

    @property
    def micro_batches(self) -> IntArray:
        """Micro-batches a rank runs in a step (rounded down where the batch does not divide)."""
        return self.training.global_batch_size // (self.plan.dp * self.plan.micro_batch_size)


def divides(divisor: IntArray | int, number: IntArray | int) -> BoolArray:
    """Where the divisor divides the number."""
    return np.asarray(np.mod(number, divisor) == 0, dtype=np.bool_)


def equals(one: NDArray[Any], other: NDArray[Any] | int) -> BoolArray:
    """Where the two are the same (NumPy's own == is typed Any)."""
    return np.asarray(one == other, dtype=np.bool_)


def has_schedule(facts: Facts, name: str) -> BoolArray:
    """Where the plan runs the named schedule."""
    return equals(facts.plan.schedule, SCHEDULES.index(name))


def columns_of(plans: list[Plan]) -> PlanColumns:
    """The plans as arrays of one entry each plan."""
    named: dict[str, list[Any]] = {
        field.name: [getattr(plan, field.name) for plan in plans] for field in fields(PlanColumns)
    }
    named["schedule"] = [SCHEDULES.index(name) for name in named["schedule"]]
    named["recompute"] = [
        NOT_STATED if name is None else RECOMPUTES.index(name) for name in named["recompute"]
    ]
    return PlanColumns(**{name: np.asarray(values) for name, values in named.items()})
