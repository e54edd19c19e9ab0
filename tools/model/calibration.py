"""What was learned about the cost model: fitted shifts, 80% intervals, and constants measured on one cluster.

A measured constant gets the shift that makes `resolve` return it, within its bounds.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Literal

import numpy as np
from pydantic import Field, InstanceOf, JsonValue, TypeAdapter, ValidationError

import kb_seed
from tools.errors import DataError, InputError
from tools.model.cluster import ClusterModel, ClusterPrior
from tools.model.constants import Shifts, constant_priors, memory_settings, resolve, scaled_memory
from tools.model.evidence import SeenRuns
from tools.model.intervals import SIGMAS, IntervalModel, interval, spreads, stack_names
from tools.model.residual import Correction, Residual, shipped_residual
from tools.names import did_you_mean
from tools.physics.inputs import Array, Coefficients, Inputs, RowKeys
from tools.physics.memory import MemorySettings
from tools.physics.step import StepTerms
from tools.scenario.fields import JsonObject, StrictModel, build

WIDER_BY = 4.0
"""Power of a cluster's scatter by which its interval may be wider than without its runs. Chosen while looking
at the clusters of `benchmarks.calibrate`: 2 to 16 hold the same."""
FORMAT: Literal["asap-cluster-calibration-1"] = "asap-cluster-calibration-1"
DEVICE_LEVEL = frozenset({"fast_link_efficiency", "slow_link_efficiency", "rank_latency_s"})
"""Constants of a device, whatever framework runs on it."""
LOGISTIC = 1.702
"""Scales the logistic curve so that it is the normal one to a hundredth."""


def fit_probability(predicted_bytes: Array, memory_bytes: Array, error: Array | float) -> Array:
    """That the peak stays within the device's memory, if its logarithm is off by `error`, a standard
    deviation."""
    return np.asarray(1.0 / (1.0 + (predicted_bytes / memory_bytes) ** (LOGISTIC / error)))


@dataclass(frozen=True)
class Calibration:
    shifts: Shifts
    intervals: IntervalModel
    cluster_prior: ClusterPrior
    """How far a cluster that the fit has not seen may lie from it."""
    memory_error: float = 0.1
    """Standard deviation of the logarithm of predicted over measured peak memory."""
    cluster: ClusterModel | None = None
    """What the runs of one cluster say, beside its constants' shifts."""
    seen: SeenRuns | None = None
    """What was seen of single plans."""
    residual: InstanceOf[Residual] = field(default_factory=shipped_residual)
    """What published runs show beyond the constants: of the package, so that no session keeps it."""

    def coefficients(self, keys: RowKeys) -> Coefficients:
        """`resolve`, once for each stack that is asked for alone."""
        if len(keys.device) > 1:
            return resolve(keys, self.shifts)
        stack = (keys.generation[0], keys.device[0], keys.framework[0])
        if stack not in self._of_stack:
            self._of_stack[stack] = resolve(keys, self.shifts)
        return self._of_stack[stack]

    @cached_property
    def _of_stack(self) -> dict[tuple[str, str, str], Coefficients]:
        return {}

    def correct(self, x: Inputs, keys: RowKeys) -> Correction:
        """On each row's step time: what published runs and the cluster's show and no constant explains."""
        correction = self.residual.correct(x, keys)
        shift, novelty = correction.log_factor, correction.novelty
        if self.cluster is not None:
            shift = shift + self.cluster.log_factor(x, keys)
            novelty = np.where(self.cluster.is_here(keys), 0.0, novelty)
        if measured := self.intervals.measured:
            shift = shift + np.array([measured.get(stack, 0.0) for stack in stack_names(x, keys)])
        if self.seen is not None:
            shift = self.seen.correct(self.seen.same(x, keys), shift, self._unsure)
        return replace(correction, log_factor=shift, novelty=novelty)

    @property
    def _unsure(self) -> float:
        return self.cluster.unsure if self.cluster else 0.0

    def fit_probability(self, x: Inputs, keys: RowKeys, memory_bytes: Array) -> Array:
        """That each row runs: its peak, as predicted, stays within the device's memory, and what was seen of
        plans like it does not speak against it."""
        likely = fit_probability(memory_bytes, x.memory_bytes, self.memory_errors(keys))
        if self.seen is None:
            return likely
        return self.seen.fit(x, keys, memory_bytes, likely)

    def scaled(self, keys: RowKeys, kind: str, factor: float) -> "Calibration":
        """After a step of the stack of `keys` was measured, `factor` times its prediction."""
        stack, before = f"{keys.key('stack', 0)}|{kind}", self.intervals.measured
        measured = {**before, stack: before.get(stack, 0.0) + math.log(factor)}
        return replace(self, intervals=replace(self.intervals, measured=measured))

    @property
    def formulas(self) -> "Calibration":
        """Without what published runs correct."""
        return replace(self, residual=self.residual.silenced)

    def factor(self, x: Inputs, keys: RowKeys) -> Array:
        return np.exp(self.correct(x, keys).log_factor)

    def interval(
        self, x: Inputs, keys: RowKeys, terms: StepTerms, correction: Correction, deviation: Array
    ) -> tuple[Array, Array]:
        """Low and high of each row; `terms` are as corrected. With a cluster's runs that of the posterior
        predictive, and no wider than without them as long as they scatter no more than expected."""
        low, high = interval(self.intervals, x, keys, terms, correction)
        below, above = np.log(terms.total / low), np.log(high / terms.total)
        if self.cluster is not None and self.cluster.weights:
            widest = max(1.0, self.cluster.scatter) ** WIDER_BY
            side, here = self.cluster.quantile * deviation, self.cluster.is_here(keys)
            below, above = (np.where(here, np.minimum(side, each * widest), each) for each in (below, above))
        if self.seen is not None:
            seen, same = self.seen, self.seen.same(x, keys)
            below, above = (seen.narrowed(same, each, self._unsure, SIGMAS) for each in (below, above))
        return terms.total * np.exp(-below), terms.total * np.exp(above)

    def deviation(self, x: Inputs, keys: RowKeys, terms: StepTerms, correction: Correction) -> Array:
        """Standard deviation of each row's log time around its prediction, after the runs."""
        spread = spreads(self.intervals, x, terms, correction)
        if self.cluster is not None:
            spread = self.cluster.deviation(x, keys, self.shifts, spread)
        if self.seen is not None:
            spread = self.seen.narrowed(self.seen.same(x, keys), spread, self._unsure)
        return spread

    def memory_settings(self, keys: RowKeys, precisions: Sequence[str]) -> MemorySettings:
        settings = memory_settings(keys.framework, precisions)
        if self.cluster is None or not self.cluster.memory_shift:
            return settings
        factors = np.exp(self.cluster.memory_shift * self.cluster.is_here(keys))
        return scaled_memory(settings, factors if len(factors) > 1 else factors[0])

    def memory_errors(self, keys: RowKeys) -> Array:
        """`memory_error` for each row."""
        if self.cluster is None:
            return np.full(len(keys.device), self.memory_error)
        return np.where(self.cluster.is_here(keys), self.cluster.memory_error, self.memory_error)

    def to_data(self) -> JsonObject:
        """As plain data, which a session keeps and a later one reads."""
        data: JsonObject = _adapter().dump_python(self, mode="json", by_alias=True, exclude={"residual"})
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, JsonValue]) -> "Calibration":
        """What `to_data` made. An earlier release had other constants and intervals: its sessions are shown
        and continued with the model of this one."""
        try:
            calibration = _adapter().validate_python(data)
        except ValidationError:
            return shipped_calibration()
        if calibration.cluster and len(calibration.cluster.points.slopes.T) != len(constant_priors()):
            return replace(calibration, cluster=None)
        return calibration


@cache
def _adapter() -> TypeAdapter[Calibration]:
    return TypeAdapter(Calibration)


@cache
def shipped_calibration() -> Calibration:
    """The calibration that comes with the package."""
    try:
        data = json.loads(kb_seed.folder("calibration").joinpath("fitted.json").read_text())
        # written by `make fit` and held by tests: building a validator would take longer than predicting
        return Calibration(
            shifts=data["shifts"],
            intervals=IntervalModel(**data["intervals"]),
            cluster_prior=ClusterPrior(**data["cluster_prior"]),
            memory_error=data["memory_error"],
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"kb_seed/calibration/fitted.json cannot be used ({error}); run make fit") from error


class ClusterCalibration(StrictModel, extra="ignore"):
    """What was measured on one stack; small, and good for a file."""

    format: Literal["asap-cluster-calibration-1"] = FORMAT
    framework: str = Field(min_length=1)
    generation: str = Field(min_length=1)
    device: str = Field(min_length=1)
    coefficients: dict[str, float]

    def apply(self, calibration: Calibration | None = None) -> Calibration:
        """The given calibration (the shipped one when None) with these constants in it."""
        keys = RowKeys([self.generation], [self.device], [self.framework])
        return calibrated_to(calibration or shipped_calibration(), keys, self.coefficients)


def calibrated_to(calibration: Calibration, keys: RowKeys, measured: Mapping[str, float]) -> Calibration:
    """`calibration` with shifts after which the one row of `keys` resolves to the measured constants."""
    known = {definition.name: definition for definition in constant_priors()}
    shifts = dict(calibration.shifts)
    for name, value in measured.items():
        d, levels = known[name], shifts.get(name, {})
        level = "device" if name in DEVICE_LEVEL else "stack"
        key = keys.key(level, 0)
        others = {other: shift for other, shift in levels.get(level, {}).items() if other != key}
        wanted = math.log(float(np.clip(value, d.low, d.high)))
        shift = wanted - d.log_value(keys, 0, {**levels, level: others})
        shifts[name] = {**levels, level: {**others, key: shift}}
    # what published runs of others add is in what was measured here
    return replace(calibration, shifts=shifts, residual=calibration.residual.silenced)


def parse_cluster_calibration(data: JsonValue, source: str) -> ClusterCalibration:
    """What `asap diagnose --calibration-out` wrote; raises InputError that names `source` and the field."""
    try:
        parsed = build(ClusterCalibration, data)
    except InputError as error:
        raise error.at(f"{source}: {error.path}") from None
    known = {d.name: d for d in constant_priors()}
    for name, value in parsed.coefficients.items():
        field, d = f"{source}: coefficients.{name}", known.get(name)
        if d is None:
            raise InputError(field, value, f"not a constant of the cost model, {did_you_mean(name, known)}")
        if not d.low <= value <= d.high:
            raise InputError(field, value, f"must be a number from {d.low:g} to {d.high:g}")
    return parsed
