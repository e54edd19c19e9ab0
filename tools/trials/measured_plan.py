"""A plan and what a step took under it: what the cost model is calibrated on."""

from collections.abc import Mapping
from dataclasses import dataclass

from tools.scenario import Plan


@dataclass(frozen=True)
class MeasuredPlan:
    plan: Plan
    """As it ran, with nothing left open."""
    step_time_s: float
    """The median over the measured steps."""
    noise: float
    """Robust spread of a step over its median: 0.05 means that steps differ by some 5%."""
    terms: Mapping[str, float] | None = None
    """Seconds of parts of the step, where a profile told them; named as in a prediction's breakdown_s."""
