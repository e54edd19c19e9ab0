"""What the expert rules write where plans were measured: the measurement before any prediction.

Every number is taken from the payload, rounded; nothing is computed here.
"""

from collections.abc import Mapping
from typing import Any

from tools.recommend.span import alike, span

Payload = Mapping[str, Any]


def is_measured(payload: Payload) -> bool:
    """Whether the first proposal rests on a trial."""
    return bool(payload["proposals"] and payload["proposals"][0]["measured"])


def measured_verdict(payload: Payload) -> str:
    best, name = payload["proposals"][0], payload["baseline_name"]
    measured, spent = best["measured"], _counted(payload["trials_run"])
    stopped = f"{spent}; {payload['stopping']['says']}."
    if not best["changes"]:
        return f"Measured: no plan beats {name}, {_pace(measured)}. {stopped}"
    baseline = next((one for one in payload["trials"] if one["role"] == "baseline"), None)
    if measured["speedup"] is None or baseline is None:
        return f"Measured: {best['summary']} takes {_pace(measured)}; {name} could not be measured. {stopped}"
    gain = f"{measured['speedup']:.2f}x ({measured['speedup_low']:.2f} to {measured['speedup_high']:.2f})"
    before = f"{name} takes {alike(baseline['step_time_s'])[0]} s"
    return f"Measured: {best['summary']} takes {_pace(measured)}, {before}: {gain} as fast. {stopped}"


def measured_first_step(payload: Payload) -> str:
    best = payload["proposals"][0]
    if not best["changes"]:
        return "Stay with the plan that runs; a larger gain needs another lever than the plan."
    low, high = best["measured"]["interval_s"]
    return (
        f"Switch to proposal 1: its losses followed the baseline's step by step, and its median step was "
        f"{span(low, high)} s. Watch the loss for longer than a trial does."
    )


def _pace(measured: Payload) -> str:
    return f"{alike(measured['step_time_s'])[0]} s a step"


def _counted(plans: int) -> str:
    return "1 plan was tried" if plans == 1 else f"{plans} plans were tried"
