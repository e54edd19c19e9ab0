"""The fair-comparison gate: two measurements are compared only if everything but the plan was the same."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tools.launch.failures import printable

LOSS_TOLERANCE = {"fp32": 0.001}
"""Relative, by precision: sums in another order differ by rounding, which training slowly amplifies."""
LOW_PRECISION_TOLERANCE = 0.03
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class Refusal:
    """One thing that was not the same."""

    entry: str
    baseline: str
    trial: str
    says: str


def compare(baseline: Mapping[str, Any], trial: Mapping[str, Any]) -> dict[str, Any]:
    """Of two outcomes of a runner: the refusals, or how many times as fast the trial's plan is."""
    found = refusals(baseline, trial)
    if found:
        gain = dict.fromkeys(("speedup", "speedup_low", "speedup_high"))
        return {"refusals": [asdict(one) for one in found], **gain}
    low, high = trial["interval_s"]
    base_low, base_high = baseline["interval_s"]
    return {
        "refusals": [],
        "speedup": baseline["step_time_s"] / trial["step_time_s"],
        "speedup_low": base_low / high if baseline is not trial else 1.0,
        "speedup_high": base_high / low if baseline is not trial else 1.0,
    }


def refusals(baseline: Mapping[str, Any], trial: Mapping[str, Any]) -> list[Refusal]:
    """Nothing where the two may be compared; each has a `fingerprint` and its `losses`."""
    expected = baseline["fingerprint"]
    tolerance = LOSS_TOLERANCE.get(str(expected.get("precision")), LOW_PRECISION_TOLERANCE)
    return [
        *_differences(expected, trial["fingerprint"]),
        *_losses_apart(baseline["losses"], trial["losses"], tolerance),
    ]


def _differences(baseline: Mapping[str, Any], trial: Mapping[str, Any]) -> Iterator[Refusal]:
    for entry in sorted({*baseline, *trial}):
        before, after = baseline.get(entry), trial.get(entry)
        if before != after or (entry in baseline) != (entry in trial):
            name, old, new = _shown(entry), _shown(before), _shown(after)
            says = f"{name} was not the same: {old} in the baseline, {new} in the trial"
            yield Refusal(name, old, new, says)


def _losses_apart(before: Sequence[float], after: Sequence[float], tolerance: float) -> Iterator[Refusal]:
    if not before or len(before) != len(after):
        says = f"losses of {len(before)} and {len(after)} steps cannot be compared step by step"
        yield Refusal("losses", f"{len(before)} steps", f"{len(after)} steps", says)
        return
    for step, (one, other) in enumerate(zip(before, after, strict=True)):
        apart = abs(one - other) / max(abs(one), abs(other), 1e-12)
        if not apart <= tolerance:
            says = (
                f"the loss of step {step} is {other:.5g} and the baseline's {one:.5g}: {apart:.2%} apart, "
                f"where {tolerance:.1%} are allowed; this plan does not train the same model"
            )
            yield Refusal("losses", f"{one:.6g}", f"{other:.6g}", says)
            return


def _shown(value: object) -> str:
    return printable("absent" if value is None else str(value), _SHOWN_CHARACTERS)
