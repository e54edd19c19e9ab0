"""What a session's trials say about where it stands. Plain data in, plain data out; no arithmetic."""

from typing import Any

from graph.context import Limits
from graph.state import Data, State
from tools.trials.stopping import Budget

SEEN = "after_trials"
"""How many trials a part of the state knows of."""
PLAN_FOLLOWS = ("dp", "dp_shard", "schedule", "sequence_parallel")
"""Fields that follow from others: a policy that allows those allows these."""


def is_fresh(state: State, part: str) -> bool:
    """Whether a part of the state was made with all that is measured by now."""
    made: Any = state.get(part)
    return bool(made) and made.get(SEEN, 0) == len(state.get("trials", []))


def seen(state: State) -> Data:
    return {SEEN: len(state.get("trials", []))}


def baseline_of(trials: list[Data]) -> Data | None:
    """The trial of today's plan, whatever came of it."""
    return next((one for one in trials if one["role"] == "baseline"), None)


def measured(trials: list[Data]) -> list[Data]:
    """Those that may be compared."""
    return [one for one in trials if one["status"] == "measured"]


def reference_of(trials: list[Data]) -> Data | None:
    """What others are compared with: the baseline, or the first plan measured where that failed."""
    return next(iter(measured(trials)), None)


def fastest(trials: list[Data]) -> Data | None:
    return min(measured(trials), key=lambda one: one["step_time_s"], default=None)


def first_open_rank(proposals: list[Data]) -> int | None:
    """Of the best proposal that is not measured yet."""
    return next((one["rank"] for one in proposals if one["measured"] is None), None)


def budget_of(limits: Limits, trials: list[Data]) -> Budget:
    spent = sum(one["device_hours"] for one in trials)
    return Budget(limits.device_hours, limits.trials, spent, len(trials))


def is_over(state: State, limits: Limits) -> bool:
    """Whether no further trial is begun unless a person asks for it."""
    trials = state.get("trials", [])
    ended = any((one["failure"] or {}).get("kind") in ("cancelled", "no_budget") for one in trials)
    judged = is_fresh(state, "stopping") and state["stopping"]["stop"]
    return ended or bool(judged) or budget_of(limits, trials).spent is not None


def within_policy(state: State) -> Data:
    """The scenario, with every field fixed to today's value that the policy does not let trials change."""
    scenario: Data = state["reading"]["scenario"]
    policy, today = state["session"].get("policy"), state["session"]["plan"]
    if not policy or "fields" not in policy or today is None:
        return scenario
    free = {*policy["fields"], *PLAN_FOLLOWS}
    fixed = {name: value for name, value in today.items() if name not in free and value is not None}
    return {**scenario, "constraints": {**fixed, **(scenario.get("constraints") or {})}}
