"""The constants that no datasheet gives: few, named, bounded, the same for every model; and what each
framework keeps in memory.

value = prior * prior_factors * exp(sum of the shifts on every level of LEVELS), within bounds.
`kb_seed/calibration/coefficients.toml` states the priors, `fitted.json` beside it the shifts of `make fit`,
`memory.toml` and `[memory]` of a framework the memory settings. An unknown framework or generation has no
shift of its own.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np

import kb_seed
from tools.errors import DataError
from tools.physics.arithmetic import number
from tools.physics.inputs import Array, Coefficients, RowKeys
from tools.physics.memory import MemorySettings
from tools.physics.traits import by_precision, memory_table

LEVELS = ("everywhere", "generation", "device", "framework", "stack")
"""A stack is a framework on a device generation."""
LevelShifts = Mapping[str, Mapping[str, float]]
"""Shifts of one constant, by level and key."""
Shifts = Mapping[str, LevelShifts]
PROPORTIONAL = (*("parameter_bytes", "state_ratio", "fragmentation_ratio", "runtime_bytes"),)
"""Each part of the peak is proportional to one of these memory settings."""


@dataclass(frozen=True)
class ConstantPrior:
    """Prior, bounds and how far each level may move the constant (standard deviations in log space)."""

    name: str
    prior: float
    low: float
    high: float
    spread: Mapping[str, float]
    meaning: str
    source: str
    prior_factors: Mapping[str, float]
    """On the prior, by "level:key"."""

    def log_value(self, keys: RowKeys, row: int, shifts: LevelShifts) -> float:
        """Prior, factors and shifts of one row, before the bounds."""
        total = np.log(self.prior)
        for level in LEVELS:
            key = keys.key(level, row)
            factor = self.prior_factors.get(f"{level}:{key}", 1.0)
            total += np.log(factor) + shifts.get(level, {}).get(key, 0.0)
        return float(total)

    def value(self, keys: RowKeys, row: int, shifts: LevelShifts) -> float:
        return float(np.clip(np.exp(self.log_value(keys, row, shifts)), self.low, self.high))


@cache
def constant_priors() -> tuple[ConstantPrior, ...]:
    """By name, from coefficients.toml."""
    table = tomllib.loads(kb_seed.folder("calibration").joinpath("coefficients.toml").read_text())
    names = {field.name for field in fields(Coefficients)}
    if set(table) != names:
        raise DataError(f"coefficients.toml and the model differ in {sorted(set(table) ^ names)}")
    priors = []
    for name in sorted(names):
        try:
            prior = ConstantPrior(name=name, **{"prior_factors": {}, **table[name]})
        except TypeError as error:
            raise DataError(f"coefficients.toml: {name}: {error}") from error
        if not 0 < prior.low <= prior.prior <= prior.high:  # zero has no logarithm to shift
            raise DataError(f"coefficients.toml: {name} needs 0 < low <= prior <= high")
        priors.append(prior)
    return tuple(priors)


def resolve(keys: RowKeys, shifts: Shifts) -> Coefficients:
    """The constants of each row; one row in `keys` gives scalars, which hold for any number of plans."""
    rows = range(len(keys.generation))
    columns = {}
    for prior in constant_priors():
        values = np.array([prior.value(keys, row, shifts.get(prior.name, {})) for row in rows])
        columns[prior.name] = values if len(values) > 1 else values[0]
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
    for d in constant_priors():
        prior, value = d.value(keys, 0, {}), d.value(keys, 0, shifts.get(d.name, {}))
        by_level = {
            level: shift
            for level in LEVELS
            if (shift := shifts.get(d.name, {}).get(level, {}).get(keys.key(level, 0), 0.0))
        }
        used.append(ConstantUse(d.name, value, prior, value / prior - 1.0, by_level, d.meaning, d.source))
    return used


def memory_settings(stacks: Sequence[str], precisions: Sequence[str]) -> MemorySettings:
    """One row per framework and precision; a single one gives scalars."""
    rows = [_settings(stack, precision) for stack, precision in zip(stacks, precisions, strict=True)]
    if len(rows) == 1:
        return rows[0]
    return MemorySettings(*(np.array([getattr(row, f.name) for row in rows]) for f in fields(MemorySettings)))


@cache
def _settings(stack: str, precision: str) -> MemorySettings:
    table = memory_table(stack)
    return MemorySettings(*(number(by_precision(table[f.name], precision)) for f in fields(MemorySettings)))


def scaled_memory(settings: MemorySettings, factor: Array) -> MemorySettings:
    """Under which every part of the peak is `factor` times as large."""
    return replace(settings, **{name: getattr(settings, name) * factor for name in PROPORTIONAL})
