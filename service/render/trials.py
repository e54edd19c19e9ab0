"""Trials of a report as rows of a table: what was predicted before, what was measured, and the outcome."""

from collections.abc import Sequence
from dataclasses import dataclass

from graph.report import Trial, failure_in_words
from service.render.text import counted, seconds_alike, times
from tools.recommend.report import Proposal

NOTHING = "–"
COLUMNS = ("trial", "plan", "predicted before", "measured", "prediction off by", "speed", "outcome")


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
    """Why it failed or was not compared; may quote the job's own output."""

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.name, self.plan, self.predicted, self.measured, self.off, self.gain, self.outcome)


def trial_rows(trials: Sequence[Trial]) -> list[TrialRow]:
    return [_trial_row(number, trial) for number, trial in enumerate(trials)]


def _trial_row(number: int, trial: Trial) -> TrialRow:
    step_s, predicted = trial.step_time_s, trial.predicted
    before = interval(predicted.step_time_s, (predicted.step_time_low_s, predicted.step_time_high_s))
    return TrialRow(
        name="baseline" if trial.role == "baseline" else f"trial {number}",
        plan=trial.summary,
        predicted=before,
        measured=interval(step_s, trial.interval_s or (step_s, step_s)) if step_s else NOTHING,
        off=f"{predicted.step_time_s / step_s - 1:+.0%}" if step_s else NOTHING,
        gain=NOTHING if trial.role == "baseline" else gain_text(trial) or NOTHING,
        outcome=_outcome(trial),
        evidence=_evidence(trial),
    )


def interval(middle_s: float, ends_s: tuple[float, float]) -> str:
    (middle, low, high), unit = seconds_alike(middle_s, *ends_s)
    return f"{middle} {unit} ({low} to {high})"


def gain_text(faster: Trial | Proposal) -> str | None:
    """How many times as fast, with the interval."""
    if faster.speedup is None or faster.speedup_low is None or faster.speedup_high is None:
        return None
    return f"{times(faster.speedup)} ({faster.speedup_low:.2f} to {faster.speedup_high:.2f})"


def _outcome(trial: Trial) -> str:
    if trial.status == "refused":
        return "not comparable"
    if trial.status != "measured":
        return failure_in_words(trial)
    runs = len(trial.runs)
    return f"measured, {counted(trial.steps or 0, 'step')}" + (f" in {runs} runs" if runs > 1 else "")


def _evidence(trial: Trial) -> list[str]:
    if trial.status == "refused":
        return [refusal.says for refusal in trial.refusals]
    return list(trial.failure.evidence) if trial.failure else []
