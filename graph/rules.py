"""The expert rules: the reasoner without a language model, and the fallback of every other."""

from collections.abc import Callable, Mapping

from graph.answers import (
    A,
    Answer,
    Confirmation,
    Explanation,
    Finding,
    Payload,
    Prose,
    Question,
    Reading,
    Reply,
    SuggestedPlan,
    Suggestion,
    Suggestions,
    Worklist,
)
from tools.recommend.words import format_same_decimals, span


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
    baseline = next((trial for trial in payload["trials"] if trial["role"] == "baseline"), None)
    if measured["speedup"] is None or baseline is None:
        return f"Measured: {best['summary']} takes {_pace(measured)}; {name} could not be measured. {stopped}"
    gain = f"{measured['speedup']:.2f}x ({measured['speedup_low']:.2f} to {measured['speedup_high']:.2f})"
    before = f"{name} takes {format_same_decimals(baseline['step_time_s'])[0]} s"
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
        trial["role"] == "baseline" for trial in payload["trials"]
    )


def _pace(measured: Payload) -> str:
    return f"{format_same_decimals(measured['step_time_s'])[0]} s per step"


def _counted(plans: int) -> str:
    return "1 plan was tried" if plans == 1 else f"{plans} plans were tried"


MAX_CHANGES = 3
KEEP = (
    "Keep today's plan. Profile a few steps and send the traces: they show where the time goes that no plan "
    "changes."
)
KEEP_PROFILED = (
    "Keep today's plan. Take up the advice from the playbooks, one change at a time, and profile again after "
    "each."
)


def explain(payload: Payload) -> Prose:
    """What a person decided comes first; then what was measured, then what is predicted."""
    was_measured = is_measured(payload)
    verdict = measured_verdict(payload) if was_measured else _verdict(payload)
    decision = payload.get("decision")
    return Prose(
        verdict=f"{decision} {verdict}" if decision else verdict,
        first_step=measured_first_step(payload) if was_measured else _first_step(payload),
        would_change=_would_change(payload),
        rationales=[proposal["rationale"] for proposal in payload["proposals"]],
    )


def _chosen(payload: Payload) -> Payload:
    """The proposal that counts; the first if none does."""
    best: Payload = payload["proposals"][(payload.get("chosen") or 1) - 1]
    return best


def _verdict(payload: Payload) -> str:
    best, baseline, diagnosis = _chosen(payload), payload["baseline"], payload["diagnosis"]
    if baseline is None:
        return f"Start with {best['summary']}: {_speed(best['prediction'])}. {_limited('It', diagnosis)}"
    if not baseline["fits"]:
        needs = f"it needs {baseline['peak_memory_gib']:.1f} GiB per device"
        return f"Today's plan does not fit: {needs}. {best['summary']} fits: {_speed(best['prediction'])}."
    today = f"{_today(baseline, diagnosis)} {_limited('It', diagnosis)}"
    if payload.get("chosen", 1) is None:
        return today
    if diagnosis["lever"]:
        return f"{today} {diagnosis['lever']}"
    gain = f"{best['speedup']:.2f}x (80% interval {best['speedup_low']:.2f} to {best['speedup_high']:.2f})"
    return f"{today} {best['summary']} is predicted to be {gain} as fast: {_speed(best['prediction'])}."


def _today(baseline: Payload, diagnosis: Payload) -> str:
    """What the step takes by measurement, if there is one of this job; else what it is predicted to take."""
    took_s, predicted_s = (diagnosis.get("profile") or {}).get("step_time_s"), baseline["step_time_s"]
    if diagnosis.get("recalibrated"):
        return f"Today's step: {diagnosis['recalibrated']['says']}."
    if diagnosis.get("cause") == "trace_mismatch":
        predicted = format_same_decimals(predicted_s)[0]
        return f"The traces are not of this job. Today's step is predicted to take {predicted} s."
    if not took_s:
        return f"Today's step is predicted to take {format_same_decimals(predicted_s)[0]} s."
    took, predicted = format_same_decimals(took_s, predicted_s)
    holds = baseline["step_time_low_s"] <= took_s <= baseline["step_time_high_s"]
    doubt = "" if holds else ": predicted gains are less certain than they say"
    return f"Today's step takes {took} s in the profile, and {predicted} s by prediction{doubt}."


def _speed(prediction: Payload) -> str:
    return (
        f"{format_same_decimals(prediction['step_time_s'])[0]} s per step, MFU {prediction['mfu']:.1%}, "
        f"{prediction['peak_memory_gib']:.1f} GiB per device"
    )


def _limited(subject: str, diagnosis: Payload) -> str:
    kind = diagnosis["bottleneck"]
    first = next(evidence["says"] for evidence in diagnosis["evidence"] if evidence["ref"] != "step_time_s")
    return f"{subject} is limited by {kind}: {first}."


def _first_step(payload: Payload) -> str:
    if payload["diagnosis"]["lever"] or payload.get("chosen", 1) is None:
        return KEEP_PROFILED if payload["diagnosis"].get("profile") else KEEP
    best = _chosen(payload)
    prediction = best["prediction"]
    low, high = prediction["step_time_low_s"], prediction["step_time_high_s"]
    name = f"Run proposal {best['rank']}"
    run = f"{name} on the same nodes, data and software as today, leave the first steps out"
    tell = f"the median step should lie between {' and '.join(format_same_decimals(low, high))} s"
    if payload["baseline"] is None:
        start = f"{name} for a few dozen steps and leave the first ones out"
        return f"{start}: {tell}. Outside of it, send the traces."
    return f"{run}: {tell}. Outside of it the model misses something here: send the traces of both runs."


def _would_change(payload: Payload) -> str:
    best = payload["proposals"][0]["plan"]
    other = [case for case in payload["sensitivity"] if not case["stays"] and case["best"] != best]
    if not other:
        return "None of the other clusters looked at has another best plan."
    changes = "; ".join(f"with {case['if']} {case['says']}" for case in other[:MAX_CHANGES])
    return f"{changes[:1].upper()}{changes[1:]}."


NAME = "expert-rules"
MAX_SUGGESTIONS = 8


class Rules:
    """Answers every question; the only reasoner that never fails."""

    name = NAME

    def ask(self, question: Question[A]) -> Reply[A]:
        answer = ANSWERS[question.name](question.payload)
        if not isinstance(answer, question.answer):
            raise TypeError(f"the rules answer {question.name} with {type(answer).__name__}")
        return Reply(answer, NAME)


def read_notes(payload: Payload) -> Reading:
    """The deterministic reader reads notes before anybody is asked; the rules add nothing to it."""
    return Reading(statements=[])


def confirm_reading(payload: Payload) -> Confirmation:
    return Confirmation(verdict="unclear")


def revise_worklist(payload: Payload) -> Worklist:
    """The workflow's rules are the worklist: nothing is added to it."""
    return Worklist(items=[])


def find_cause(payload: Payload) -> Finding:
    """The default: a measured cause outranks a computed one; among equals the most expensive counts."""
    first = payload["competing"][0]
    source = "the largest share" if first["source"] == "model" else "measured, which outranks any prediction"
    references = [evidence["ref"] for evidence in first["evidence"]][:8]
    return Finding(cause=first["cause"], references=references, reason=f"{first['says']}: {source}")


def propose_plans(payload: Payload) -> Suggestions:
    """The runs and recipes of this device that are near, and the moves of playbooks whose conditions hold."""
    cases = [
        Suggestion(
            plan=SuggestedPlan.model_validate(fields), references=[reference], reason="a published run"
        )
        for reference, fields in payload["confirmed"]
    ]
    moves = [
        Suggestion(
            plan=SuggestedPlan.model_validate(fields),
            references=[f"playbook:{book['id']}"],
            reason=book["why"],
        )
        for book in payload["playbooks"]
        for fields in book["resolved_moves"]
    ]
    # More than a model may hand in: the rules' suggestions are code's.
    return Suggestions.model_construct(suggestions=[*cases, *moves][:MAX_SUGGESTIONS])


def answer_question(payload: Payload) -> Explanation:
    """What `graph/ask.py` worked out by rules before anybody was asked."""
    return Explanation(text=payload["by_rules"])


ANSWERS: Mapping[str, Callable[[Payload], Answer]] = {
    function.__name__: function
    for function in (
        read_notes, confirm_reading, revise_worklist, find_cause, propose_plans, explain, answer_question,
    )
}  # fmt: skip
