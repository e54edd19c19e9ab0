"""The cost model fitted to one cluster: constants that were measured there replace the defaults.

A measured constant gets the shift that makes `resolve` return it, within the constant's bounds. Links belong
to the device, whatever trains on it; everything else belongs to the stack (framework on a device
generation). Nothing else changes: other constants, other clusters and the intervals stay as they are, since
one cluster's trace says nothing about them. What to measure and how is `tools.trace`'s business.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.coefficients import Definition, LevelShifts, RowKeys, definitions, log_value
from tools.errors import InputError

FORMAT = "asap-cluster-calibration-1"
DEVICE_LEVEL = frozenset({"fast_link_efficiency", "slow_link_efficiency", "rank_latency_s"})


@dataclass(frozen=True)
class ClusterCalibration:
    """What was measured on one stack; small, and good for a file."""

    framework: str
    generation: str
    device: str
    coefficients: Mapping[str, float]

    def apply(self, calibration: Calibration | None = None) -> Calibration:
        """The given calibration (the shipped one when None) with these constants in it."""
        keys = RowKeys([self.generation], [self.device], [self.framework])
        return calibrated_to(calibration or shipped_calibration(), keys, self.coefficients)

    def to_data(self) -> dict[str, object]:
        """Plain data for JSON."""
        stack = {"framework": self.framework, "generation": self.generation, "device": self.device}
        return {"format": FORMAT, **stack, "coefficients": dict(self.coefficients)}


def calibrated_to(calibration: Calibration, keys: RowKeys, measured: Mapping[str, float]) -> Calibration:
    """`calibration` with shifts after which the one row of `keys` resolves to the measured constants."""
    known = {one.name: one for one in definitions()}
    shifts = dict(calibration.shifts)
    for name, value in measured.items():
        shifts[name] = _shifted(known[name], value, keys, shifts.get(name, {}))
    return Calibration(shifts, calibration.intervals)


def _shifted(d: Definition, value: float, keys: RowKeys, shifts: LevelShifts) -> LevelShifts:
    """The constant's shifts with the entry of this stack (or device) replaced."""
    level = "device" if d.name in DEVICE_LEVEL else "stack"
    key = keys.key(level, 0)
    others = {name: shift for name, shift in shifts.get(level, {}).items() if name != key}
    without = {**shifts, level: others}
    wanted = float(np.clip(value, d.low, d.high))
    return {**without, level: {**others, key: math.log(wanted) - log_value(d, keys, 0, without)}}


def parse_cluster_calibration(data: Mapping[str, object], source: str) -> ClusterCalibration:
    """What `to_data` gave, checked; raises InputError that names `source` and the field."""
    if data.get("format") != FORMAT:
        raise InputError(f"{source}: format", data.get("format"), f"must be {FORMAT!r}")
    stack = {name: _text(data, name, source) for name in ("framework", "generation", "device")}
    given = data.get("coefficients")
    if not isinstance(given, Mapping):
        raise InputError(f"{source}: coefficients", given, "must be an object of numbers")
    return ClusterCalibration(
        **stack, coefficients={str(name): _number(name, value, source) for name, value in given.items()}
    )


def _text(data: Mapping[str, object], name: str, source: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise InputError(f"{source}: {name}", value, "must be a text")
    return value


def _number(name: object, value: object, source: str) -> float:
    bounds = {one.name: (one.low, one.high) for one in definitions()}.get(str(name))
    field = f"{source}: coefficients.{name}"
    if bounds is None:
        raise InputError(field, value, "is no constant of the cost model")
    if isinstance(value, bool) or not isinstance(value, int | float) or not bounds[0] <= value <= bounds[1]:
        raise InputError(field, value, f"must be a number from {bounds[0]:g} to {bounds[1]:g}")
    return float(value)
