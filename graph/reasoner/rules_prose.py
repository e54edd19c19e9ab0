"""What the expert rules write above the numbers: the verdict, the first step, what would change the answer.

Every number is taken from the payload, rounded; nothing is computed here.
"""

from collections.abc import Mapping
from typing import Any

from graph.reasoner.answers import Prose
from graph.reasoner.trial_prose import is_measured, measured_first_step, measured_verdict
from tools.recommend.span import alike

Payload = Mapping[str, Any]
MOST_CHANGES = 3
KEEP = (
    "Keep today's plan. Profile a few steps and send the traces: they show where the time goes that no plan "
    "changes."
)
KEEP_PROFILED = (
    "Keep today's plan. Take up the advice from the playbooks, one change at a time, and profile again after "
    "each."
)


def write(payload: Payload) -> Prose:
    told = is_measured(payload)
    return Prose(
        verdict=measured_verdict(payload) if told else _verdict(payload),
        first_step=measured_first_step(payload) if told else _first_step(payload),
        would_change=_would_change(payload),
        rationales=[one["rationale"] for one in payload["proposals"]],
    )


def _verdict(payload: Payload) -> str:
    best, baseline, diagnosis = payload["proposals"][0], payload["baseline"], payload["diagnosis"]
    if baseline is None:
        return f"Start with {best['summary']}: {_pace(best['prediction'])}. {_limited('It', diagnosis)}"
    if not baseline["fits"]:
        needs = f"it needs {baseline['peak_memory_gib']:.1f} GiB a device"
        return f"Today's plan does not fit: {needs}. {best['summary']} fits: {_pace(best['prediction'])}."
    today = f"{_today(baseline, diagnosis)} {_limited('It', diagnosis)}"
    if diagnosis["lever"]:
        return f"{today} {diagnosis['lever']}"
    gain = f"{best['speedup']:.2f}x (80% interval {best['speedup_low']:.2f} to {best['speedup_high']:.2f})"
    return f"{today} {best['summary']} is predicted to be {gain} as fast: {_pace(best['prediction'])}."


def _today(baseline: Payload, diagnosis: Payload) -> str:
    """What the step takes in the profile, where there is one; else what it is predicted to take."""
    took_s, predicted_s = (diagnosis.get("profile") or {}).get("step_time_s"), baseline["step_time_s"]
    if not took_s:
        return f"Today's step is predicted to take {alike(predicted_s)[0]} s."
    took, predicted = alike(took_s, predicted_s)
    holds = baseline["step_time_low_s"] <= took_s <= baseline["step_time_high_s"]
    doubt = "" if holds else ": predicted gains are less certain than they say"
    return f"Today's step takes {took} s in the profile, and {predicted} s by prediction{doubt}."


def _pace(prediction: Payload) -> str:
    return (
        f"{alike(prediction['step_time_s'])[0]} s a step, MFU {prediction['mfu']:.1%}, "
        f"{prediction['peak_memory_gib']:.1f} GiB a device"
    )


def _limited(subject: str, diagnosis: Payload) -> str:
    kind = diagnosis["bottleneck"]
    first = next(one["says"] for one in diagnosis["evidence"] if one["ref"] != "step_time_s")
    return f"{subject} is limited by {kind}: {first}."


def _first_step(payload: Payload) -> str:
    if payload["diagnosis"]["lever"]:
        return KEEP_PROFILED if payload["diagnosis"].get("profile") else KEEP
    best = payload["proposals"][0]
    prediction = best["prediction"]
    low, high = prediction["step_time_low_s"], prediction["step_time_high_s"]
    run = "Run proposal 1 on the same nodes, data and software as today, leave the first steps out"
    tell = f"the median step should lie between {' and '.join(alike(low, high))} s"
    if payload["baseline"] is None:
        start = "Run proposal 1 for a few dozen steps and leave the first ones out"
        return f"{start}: {tell}. Outside of it, send the traces."
    return f"{run}: {tell}. Outside of it the model misses something here: send the traces of both runs."


def _would_change(payload: Payload) -> str:
    best = payload["proposals"][0]["plan"]
    other = [one for one in payload["sensitivity"] if not one["stays"] and one["best"] != best]
    if not other:
        return "None of the other clusters looked at has another best plan."
    told = "; ".join(f"with {one['if']} {one['says']}" for one in other[:MOST_CHANGES])
    return f"{told[:1].upper()}{told[1:]}."
