"""What is watched of a night: each figure in a scale of its own, on which up is always worse.

Ratios are logarithms, so that a step has the same size at any level; parts of the step and the spread of
ranks count in shares of the step, so that a tiny part that doubles is not an alarm.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tools.nightly.night import Night
from tools.nightly.noise import middle

STEP_TIME, MFU, MEMORY, SPREAD = "step_time_s", "mfu", "peak_memory_bytes", "rank_spread_ratio"
TERM = "terms_s."
LEAST_SCATTER = 0.005
"""Nights of a quiet machine still differ by half a percent."""
LEAST_STEP_RATIO = 0.01


@dataclass(frozen=True)
class Figure:
    name: str
    label: str
    least: float
    """The least change worth telling, in the figure's scale."""
    to_scale: Callable[[float], float]
    from_scale: Callable[[float], float]
    is_ratio: bool = True
    """Whether a change reads as a ratio of the figure itself; else as a share of the step."""

    @property
    def is_headline(self) -> bool:
        """The others explain, or warn of something that costs no time yet."""
        return self.name == STEP_TIME

    def change_ratio(self, before: float, after: float) -> float:
        """Between two levels in this scale, as people read it: +0.05 is five percent (of the step) more."""
        if not self.is_ratio:
            return after - before
        return self.from_scale(after) / self.from_scale(before) - 1


@dataclass(frozen=True)
class Series:
    """A figure over the nights that have it."""

    figure: Figure
    places: list[int]
    """Which nights have it."""
    values: list[float]
    """In the figure's scale."""
    floor: float

    def own_nights(self, places: Collection[int]) -> list[int]:
        """Nights of the workload in the count of this series."""
        return [night for night, place in enumerate(self.places) if place in places]


def list_series(nights: Sequence[Night], least_step_ratio: float = LEAST_STEP_RATIO) -> list[Series]:
    """The step time first. Nights are of one contract, oldest first."""
    step_s = middle([night.step_time_s for night in nights], 1.0)
    figures: list[tuple[Figure, Callable[[Night], float | None]]] = [
        (_ratio(STEP_TIME, "step time", least_step_ratio), lambda night: night.step_time_s),
        (_inverse(MFU, "MFU", least_step_ratio), lambda night: night.mfu),
        (_ratio(MEMORY, "peak memory", 0.02), lambda night: night.peak_memory_bytes),
        (_share(SPREAD, "spread of ranks", 0.02, 1.0), lambda night: night.rank_spread_ratio),
    ]
    terms = sorted({term for night in nights for term in night.terms_s})
    figures += [(_share(TERM + term, term, 0.01, step_s), _term(term)) for term in terms]
    found = [_series(figure, read, nights) for figure, read in figures]
    return [one for one in found if one.values]


def _term(name: str) -> Callable[[Night], float | None]:
    return lambda night: night.terms_s.get(name)


def _ratio(name: str, label: str, least_ratio: float) -> Figure:
    return Figure(name, label, math.log1p(least_ratio), math.log, math.exp)


def _inverse(name: str, label: str, least_ratio: float) -> Figure:
    """Less is worse."""
    return Figure(name, label, math.log1p(least_ratio), lambda x: -math.log(x), lambda y: math.exp(-y))


def _share(name: str, label: str, least: float, whole: float) -> Figure:
    return Figure(name, label, least, lambda x: x / whole, lambda y: y * whole, is_ratio=False)


def _series(figure: Figure, read: Callable[[Night], float | None], nights: Sequence[Night]) -> Series:
    places, values = [], []
    for place, night in enumerate(nights):
        value = read(night)
        if value is not None and (value > 0 or not figure.is_ratio):
            places.append(place)
            values.append(figure.to_scale(value))
    errors = [nights[place].step_error_ratio for place in places]
    return Series(figure, places, values, max(LEAST_SCATTER, middle(errors, 0.0)))
