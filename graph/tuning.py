"""What a session's trials say about where it stands."""

from typing import Any

from graph.context import Limits
from graph.state import Data, State
from tools.recommend.words import format_same_decimals
from tools.trials.stopping import Budget

SEEN = "after_trials"
"""How many trials a part of the state knows of."""
PLAN_FOLLOWS = ("dp", "dp_shard", "schedule", "sequence_parallel")
"""Fields that follow from others: a policy that allows those allows these."""


def is_current(state: State, part: str) -> bool:
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


def time_left_s(state: State, limits: Limits, now: float) -> float:
    """Of what a session may take; its trials take their own time."""
    waited_s: float = sum(one["waited_s"] for one in state.get("trials", []))
    started: float = state["session"]["started_at"]
    return started + limits.session_s + waited_s - now


def why_ended(state: State, limits: Limits, now: float) -> str | None:
    """Why no further trial is begun; nothing while one may be."""
    decisions, trials = state.get("decisions", []), state.get("trials", [])
    if is_current(state, "stopping") and state["stopping"]["stop"]:
        return str(state["stopping"]["says"])
    if decisions and decisions[-1]["action"] == "reject":
        return f"{decisions[-1]['by'] or 'a person'} wanted no further trial"
    if time_left_s(state, limits, now) < 0:
        return "the session's time was over"
    return budget_of(limits, trials).spent or (
        "a trial was not begun or was ended" if _is_broken(trials) else None
    )


def _is_broken(trials: list[Data]) -> bool:
    return any((one["failure"] or {}).get("kind") in ("cancelled", "no_budget") for one in trials)


def within_policy(state: State) -> Data:
    """The scenario, with every field fixed to today's value that the policy does not let trials change."""
    scenario: Data = state["reading"]["scenario"]
    policy, today = state["session"].get("policy"), state["session"]["plan"]
    if not policy or "fields" not in policy or today is None:
        return scenario
    free = {*policy["fields"], *PLAN_FOLLOWS}
    fixed = {name: value for name, value in today.items() if name not in free and value is not None}
    return {**scenario, "constraints": {**fixed, **(scenario.get("constraints") or {})}}


def public_trial(trial: Data) -> Data:
    """Without what only the gate reads."""
    return {name: part for name, part in trial.items() if name not in ("losses", "fingerprint")}


FAILURES = {
    "out_of_memory": "ran out of memory",
    "hang": "stood still and was ended at its limit",
    "communication_timeout": "lost ranks in a collective that timed out",
    "node_down": "lost a node",
    "numerics": "left the finite numbers",
    "bad_configuration": "was refused by the training program",
    "cancelled": "was cancelled",
    "wall_limit": "did not end within its limit",
    "not_started": "was not started by the cluster in time",
    "no_budget": "was not begun: the budget does not allow it",
    "unknown": "failed for a reason that its logs do not tell",
}


def outcome_in_words(trial: Data) -> str:
    if trial["status"] == "refused":
        return f"not compared: {trial['refusals'][0]['says']}"
    if trial["status"] != "measured":
        return f"it {FAILURES.get(trial['failure']['kind'], FAILURES['unknown'])}"
    middle, low, high = format_same_decimals(trial["step_time_s"], *trial["interval_s"])
    pace = f"{middle} s per step ({low} to {high} s)"
    predicted = f"{trial['predicted']['step_time_s']:.3g} s were predicted before"
    gain = trial["speedup"]
    if trial["role"] == "baseline" or gain is None:
        return f"measured {pace}; {predicted}"
    return f"measured {pace}, {gain:.2f}x the baseline's speed; {predicted}"
