"""The cost model of one scenario while its constants are replaced one after the other by measured ones."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tools.cost.calibration import Calibration
from tools.cost.coefficients import Coefficients, definitions, resolve
from tools.cost.encode import encode
from tools.cost.evaluate import evaluate
from tools.cost.memory_settings import memory_settings
from tools.scenario import Scenario


@dataclass(frozen=True)
class MeasuredCoefficient:
    """One constant, within its bounds."""

    name: str
    value: float
    default: float
    source: str
    is_bounded: bool
    """The trace asks for a value beyond the constant's bounds."""


class ModelFit:
    """Holds the constants found so far; each is in force for those that are found after it."""

    def __init__(self, scenario: Scenario, calibration: Calibration) -> None:
        self.x, self.keys = encode([scenario])
        self.found: list[MeasuredCoefficient] = []
        self._settings = memory_settings(self.keys.framework, [scenario.training.precision])
        self._default = resolve(self.keys, calibration.shifts)
        self._now = self._default

    def take(self, name: str, value: float | None, source: str) -> None:
        """Replaces a constant; None is no measurement."""
        if value is None:
            return
        low, high = next((one.low, one.high) for one in definitions() if one.name == name)
        kept = float(np.clip(value, low, high))
        default = float(getattr(self._default, name))
        self.found.append(MeasuredCoefficient(name, kept, default, source, not low <= value <= high))
        self._now = self.with_value(name, kept)

    def value(self, name: str) -> float:
        """Of a constant, as it is by now."""
        return float(getattr(self._now, name))

    def with_value(self, name: str, value: float) -> Coefficients:
        """The constants so far, with another value for one of them."""
        return replace(self._now, **{name: np.asarray(value)})

    def term_s(self, term: str, name: str, value: float) -> float:
        """A term of the predicted step when one constant has this value."""
        costs = evaluate(self.x, self.with_value(name, value), self._settings)
        return float(getattr(costs.breakdown, term)[0])

    def solve(
        self, name: str, seconds: Callable[[float], float], wanted_s: float, *, is_rate: bool = False
    ) -> float | None:
        """The constant's value at which `seconds` of it is as wanted; None when it does not matter.

        `seconds` must be a line over the value, or over its inverse where the constant is a rate.
        """
        start = self.value(name)
        here_s = seconds(start)
        slope_s = seconds(start / 2 if is_rate else start * 2) - here_s
        if slope_s <= 0:
            return None
        times = max(1 + (wanted_s - here_s) / slope_s, 1e-9)
        return start / times if is_rate else start * times
