"""The fair-comparison gate: two measurements are compared only if everything but the plan was the same."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from pydantic import JsonValue

from tools.launch.failures import printable
from tools.scenario.spec import Result

LOSS_TOLERANCE = {"fp32": 0.001}
"""Relative, by precision: sums in another order differ by rounding, which training slowly amplifies."""
LOW_PRECISION_TOLERANCE = 0.03
_SHOWN_CHARACTERS = 200


class Measured(Protocol):
    """A measured plan, with all that must be equal for a fair comparison."""

    @property
    def step_time_s(self) -> float | None: ...
    @property
    def interval_s(self) -> tuple[float, float] | None: ...
    @property
    def losses(self) -> Sequence[float]: ...
    @property
    def fingerprint(self) -> Mapping[str, JsonValue]: ...


class Refusal(Result):
    """One thing that was not the same in two runs."""

    entry: str
    baseline: str
    trial: str
    says: str


class Comparison(Result):
    """Why two measurements cannot be compared, or how many times as fast the trial's plan is."""

    refusals: list[Refusal]
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None


def compare(baseline: Measured, trial: Measured) -> Comparison:
    differences = refusals(baseline, trial)
    if differences or not (
        baseline.step_time_s and baseline.interval_s and trial.step_time_s and trial.interval_s
    ):
        return Comparison(refusals=differences)
    low, high = trial.interval_s
    baseline_low, baseline_high = baseline.interval_s
    return Comparison(
        refusals=[],
        speedup=baseline.step_time_s / trial.step_time_s,
        speedup_low=baseline_low / high if baseline is not trial else 1.0,
        speedup_high=baseline_high / low if baseline is not trial else 1.0,
    )


def refusals(baseline: Measured, trial: Measured) -> list[Refusal]:
    """Empty if the two may be compared."""
    expected = baseline.fingerprint
    tolerance = LOSS_TOLERANCE.get(str(expected.get("precision")), LOW_PRECISION_TOLERANCE)
    return [
        *_differences(expected, trial.fingerprint),
        *_losses_apart(baseline.losses, trial.losses, tolerance),
    ]


def _differences(baseline: Mapping[str, JsonValue], trial: Mapping[str, JsonValue]) -> Iterator[Refusal]:
    for entry in sorted({*baseline, *trial}):
        before, after = baseline.get(entry), trial.get(entry)
        if before != after or (entry in baseline) != (entry in trial):
            name, old, new = _format(entry), _format(before), _format(after)
            says = f"{name} was not the same: {old} in the baseline, {new} in the trial"
            yield Refusal(entry=name, baseline=old, trial=new, says=says)


def _losses_apart(before: Sequence[float], after: Sequence[float], tolerance: float) -> Iterator[Refusal]:
    if not before or len(before) != len(after):
        says = f"losses of {len(before)} and {len(after)} steps cannot be compared step by step"
        yield Refusal(entry="losses", baseline=f"{len(before)} steps", trial=f"{len(after)} steps", says=says)
        return
    for step, (expected, actual) in enumerate(zip(before, after, strict=True)):
        apart = abs(expected - actual) / max(abs(expected), abs(actual), 1e-12)
        if not apart <= tolerance:
            says = (
                f"the loss of step {step} is {actual:.5g} and the baseline's {expected:.5g}: "
                f"{apart:.2%} apart, and {tolerance:.1%} are allowed; this plan does not train the same model"
            )
            yield Refusal(entry="losses", baseline=f"{expected:.6g}", trial=f"{actual:.6g}", says=says)
            return


def _format(value: object) -> str:
    return printable("absent" if value is None else str(value), _SHOWN_CHARACTERS)
