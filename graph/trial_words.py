"""What came of a trial, in one sentence of its figures; a job's own words are evidence and stay there."""

from graph.state import Data
from tools.recommend.span import alike

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
    middle, low, high = alike(trial["step_time_s"], *trial["interval_s"])
    pace = f"{middle} s a step ({low} to {high} s)"
    predicted = f"{trial['predicted']['step_time_s']:.3g} s were predicted before"
    gain = trial["speedup"]
    if trial["role"] == "baseline" or gain is None:
        return f"measured {pace}; {predicted}"
    return f"measured {pace}, {gain:.2f}x the baseline's speed; {predicted}"
