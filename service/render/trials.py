"""Trials of a report as rows of a table: what was predicted before, what was measured, and the outcome."""

from collections.abc import Sequence
from typing import NamedTuple

from graph.report import Trial, failure_in_words
from service.render.text import counted, seconds_alike, times
from tools.recommend.report import Proposal

NOTHING = "–"
COLUMNS = ("trial", "plan", "predicted before", "measured", "prediction off by", "speed", "outcome")


class TrialRow(NamedTuple):
    name: str
    plan: str
    predicted: str
    measured: str
    off: str
    """How far the prediction was from the measurement."""
    gain: str
    outcome: str
    evidence: Sequence[str]
    """Why it failed or was not compared; may quote the job's own output."""

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.name, self.plan, self.predicted, self.measured, self.off, self.gain, self.outcome)


def trial_rows(trials: Sequence[Trial]) -> list[TrialRow]:
    rows = []
    for number, trial in enumerate(trials):
        step_s, predicted, is_baseline = trial.step_time_s, trial.predicted, trial.role == "baseline"
        evidence = list(trial.failure.evidence) if trial.failure else []
        if trial.status == "refused":
            outcome, evidence = "not comparable", [refusal.reason for refusal in trial.refusals]
        elif trial.status != "measured":
            outcome = failure_in_words(trial)
        else:
            runs = f" in {len(trial.runs)} runs" if len(trial.runs) > 1 else ""
            outcome = f"measured, {counted(trial.steps or 0, 'step')}{runs}"
        row = TrialRow(
            "baseline" if is_baseline else f"trial {number}",
            trial.summary,
            interval(predicted.step_time_s, (predicted.step_time_low_s, predicted.step_time_high_s)),
            interval(step_s, trial.interval_s or (step_s, step_s)) if step_s else NOTHING,
            f"{predicted.step_time_s / step_s - 1:+.0%}" if step_s else NOTHING,
            NOTHING if is_baseline else gain_text(trial) or NOTHING,
            outcome,
            evidence,
        )
        rows.append(row)
    return rows


def interval(middle_s: float, ends_s: tuple[float, float]) -> str:
    (middle, low, high), unit = seconds_alike(middle_s, *ends_s)
    return f"{middle} {unit} ({low} to {high})"


def gain_text(faster: Trial | Proposal) -> str | None:
    """How many times as fast, with the interval."""
    if faster.speedup is None or faster.speedup_low is None or faster.speedup_high is None:
        return None
    return f"{times(faster.speedup)} ({faster.speedup_low:.2f} to {faster.speedup_high:.2f})"
