"""How unlike two workloads are: a sum that a person can follow, a price for each way in which they differ.

The residual, the interval and `asap runs near` share it. `make fit` learns the prices from published runs.
Plans only order runs of one workload: with prices of their own, left-out runs were predicted worse, and a
search would run after noise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.physics.inputs import Array, Inputs, RowKeys

SIZES = {
    "model": ("hidden", "layers", "experts", "experts_per_token"),
    "work": ("seq", "batch", "devices"),
    "generation": ("exponentials_per_s",),
}
"""Each factor of two has the price of its kind; exponentials tell Blackwell Ultra from Blackwell."""
FACTS: Mapping[str, tuple[str, Callable[[Inputs], Array]]] = {
    "lora": ("setting", lambda x: np.less(x.trained_share, 1.0)),
    "flash": ("setting", lambda x: x.flash),
    "slow_network": ("setting", lambda x: x.has_slow_network),
    "precision": ("precision", lambda x: x.gemm_bytes),
    "kind": ("kind", lambda x: x.is_moe + 2.0 * (x.mixer_share > 0)),
}
"""Facts that are the same or not, with their price. `kind` is dense, MoE, hybrid or hybrid MoE."""
NAMES = ("framework", "generation", "device")
"""The same or not, too."""
DEGREES = ("tp", "pp", "cp", "ep", "micro_batch_size")
PLAN_PRICE = 1e-6
_PRICED = {name: price for price, names in SIZES.items() for name in names}


@dataclass(frozen=True)
class Prices:
    """At a distance of 1 two runs share 1/e of what alike runs do."""

    model: float
    work: float
    setting: float
    precision: float
    kind: float
    framework: float
    generation: float
    device: float


@dataclass(frozen=True)
class Traits:
    """What runs are compared by, a row each."""

    columns: tuple[str, ...]
    figures: Array
    """A column for each of `columns`, sizes and degrees as logarithms to the base 2."""
    names: NDArray[np.str_]
    """A column for each of NAMES."""

    @classmethod
    def of(cls, x: Inputs, keys: RowKeys, degrees: tuple[str, ...] = ()) -> "Traits":
        """The traits of workloads; and of plans, if degrees are named."""
        sizes = {name: np.log2(np.maximum(getattr(x, name), 1.0)) for name in (*_PRICED, *degrees)}
        facts = {name: read(x) for name, (_, read) in FACTS.items()}
        columns = np.broadcast_arrays(*sizes.values(), *facts.values())
        names = np.array([keys.framework, keys.generation, keys.device]).T
        return cls((*sizes, *facts), np.atleast_2d(np.stack(columns, axis=-1)), names)

    def take(self, rows: NDArray[np.intp]) -> "Traits":
        return Traits(self.columns, self.figures[rows], self.names[rows])


def distances(prices: Prices, left: Traits, right: Traits) -> Array:
    """A row for each of `left`, a column for each of `right`; what both have is compared."""
    of_names = np.array([getattr(prices, name) for name in NAMES])
    total = np.sum((left.names[:, None] != right.names) * of_names, axis=-1)
    for i, name in enumerate(left.columns):
        if name in right.columns:
            apart = np.abs(np.subtract.outer(left.figures[:, i], right.figures[:, right.columns.index(name)]))
            if name in FACTS:
                total += getattr(prices, FACTS[name][0]) * (apart > 0)
            else:
                total += (getattr(prices, _PRICED[name]) if name in _PRICED else PLAN_PRICE) * apart
    return np.asarray(total)
