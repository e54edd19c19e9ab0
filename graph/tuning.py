"""What a session's trials say about where it stands."""

import math
from collections.abc import Sequence

from pydantic import JsonValue

from graph.context import Context, Limits
from graph.report import Trial
from graph.state import Analysis, SessionSearch, State, TrialJudgement, TrialRecord
from tools.model.intervals import SIGMAS
from tools.recommend.report import Proposal
from tools.recommend.why import is_today
from tools.scenario import Scenario
from tools.scenario.spec import PlanValue
from tools.trials.gain import TrialBudget
from tools.trials.gate import SIGMAS_95

PLAN_FOLLOWS = ("dp", "dp_shard", "schedule", "sequence_parallel")
"""Fields that follow from others: a policy that allows those allows these."""


def is_current(state: State, part: Analysis | SessionSearch | TrialJudgement | None) -> bool:
    """Whether a part of the state was made with all that is measured by now."""
    return part is not None and part.trials_seen == len(state.get("trials", []))


def baseline_of(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """The trial of today's plan, whatever its outcome."""
    return next((trial for trial in trials if trial.role == "baseline"), None)


def measured(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Those that may be compared."""
    return [trial for trial in trials if trial.status == "measured"]


def fastest(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    return min(measured(trials), key=likely_s, default=None)


def step_time_s(trial: Trial) -> float:
    return float("inf") if trial.step_time_s is None else trial.step_time_s


def likely_s(trial: Trial) -> float:
    """The measured step and what was predicted before it, each by its certainty: of many plans under noise
    the shortest measured is the luckiest. On a quiet cluster it is the measured step."""
    if trial.step_time_s is None or trial.interval_s is None:
        return step_time_s(trial)
    before = trial.predicted
    error = math.log(trial.interval_s[1] / trial.interval_s[0]) / 2 / SIGMAS_95
    prior = math.log(before.step_time_high_s / before.step_time_low_s) / 2 / SIGMAS
    share = error**2 / (error**2 + prior**2) if prior else 0.0
    return math.exp((1 - share) * math.log(trial.step_time_s) + share * math.log(before.step_time_s))


def first_open_rank(proposals: Sequence[Proposal]) -> int | None:
    """The rank of the best proposal that is not measured yet; today's plan has a trial of its own."""
    return next((plan.rank for plan in proposals if plan.measured is None and not is_today(plan)), None)


def budget_of(limits: Limits, trials: Sequence[TrialRecord]) -> TrialBudget:
    spent = sum(trial.device_hours for trial in trials)
    return TrialBudget(limits.device_hours, limits.trials, spent, len(trials))


def time_left_s(state: State, limits: Limits, now: float) -> float:
    """What is left of a session's time; its trials take their own."""
    waited_s = sum(trial.waited_s for trial in state.get("trials", []))
    return state["session"].started_at + limits.session_s + waited_s - now


def why_ended(state: State, limits: Limits, now: float) -> str | None:
    """Why no further trial is begun; None while one may be."""
    decisions, trials = state.get("decisions", []), state.get("trials", [])
    stopping = state.get("stopping")
    if stopping and is_current(state, stopping) and stopping.stop:
        return stopping.reason
    if decisions and decisions[-1].action == "reject":
        return f"{decisions[-1].by or 'a person'} wanted no further trial"
    if time_left_s(state, limits, now) < 0:
        return "the session's time was over"
    if spent := budget_of(limits, trials).spent:
        return spent
    is_broken = any(trial.failure and trial.failure.kind in ("cancelled", "no_budget") for trial in trials)
    return "a trial was not started or was ended" if is_broken else None


def within_policy(state: State) -> Scenario:
    """The scenario, with every field fixed to today's value that the policy does not let trials change."""
    scenario, policy, today = state["scenario"], state["session"].policy, state["session"].plan
    if policy is None or policy.fields is None or today is None:
        return scenario
    free = {*policy.fields, *PLAN_FOLLOWS}
    fixed: dict[str, PlanValue] = {
        name: value for name, value in today.model_dump().items() if name not in free and value is not None
    }
    return scenario.model_copy(update={"constraints": {**fixed, **scenario.constraints}})


def calibration_data(context: Context, state: State) -> dict[str, JsonValue] | None:
    """What the session predicts with, if that is not the shipped calibration."""
    return state.get("calibration") or (context.calibration.to_data() if context.calibration else None)
