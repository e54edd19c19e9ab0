"""The fair-comparison gate: two measurements are compared only if everything but the plan was the same."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from pydantic import Field, JsonValue

from tools.launch.failures import printable
from tools.scenario.spec import ClosedModel

LOSS_TOLERANCE = {"fp32": 0.001}
"""Relative, by precision: sums in another order differ by rounding, which training slowly amplifies."""
LOW_PRECISION_TOLERANCE = 0.03
_SHOWN_CHARACTERS = 200
SIGMAS_95 = 1.96
"""Standard errors to either end of a 95% interval."""


class MeasuredTrial(Protocol):
    """A measured plan, with all that must be equal for a fair comparison."""

    @property
    def step_time_s(self) -> float | None: ...
    @property
    def interval_s(self) -> tuple[float, float] | None: ...
    @property
    def losses(self) -> Sequence[float]: ...
    @property
    def fingerprint(self) -> Mapping[str, JsonValue]: ...


class Refusal(ClosedModel):
    """One thing that was not the same in two runs."""

    entry: str
    baseline: str
    trial: str
    reason: str = Field(alias="says")


class TrialComparison(ClosedModel):
    """Why two measurements cannot be compared, or how many times as fast the trial's plan is."""

    refusals: list[Refusal]
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None


class PairedRatio(ClosedModel):
    """What a plan takes over what another took beside it, with its 95% interval: load on the cluster slows
    two runs that follow each other alike, and cancels in their ratio."""

    against: str
    """The key of the other plan's trial."""
    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def error(self) -> float:
        """Standard error of the ratio's logarithm."""
        return math.log(self.high / self.low) / 2 / SIGMAS_95


def compare(baseline: MeasuredTrial, trial: MeasuredTrial) -> TrialComparison:
    differences = list(refusals(baseline, trial))
    if differences or not (
        baseline.step_time_s and baseline.interval_s and trial.step_time_s and trial.interval_s
    ):
        return TrialComparison(refusals=differences)
    low, high = trial.interval_s
    baseline_low, baseline_high = baseline.interval_s
    return TrialComparison(
        refusals=[],
        speedup=baseline.step_time_s / trial.step_time_s,
        speedup_low=baseline_low / high if baseline is not trial else 1.0,
        speedup_high=baseline_high / low if baseline is not trial else 1.0,
    )


def refusals(baseline: MeasuredTrial, trial: MeasuredTrial) -> Iterator[Refusal]:
    """None if the two may be compared: each entry of the fingerprint that differs, then the losses."""
    expected, given = baseline.fingerprint, trial.fingerprint
    for entry in sorted({*expected, *given}):
        if expected.get(entry) != given.get(entry) or (entry in expected) != (entry in given):
            name, old, new = _shown(entry), _shown(expected.get(entry)), _shown(given.get(entry))
            reason = f"{name} was not the same: {old} in the baseline, {new} in the trial"
            yield Refusal(entry=name, baseline=old, trial=new, reason=reason)
    before, after = baseline.losses, trial.losses
    if not before or len(before) != len(after):
        reason = f"losses of {len(before)} and {len(after)} steps cannot be compared step by step"
        yield Refusal(
            entry="losses", baseline=f"{len(before)} steps", trial=f"{len(after)} steps", reason=reason
        )
        return
    tolerance = LOSS_TOLERANCE.get(str(expected.get("precision")), LOW_PRECISION_TOLERANCE)
    for step, (usual, loss) in enumerate(zip(before, after, strict=True)):
        apart = abs(usual - loss) / max(abs(usual), abs(loss), 1e-12)
        if not apart <= tolerance:
            reason = (
                f"the loss of step {step} is {loss:.5g} and the baseline's {usual:.5g}: "
                f"{apart:.2%} apart, and {tolerance:.1%} are allowed; this plan does not train the same model"
            )
            yield Refusal(entry="losses", baseline=f"{usual:.6g}", trial=f"{loss:.6g}", reason=reason)
            return


def _shown(value: object) -> str:
    return printable("absent" if value is None else str(value), _SHOWN_CHARACTERS)
