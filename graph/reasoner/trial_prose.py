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
    measured, why = best["measured"], payload["stopping"]["says"]
    stopped = f"{_counted(payload['trials_run'])}; {why}."
    if _is_alone(payload):
        return f"Measured: {name} takes {_pace(measured)}; no other plan was tried: {why}."
    if not best["changes"]:
        return f"Measured: no plan beats {name}, {_pace(measured)}. {stopped}"
    baseline = next((one for one in payload["trials"] if one["role"] == "baseline"), None)
    if measured["speedup"] is None or baseline is None:
        return f"Measured: {best['summary']} takes {_pace(measured)}; {name} could not be measured. {stopped}"
    gain = f"{measured['speedup']:.2f}x ({measured['speedup_low']:.2f} to {measured['speedup_high']:.2f})"
    before = f"{name} takes {alike(baseline['step_time_s'])[0]} s"
    return f"Measured: {best['summary']} takes {_pace(measured)}, {before}: {gain} as fast. {stopped}"


def measured_first_step(payload: Payload) -> str:
    best, other = payload["proposals"][0], next(iter(payload["proposals"][1:]), None)
    if _is_alone(payload) and other and other["speedup"]:
        gain = f"{other['speedup']:.2f}x ({other['speedup_low']:.2f} to {other['speedup_high']:.2f})"
        return f"Measure proposal 2: it is predicted at {gain} the speed of the plan that runs."
    if not best["changes"]:
        return "Stay with the plan that runs; a larger gain needs another lever than the plan."
    low, high = best["measured"]["interval_s"]
    return (
        f"Switch to proposal 1: its losses followed the baseline's step by step, and its median step was "
        f"{span(low, high)} s. Watch the loss for longer than a trial does."
    )


def _is_alone(payload: Payload) -> bool:
    """Whether the plan that runs was measured and nothing else: it has beaten nothing then."""
    return not payload["proposals"][0]["changes"] and all(
        one["role"] == "baseline" for one in payload["trials"]
    )


def _pace(measured: Payload) -> str:
    return f"{alike(measured['step_time_s'])[0]} s a step"


def _counted(plans: int) -> str:
    return "1 plan was tried" if plans == 1 else f"{plans} plans were tried"
