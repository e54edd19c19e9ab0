"""Trials: today's plan first, then the proposal that was approved; each compared fairly, and learned from."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from graph import tuning
from graph.nodes.verify import SHOWN
from graph.services import NodeServices
from graph.state import State, TrialRecord
from graph.tuning import (
    baseline_of,
    budget_of,
    fastest,
    first_open_rank,
    has_current_search,
    measured,
    outcome_in_words,
    reference_of,
)
from tools.scenario import Plan
from tools.trials.order import TrialOrder, trial_key


@dataclass(frozen=True)
class Due:
    """A plan to be measured, and the rank of the proposal it is."""

    role: Literal["baseline", "candidate"]
    plan: Plan
    rank: int | None = None


def trial(state: State, services: NodeServices) -> State:
    """Runs again after a crash: a trial that was launched is found by its key, never launched twice."""
    known, update = state.get("trials", []), State(handled=len(state.get("decisions", [])))
    new: list[TrialRecord] = []
    for due in _due(state, services):
        if spent := budget_of(services.context.limits, [*known, *new]).spent:
            services.report_incident("no trial", spent)
            break
        new.append(_measure(state, services, due, [*known, *new]))
        if due.role == "baseline":
            # Today's plan as it ran, with nothing left open; a cold start goes on from the framework's own.
            is_default = state["session"].plan is None
            changed = {"plan": due.plan, "plan_is_default": is_default}
            update["session"] = state["session"].model_copy(update=changed)
            update["scenario"] = state["scenario"].model_copy(update={"plan": due.plan})
        if new[-1].status == "cancelled":
            break
    if measured(new):
        comparable = measured([*known, *new])
        update["calibration"] = services.run(
            tuning.calibrate_model, scenario=state["scenario"], trials=comparable
        )
    return services.done(**update, trials=new)


def _due(state: State, services: NodeServices) -> Iterator[Due]:
    """The baseline if there is none yet; the chosen proposal if there are verified ones."""
    if baseline_of(state.get("trials", [])) is None:
        plan = services.run(tuning.first_plan, scenario=state["scenario"], plan=state["session"].plan)
        yield Due("baseline", plan)
    if has_current_search(state) and state.get("verification"):
        proposals = state["search"].proposals
        pending = state.get("decisions", [])[state.get("handled", 0) :]
        approved = [decision.proposal for decision in pending if decision.action == "approve"]
        rank = approved[-1] if approved else first_open_rank(proposals)
        chosen = proposals[:rank][-1] if rank else None
        if chosen and chosen.measured is None:
            yield Due("candidate", chosen.plan, chosen.rank)


def _measure(state: State, services: NodeServices, due: Due, before: Sequence[TrialRecord]) -> TrialRecord:
    scenario, start = state["scenario"], time.perf_counter()
    predicted = services.run(tuning.predict_plan, scenario=scenario, plan=due.plan)
    best = fastest(before)
    order = TrialOrder(
        key=trial_key(state["session"].id, len(before)),
        scenario=scenario,
        plan=due.plan,
        device_hours=budget_of(services.context.limits, before).left_device_hours,
        against_s=best.step_time_s if best else None,
        template=state["session"].template,
    )
    result = services.measure(order)
    # A job that another worker began, and died over, has run for longer than this one waited.
    waited_s = max(time.perf_counter() - start, result.seconds)
    record = TrialRecord(
        **dict(result),
        refusals=[],
        role=due.role,
        rank=due.rank,
        plan=due.plan,
        predicted=predicted,
        waited_s=waited_s,
        summary=predicted.summary,
        says="",
    )
    record = _compared(services, record, before)
    record = record.model_copy(update={"says": outcome_in_words(record)})
    services.log.emit("trial", **record.model_dump(mode="json", include=SHOWN))
    return record


def _compared(services: NodeServices, trial: TrialRecord, before: Sequence[TrialRecord]) -> TrialRecord:
    """With the baseline; if that failed, with the first plan measured, and the gain stays unknown."""
    reference = reference_of(before)
    if trial.status != "measured" or (reference is None and trial.role != "baseline"):
        return trial
    compared = services.run(tuning.compare_trials, baseline=reference or trial, trial=trial)
    if compared.refusals:
        return trial.model_copy(update={"refusals": compared.refusals, "status": "refused"})
    is_gain_known = reference is None or reference.role == "baseline"
    return trial.model_copy(update=dict(compared)) if is_gain_known else trial
