"""The constants that no datasheet gives: few, named, bounded, the same for every model.

value = prior * prior_factors * exp(sum of the shifts on every level of LEVELS), within bounds.
`kb_seed/calibration/coefficients.toml` defines them, `fitted.json` beside it holds the shifts of `make
fit`. An unknown framework or generation has no shift of its own.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

import kb_seed
from tools.cost.inputs import Array, Columns
from tools.errors import DataError

LEVELS = ("everywhere", "generation", "device", "framework", "stack")
"""A stack is a framework on a device generation."""


@dataclass(frozen=True)
class Coefficients(Columns):
    """The value of each constant for each row (or one value for all rows)."""

    gemm_efficiency: Array
    fp8_gain: Array
    fp4_gain: Array
    gemm_wave_weight: Array
    gemm_depth_half: Array
    grouped_gemm_ratio: Array
    grouped_low_precision_ratio: Array
    alltoall_cost: Array
    attention_efficiency: Array
    attention_score_passes: Array
    elementwise_traffic: Array
    selective_recompute: Array
    fast_link_efficiency: Array
    slow_link_efficiency: Array
    rank_latency_s: Array
    tp_exposed: Array
    cp_exposed: Array
    ep_exposed: Array
    pp_exposed: Array
    dp_exposed: Array
    optimizer_traffic: Array
    host_kernel_s: Array
    host_moe_kernels: Array
    micro_batch_overhead_s: Array
    step_overhead_s: Array
    scale_jitter: Array


@dataclass(frozen=True)
class Definition:
    """Prior, bounds and how far each level may move the constant (standard deviations in log space)."""

    name: str
    prior: float
    low: float
    high: float
    spread: Mapping[str, float]
    meaning: str
    source: str
    prior_factors: Mapping[str, float]  # on the prior, by "level:key"


@dataclass(frozen=True)
class RowKeys:
    """To which device, generation and framework each row belongs."""

    generation: Sequence[str]
    device: Sequence[str]
    framework: Sequence[str]

    def key(self, level: str, row: int) -> str:
        if level == "everywhere":
            return "all"
        if level == "stack":
            return f"{self.framework[row]}/{self.generation[row]}"
        columns = {"generation": self.generation, "device": self.device, "framework": self.framework}
        return columns[level][row]


LevelShifts = Mapping[str, Mapping[str, float]]
"""Of one constant, by level and key."""
Shifts = Mapping[str, LevelShifts]


@cache
def definitions() -> tuple[Definition, ...]:
    table = tomllib.loads(kb_seed.folder("calibration").joinpath("coefficients.toml").read_text())
    names = {f.name for f in fields(Coefficients)}
    if set(table) != names:
        raise DataError(f"coefficients.toml and the model differ in {sorted(set(table) ^ names)}")
    return tuple(_definition(name, table[name]) for name in sorted(names))


def _definition(name: str, entry: Mapping[str, Any]) -> Definition:
    known = {"prior", "low", "high", "spread", "meaning", "source", "prior_factors"}
    if set(entry) - known:
        raise DataError(f"coefficients.toml: {name} has unknown keys {sorted(set(entry) - known)}")
    definition = Definition(name=name, **{"prior_factors": {}, **entry})
    if not 0 < definition.low <= definition.prior <= definition.high:  # zero has no logarithm to shift
        raise DataError(f"coefficients.toml: {name} needs 0 < low <= prior <= high")
    return definition


def resolve(keys: RowKeys, shifts: Shifts) -> Coefficients:
    """The constants of each row; one row in `keys` gives scalars, which hold for any number of plans."""
    rows = range(len(keys.generation))
    columns = {}
    for d in definitions():
        values = np.array([_value(d, keys, row, shifts.get(d.name, {})) for row in rows])
        columns[d.name] = values if len(values) > 1 else values[0]
    return Coefficients(**columns)


@dataclass(frozen=True)
class ConstantUse:
    """One constant of one row: `value` is `prior` times exp(shift of each level), within the bounds."""

    name: str
    value: float
    prior: float
    """With the factors that are known for the row's generation or framework."""
    shift: float
    """What the shifts made of the prior, as a ratio less one."""
    shifts: dict[str, float]
    """Logarithms, by level."""
    meaning: str
    source: str


def constants_of(keys: RowKeys, shifts: Shifts) -> list[ConstantUse]:
    """All constants of the first row, in the order of their names."""
    used = []
    for d in definitions():
        prior, value = _value(d, keys, 0, {}), _value(d, keys, 0, shifts.get(d.name, {}))
        by_level = {
            level: shift
            for level in LEVELS
            if (shift := shifts.get(d.name, {}).get(level, {}).get(keys.key(level, 0), 0.0))
        }
        used.append(ConstantUse(d.name, value, prior, value / prior - 1.0, by_level, d.meaning, d.source))
    return used


def _value(d: Definition, keys: RowKeys, row: int, shifts: LevelShifts) -> float:
    return float(np.clip(np.exp(log_value(d, keys, row, shifts)), d.low, d.high))


def log_value(d: Definition, keys: RowKeys, row: int, shifts: LevelShifts) -> float:
    """Prior, factors and shifts of one row, before the bounds."""
    total = np.log(d.prior)
    for level in LEVELS:
        key = keys.key(level, row)
        total += np.log(d.prior_factors.get(f"{level}:{key}", 1.0)) + shifts.get(level, {}).get(key, 0.0)
    return float(total)
