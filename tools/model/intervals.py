"""80% intervals of predicted step times, by what is uncertain in a prediction.

The spread of log time is that of a prediction near measured runs, plus what the host, expert exchange, other
exposed communication and memory-bound work add by their shares of the step, experts and very short steps by
themselves, and distance by how far the nearest measured run is: independent parts, whose variances add up.
Signed quantiles of measured over predicted (reality is rather slower) make it an interval, dense models and
mixtures of experts apart. Learned from whole sources left out, each weighing the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np

from tools.model.residual import Correction
from tools.physics.arithmetic import ZERO
from tools.physics.inputs import Array, Columns, Inputs, RowKeys
from tools.physics.step import StepTerms

COVERAGE = 0.8
SIGMAS = NormalDist().inv_cdf(0.5 + COVERAGE / 2.0)
"""Standard deviations to either side that hold this share."""
SHORT_STEP_S = 0.1
"""Steps as short as this are all overhead."""
NOVELTY = 0.2
"""What a framework that no published run has adds to the standard deviation of log time: an assumption. Rows
left out do not show it, since the formulas of their stacks were written with their sources at hand."""
Uncertainty = Literal[
    "base", "experts", "host", "exchange", "network", "memory", "short", "distance", "novelty"
]
UNCERTAINTIES: tuple[Uncertainty, ...] = get_args(Uncertainty)
"""What a prediction may be uncertain by."""


@dataclass(frozen=True)
class IntervalModel:
    """What `make fit` learned about the model's own errors."""

    spread: Mapping[Uncertainty, float]
    """Standard deviation of log time that each adds, per unit of `exposures`."""
    quantiles: Mapping[str, Sequence[float]]
    """Low and high quantile of log measured over predicted, in spreads, for "dense" and "moe"."""
    pair_error: Mapping[str, float]
    """Log error of the ratio of two plans of one workload that 80% stay below."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Stacks with a kind ("torchtitan/hopper|moe") of which a step was measured, with the logarithm of its
    time over the prediction: others are compared with it."""

    def variances(self, exposures: "Exposures") -> "Exposures":
        """What each uncertainty adds to the variance of log time."""
        parts = zip(self.in_order, exposures.parts, strict=True)
        return Exposures(*(spread**2 * part**2 for spread, part in parts))

    @property
    def in_order(self) -> list[float]:
        return [{"novelty": NOVELTY, **self.spread}[name] for name in UNCERTAINTIES]


@dataclass(frozen=True)
class Exposures(Columns):
    """How much a prediction depends on what is uncertain, by UNCERTAINTIES: shares of the step, 0 or 1, the
    root of the distance to the nearest run (the variance grows with the distance), `Correction.novelty`."""

    base: Array
    experts: Array
    host: Array
    exchange: Array
    network: Array
    memory: Array
    short: Array
    distance: Array
    novelty: Array


def exposures(x: Inputs, t: StepTerms, distance: Array, novelty: Array = ZERO) -> Exposures:
    total = t.total
    share = 1.0 / total
    network = t.tp_comm_exposed + t.cp_comm_exposed + t.dp_comm_exposed + t.pp_comm_exposed
    return Exposures(
        base=np.ones_like(total),
        experts=x.is_moe,
        host=t.host_and_other * share,
        exchange=t.ep_comm_exposed * share,
        network=network * share,
        memory=(t.memory_bound_ops + t.optimizer) * share,
        short=np.minimum(SHORT_STEP_S * share, 1.0),
        distance=np.sqrt(distance),
        novelty=novelty,
    )


def interval(
    model: IntervalModel, x: Inputs, keys: RowKeys, terms: StepTerms, correction: Correction
) -> tuple[Array, Array]:
    """Low and high of each row; `terms` are as corrected. `keys` has one entry per row, or one for all."""
    spread, kinds = spreads(model, x, terms, correction), kind_names(x)
    low, high = (np.array([model.quantiles[kind][end] for kind in kinds]) * spread for end in (0, 1))
    if model.measured:
        compared = np.array([stack in model.measured for stack in stack_names(x, keys)])
        error = np.array([model.pair_error[kind] for kind in kinds])
        low = np.where(compared, np.maximum(-error, low), low)
        high = np.where(compared, np.minimum(error, high), high)
    return terms.total * np.exp(low), terms.total * np.exp(high)


def spreads(model: IntervalModel, x: Inputs, terms: StepTerms, correction: Correction) -> Array:
    """Standard deviation of each row's log time; `terms` are as corrected."""
    exposed = exposures(x, terms, correction.distance, correction.novelty)
    return np.asarray(np.sqrt(sum(model.variances(exposed).parts)))


def stack_names(x: Inputs, keys: RowKeys) -> list[str]:
    """As `IntervalModel.measured` names them."""
    kinds = kind_names(x)
    return [f"{keys.key('stack', row)}|{kinds[row % len(kinds)]}" for row in range(len(keys.device))]


def kind_names(x: Inputs) -> list[str]:
    return ["moe" if moe else "dense" for moe in np.atleast_1d(x.is_moe)]
