"""What must hold of every prediction, whatever the formulas: sums, bounds, fit, monotonicity, and that the
scenario as it is stored gives the stored numbers again.

Each check can fail without the formulas being computed a second time by other code: a part that is counted
twice breaks a sum, a wrong sign breaks monotonicity, a field that storing loses breaks the reproduction.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from pydantic import JsonValue

from tools.model.calibration import Calibration, shipped_calibration
from tools.model.predict import Prediction, predict, resolve_recompute
from tools.physics.encode import encode, scenario_device
from tools.physics.memory import GIB
from tools.physics.step import step_terms
from tools.scenario.spec import Scenario

TOLERANCE = 1e-9
NEGLIGIBLE = 1e-12
"""Seconds or GiB that are a rounding error beside zero."""
LORA_SHARE = 4.0 / 6.0
"""Share of a full training's arithmetic: frozen weights need no gradient (Hu et al., arXiv 2106.09685)."""
BANDWIDTHS = ("scale_up_bandwidth", "scale_out_bandwidth")
"""Links only: faster memory also shortens the work that hides an exchange, so it has no such bound."""


@dataclass(frozen=True)
class Contradiction:
    """What does not hold: the field of a prediction, and why."""

    path: str
    message: str


def contradictions(
    scenario: Scenario, prediction: Prediction, calibration: Calibration | None = None
) -> list[Contradiction]:
    """All that speaks against a prediction of this scenario, whose plan is stated."""
    calibration = calibration or shipped_calibration()
    return [*_impossible(scenario, prediction, calibration), *_monotonicity(scenario, calibration)]


def _impossible(scenario: Scenario, p: Prediction, calibration: Calibration) -> Iterator[Contradiction]:
    """Parts add up and are not negative, an interval holds its prediction, nothing is faster than its
    arithmetic at the device's peak, and a plan fits if its peak does."""
    for path, parts, total in (
        ("step_time_s", p.breakdown_s, p.step_time_s),
        ("peak_memory_gib", p.memory_gib, p.peak_memory_gib),
    ):
        if not is_same(sum(parts.values()), total):
            yield Contradiction(path, f"stated {total}, its parts add up to {sum(parts.values())}")
        for name, part in parts.items():
            if not part >= -NEGLIGIBLE:  # NaN too
                yield Contradiction(path, f"{name} is {part}")
    if not p.step_time_low_s <= p.step_time_s <= p.step_time_high_s:
        yield Contradiction("step_time_s", f"{p.step_time_s} lies outside its interval")
    # the peak binds no cluster whose own runs correct its figures
    ideal = p.mfu * (LORA_SHARE if scenario.training.lora else 1.0)
    if calibration.cluster is None and not 0.0 < ideal <= 1.0:
        yield Contradiction("mfu", f"{p.mfu}: the step is faster than the device's peak allows")
    capacity_gib = scenario_device(scenario.cluster).memory_bytes / GIB
    fits = p.peak_memory_gib <= capacity_gib * (1.0 + TOLERANCE)
    # a run overrules what the peak says
    if (p.fits != fits and calibration.seen is None) or p.fits != (p.fit_probability >= 0.5 - TOLERANCE):
        peak = f"a peak of {p.peak_memory_gib:.2f} GiB of {capacity_gib:.2f}, likely by {p.fit_probability}"
        yield Contradiction("fits", f"stated {p.fits}, with {peak}")
    if not p.fits and p.bottleneck != "memory":
        yield Contradiction("bottleneck", f"{p.bottleneck}, though the plan does not fit")


def _monotonicity(scenario: Scenario, calibration: Calibration) -> Iterator[Contradiction]:
    """Twice a bandwidth is never slower, and twice the devices with twice the batch, sharded over groups of
    the same size, are never faster: no rank has less to do. On a torus a larger group may have more links."""
    x, keys = encode([scenario])
    constants = calibration.coefficients(keys)
    x = resolve_recompute(x, calibration.memory_settings(keys, [scenario.training.precision]))

    def step_s(**factors: float) -> float:
        changed = replace(x, **{name: getattr(x, name) * factor for name, factor in factors.items()})
        return float(step_terms(changed, constants).total)

    now_s = step_s()
    for name in BANDWIDTHS:
        if (faster_s := step_s(**{name: 2.0})) > now_s * (1.0 + TOLERANCE):
            yield Contradiction("step_time_s", f"{now_s} s, and {faster_s} s with twice the {name}")
    larger_s = now_s if x.torus_dimensions else step_s(devices=2.0, dp=2.0, batch=2.0)
    if larger_s < now_s * (1.0 - TOLERANCE):
        yield Contradiction("step_time_s", f"{now_s} s, and {larger_s} s on twice the devices")


def reproduced(scenarios: Sequence[Scenario], calibration: Calibration) -> list[Prediction]:
    """What the scenarios give if they are written down, read again and predicted anew."""
    stored = [Scenario.model_validate_json(scenario.model_dump_json()) for scenario in scenarios]
    return predict(stored, calibration)


@dataclass(frozen=True)
class CheckedFigure:
    """One number (or word) of a report beside what was computed for its place."""

    path: str
    stated: JsonValue
    computed: JsonValue

    @property
    def holds(self) -> bool:
        if isinstance(self.stated, float) and isinstance(self.computed, float):
            return is_same(self.stated, self.computed)
        return self.stated == self.computed


def compare(path: str, stated: JsonValue, computed: JsonValue) -> Iterator[CheckedFigure]:
    """Every leaf that was computed, beside what is stated in its place; and what a list states beyond."""
    if isinstance(computed, dict):
        given = stated if isinstance(stated, dict) else {}
        for name, part in computed.items():
            yield from compare(f"{path}.{name}", given.get(name), part)
    elif isinstance(computed, list):
        listed = stated if isinstance(stated, list) else []
        for index, (one, other) in enumerate(zip_longest(listed, computed)):
            yield from compare(f"{path}[{index}]", one, other)
    else:
        yield CheckedFigure(path, stated, computed)


def is_same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=NEGLIGIBLE)
