"""What published runs show beyond the formulas: log of measured over predicted time as a Gaussian process.

Workloads that are alike (`likeness`) err alike; far from every run the correction is none. All plans of a
workload are corrected alike, so that a search may leave it to the end. Source of the form: Rasmussen and
Williams, Gaussian Processes for Machine Learning (2006), sections 2.2 and 4.2.1 (the exponential kernel).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

import kb_seed
from tools.errors import DataError
from tools.model.likeness import DEGREES, NAMES, SIZES, Prices, Traits, distances
from tools.physics.arithmetic import ZERO
from tools.physics.encode import fabric_code
from tools.physics.inputs import Array, Columns, Inputs, RowKeys
from tools.scenario.spec import Fabric

FILE = "residual.json"
MAX_ERROR = 0.6
"""Log errors count as at most this: a run farther off was measured under settings that nobody stated."""
BLOCK_ROWS = 256
"""Rows compared with all runs at once: their distances stay in the processor's cache."""


@dataclass(frozen=True)
class ResidualPrior:
    """Standard deviations of log time, and what makes runs unlike."""

    deviation: float
    """The deviation that alike runs share."""
    noise: float
    """The deviation that a run of a dense model has alone."""
    moe_noise: float
    prices: Prices

    def weights(self, runs: Traits, is_moe: Array, errors: Array) -> Array:
        """How much each run counts in what is predicted for others; `errors` are logs of measured over
        predicted. Runs of a cluster would join the published ones here."""
        covariance = self.deviation**2 * np.exp(-distances(self.prices, runs, runs))
        noises = np.where(is_moe > 0, self.moe_noise, self.noise) ** 2
        clipped: Array = np.clip(errors, -MAX_ERROR, MAX_ERROR)
        return np.linalg.solve(covariance + np.diag(noises), clipped).astype(np.float64)


@dataclass(frozen=True)
class Correction(Columns):
    """By row."""

    log_factor: Array
    """On the step time."""
    distance: Array
    """To the nearest run."""
    novelty: Array = ZERO
    """1 if no run has the framework, half if none has it on this generation or fabric, or only sweeps do."""


@dataclass(frozen=True)
class Neighbour:
    """A published run beside the scenario that it is nearest to."""

    id: str
    distance: float
    differences: tuple[str, ...]
    """Names of what is not the same."""
    error: float
    """Measured over predicted, less one: below 0 it was faster than the formulas say."""


@dataclass(frozen=True)
class Residual:
    """The process, given the published runs."""

    prior: ResidualPrior
    runs: Traits
    """With their degrees, if the nearest one is asked for."""
    ids: Sequence[str]
    errors: Array
    """Log of measured over predicted time by the formulas alone."""
    weights: Array
    fabrics: Sequence[Fabric | None] = ()
    """That each run crossed: known beside the traits, since a price of its own made left-out sources worse
    (10.07% for 9.86%)."""

    swept: Sequence[str] = ()
    """Frameworks of sweeps, which the constants were fitted to and no run here has."""

    @cached_property
    def _fabric_codes(self) -> Array:
        """As `Inputs.fabric`; without any, every fabric is known."""
        return np.array([fabric_code(each) for each in self.fabrics] or [0.0] * len(self.runs.names))

    @property
    def silenced(self) -> "Residual":
        """It still knows what is near, and corrects nothing."""
        return replace(self, weights=np.zeros(len(self.weights)))

    def correct(self, x: Inputs, keys: RowKeys) -> Correction:
        """A row per workload."""
        traits, made = Traits.of(x, keys), []
        for start in range(0, len(traits.names), BLOCK_ROWS):
            rows = np.arange(start, min(start + BLOCK_ROWS, len(traits.names)))
            apart = distances(self.prior.prices, traits.take(rows), self.runs)
            # not a matrix product, which rounds equal rows differently
            shift = self.prior.deviation**2 * np.sum(np.exp(-apart) * self.weights, axis=1)
            own = traits.take(rows).names[:, None] == self.runs.names
            framework, generation = own[..., 0], own[..., 1]
            crossed = np.broadcast_to(x.fabric, traits.names.shape[:1])[rows]
            joined = (crossed[:, None] == self._fabric_codes) | (crossed[:, None] == 0) | (not self.fabrics)
            named = np.any(framework, axis=1) | np.isin(traits.names[rows, 0], self.swept)
            known = np.any(framework & generation, axis=1) & np.any(framework & joined, axis=1)
            made.append(Correction(shift, apart.min(axis=1), 1.0 - named / 2.0 - known / 2.0))
        return made[0] if len(made) == 1 else Correction.joined(made)

    def nearest(self, x: Inputs, keys: RowKeys) -> Neighbour:
        """To the one row of `x`; of several runs of one workload the one whose plan is nearest."""
        own = Traits.of(x, keys, DEGREES)
        apart = distances(self.prior.prices, own, self.runs)[0]
        place = int(np.argmin(apart))
        run = self.runs.take(np.array([place]))
        figures = [
            (name, not np.isclose(mine, theirs))
            for name, mine, theirs in zip(own.columns, own.figures[0], run.figures[0], strict=True)
            if name not in SIZES["generation"]  # the device is named
        ]
        names = zip(NAMES, own.names[0] != run.names[0], strict=True)
        differences = tuple(name for name, differs in (*names, *figures) if differs)
        return Neighbour(
            self.ids[place], float(apart[place]), differences, float(np.expm1(self.errors[place]))
        )


@cache
def shipped_residual() -> Residual:
    """The one that comes with the package, from what `make fit` wrote."""
    try:
        data = json.loads(kb_seed.folder("calibration").joinpath(FILE).read_text())
        prior, columns = data["prior"], data["columns"]
        runs = Traits(tuple(columns), np.array(list(columns.values())).T, np.array(data["names"]).T)
        prior = ResidualPrior(**{**prior, "prices": Prices(**prior["prices"])})
        errors, weights = np.array(data["error"]), np.array(data["weight"])
        return Residual(prior, runs, data["id"], errors, weights, data["fabric"], data["swept"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"kb_seed/calibration/{FILE} cannot be used ({error}); run make fit") from error
