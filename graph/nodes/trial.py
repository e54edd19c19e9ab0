"""Trials: today's plan first, then the proposal that was approved; each compared fairly, and learned from."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from graph.services import NodeServices
from graph.state import Data, State
from graph.tuning import (
    baseline_of,
    budget_of,
    fastest,
    first_open_rank,
    is_current,
    measured,
    outcome_in_words,
    reference_of,
)
from tools.trials.order import TrialOrder, trial_key

GAIN = ("speedup", "speedup_low", "speedup_high")
"""Over the baseline; unknown where that could not be measured."""


@dataclass(frozen=True)
class Due:
    """A plan to be measured, and the rank of the proposal it is."""

    role: str
    plan: Data
    rank: int | None = None


def trial(state: State, services: NodeServices) -> State:
    """Runs again after a crash: a trial that was launched is found by its key, never launched twice."""
    known, update = state.get("trials", []), {"handled": len(state.get("decisions", []))}
    new: list[Data] = []
    for due in _due(state, services):
        if spent := budget_of(services.context.limits, [*known, *new]).spent:
            services.report_incident("no trial", spent)
            break
        new.append(_measure(state, services, due, [*known, *new]))
        if due.role == "baseline":
            update |= _with_plan(state, due.plan)
        if new[-1]["status"] == "cancelled":
            break
    learned = measured([*known, *new])
    if measured(new):
        scenario = state["reading"]["scenario"]
        update["calibration"] = services.call("calibrate_model", scenario=scenario, trials=learned)
    return services.done(trials=new, **update)


def _due(state: State, services: NodeServices) -> Iterator[Due]:
    """The baseline where there is none yet; the chosen proposal where there are verified ones."""
    scenario, trials = state["reading"]["scenario"], state.get("trials", [])
    if baseline_of(trials) is None:
        plan = services.call("first_plan", scenario=scenario, plan=state["session"]["plan"])
        yield Due("baseline", plan)
    if is_current(state, "found") and state.get("verification"):
        proposals = state["found"]["proposals"]
        pending = state.get("decisions", [])[state.get("handled", 0) :]
        approved = [one["proposal"] for one in pending if one["action"] == "approve"]
        rank = approved[-1] if approved else first_open_rank(proposals)
        chosen = proposals[:rank][-1] if rank else None
        if chosen and chosen["measured"] is None:
            yield Due("candidate", chosen["plan"], chosen["rank"])


def _with_plan(state: State, plan: Data) -> Data:
    """Today's plan as it ran, with nothing left open; a cold start goes on from the framework's own."""
    reading, is_default = state["reading"], state["session"]["plan"] is None
    return {
        "session": {**state["session"], "plan": plan, "plan_is_default": is_default},
        "reading": {**reading, "scenario": {**reading["scenario"], "plan": plan}},
    }


def _measure(state: State, services: NodeServices, due: Due, before: list[Data]) -> Data:
    scenario, start = state["reading"]["scenario"], time.perf_counter()
    predicted = services.call("predict_plan", scenario=scenario, plan=due.plan)
    best = fastest(before)
    order = TrialOrder(
        key=trial_key(state["session"]["id"], len(before)),
        scenario=scenario,
        plan=due.plan,
        device_hours=budget_of(services.context.limits, before).left_device_hours,
        against_s=best["step_time_s"] if best else None,
        template=state["session"].get("template"),
    )
    result = services.measure(order)
    told = {**result, "role": due.role, "rank": due.rank, "plan": due.plan, "predicted": predicted}
    # A job that another worker began, and died over, has run for longer than this one waited.
    waited_s = max(time.perf_counter() - start, result["seconds"])
    told |= {"waited_s": waited_s, "summary": predicted["summary"]}
    told |= _compared(services, told, before)
    told["says"] = outcome_in_words(told)
    shown = ("role", "summary", "predicted", "status", "step_time_s", "interval_s", "speedup", "says")
    services.log.emit("trial", **{name: told.get(name) for name in shown})
    return told


def _compared(services: NodeServices, trial: Data, before: list[Data]) -> Data:
    """Beside the baseline, or where that failed beside the first plan that was measured."""
    reference = reference_of(before)
    if trial["status"] != "measured" or (reference is None and trial["role"] != "baseline"):
        return {"refusals": [], **dict.fromkeys(GAIN)}
    compared: Data = services.call("compare_trials", baseline=reference or trial, trial=trial)
    if compared["refusals"]:
        return {"status": "refused", **compared}
    is_gain = reference is None or reference["role"] == "baseline"
    return compared if is_gain else {**compared, **dict.fromkeys(GAIN)}
