"""The trials of a report as rows: what was predicted before each, what was measured, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.report.text import seconds_alike, times

Data = Mapping[str, Any]
NOTHING = "–"
OUTCOMES = {
    "out_of_memory": "out of memory",
    "hang": "hung, ended at its limit",
    "communication_timeout": "a collective timed out",
    "node_down": "a node went down",
    "numerics": "loss not finite",
    "bad_configuration": "refused by the program",
    "wall_limit": "not done within its limit",
    "not_started": "not started in time",
    "no_budget": "not begun, no budget left",
    "cancelled": "cancelled",
    "unknown": "failed",
}


@dataclass(frozen=True)
class TrialRow:
    name: str
    plan: str
    predicted: str
    measured: str
    off: str
    """How far the prediction was from the measurement."""
    gain: str
    outcome: str
    evidence: Sequence[str]
    """Why it failed or was not compared; a job's own words among them."""

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.name, self.plan, self.predicted, self.measured, self.off, self.gain, self.outcome)


COLUMNS = ("trial", "plan", "predicted before", "measured", "prediction off by", "speed", "outcome")


def trial_rows(trials: Sequence[Data]) -> list[TrialRow]:
    return [_row(number, one) for number, one in enumerate(trials)]


def _row(number: int, trial: Data) -> TrialRow:
    step_s, predicted_s = trial.get("step_time_s"), trial["predicted"]["step_time_s"]
    return TrialRow(
        name="baseline" if trial["role"] == "baseline" else f"trial {number}",
        plan=trial["summary"],
        predicted=interval(predicted_s, _low_high(trial["predicted"])),
        measured=interval(step_s, trial["interval_s"]) if step_s else NOTHING,
        off=f"{predicted_s / step_s - 1:+.0%}" if step_s else NOTHING,
        gain=_gain(trial),
        outcome=_outcome(trial),
        evidence=_evidence(trial),
    )


def interval(middle_s: float, ends_s: Sequence[float]) -> str:
    (middle, low, high), unit = seconds_alike(middle_s, *ends_s)
    return f"{middle} {unit} ({low} to {high})"


def _low_high(prediction: Data) -> tuple[float, float]:
    return prediction["step_time_low_s"], prediction["step_time_high_s"]


def _gain(trial: Data) -> str:
    if trial["role"] == "baseline" or trial["speedup"] is None:
        return NOTHING
    return f"{times(trial['speedup'])} ({trial['speedup_low']:.2f} to {trial['speedup_high']:.2f})"


def _outcome(trial: Data) -> str:
    if trial["status"] == "refused":
        return "not comparable"
    if trial["status"] != "measured":
        return OUTCOMES.get(trial["failure"]["kind"], OUTCOMES["unknown"])
    runs = len(trial["runs"])
    return f"measured, {trial['steps']} steps" + (f" in {runs} runs" if runs > 1 else "")


def _evidence(trial: Data) -> list[str]:
    if trial["status"] == "refused":
        return [one["says"] for one in trial["refusals"]]
    return list(trial["failure"]["evidence"]) if trial["failure"] else []
