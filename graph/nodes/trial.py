"""Plans are decided about and measured.

`approve` is a person's or a policy's decision, and a node of its own: what precedes an interrupt is repeated
on resume. `trial` measures today's plan first, then the proposal that was approved, each compared fairly.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from langgraph.types import interrupt
from pydantic import JsonValue

from graph.context import Context
from graph.events import Decided, TrialEnded
from graph.report import PendingDecision, Trial, TrialPrediction, WaitingProposal, failure_in_words
from graph.request import Decision, parse_decision
from graph.services import NodeServices
from graph.state import State, TrialRecord
from graph.tuning import (
    baseline_of,
    budget_of,
    calibration_data,
    fastest,
    first_open_rank,
    is_current,
    measured,
    step_time_s,
)
from tools.model.evidence import TOLD
from tools.model.observations import with_seen
from tools.model.update import calibrate
from tools.recommend.words import format_same_decimals, short
from tools.scenario import Plan, Scenario
from tools.trials.gain import runs_of
from tools.trials.gate import compare
from tools.trials.order import TrialOrder, TrialReference, trial_key
from tools.trials.steering import default_plan, with_recompute

POLICY = "policy"


def approve(state: State, services: NodeServices) -> State:
    trials, proposals = state.get("trials", []), state["search"].proposals
    if state["session"].approval == POLICY:
        # The search was held to the policy's fields, so that the first proposal keeps to them.
        policy, left = state["session"].policy, budget_of(services.context.limits, trials).left_device_hours
        fields = ", ".join(policy.fields) if policy and policy.fields is not None else "any field"
        decision = Decision(
            id=f"policy-{len(trials)}",
            action="approve",
            proposal=first_open_rank(proposals) or 1,
            plan=None,
            by=POLICY,
            comment=f"the policy lets trials change {fields}; {left:.3g} device-hours are left",
        )
    else:
        pending = PendingDecision(
            bottleneck=state["analysis"].diagnosis.bottleneck,
            proposals=[WaitingProposal.model_validate(dict(entry)) for entry in proposals],
            headline=state["texts"].headline,
            trials=[entry.public for entry in trials],
            calibration=calibration_data(services.context, state),
        )
        decision = parse_decision(interrupt(pending.model_dump(mode="json")))
    services.log.emit(Decided(action=decision.action, by=decision.by, proposal=decision.proposal))
    return services.done(decisions=[decision])


@dataclass(frozen=True)
class DueTrial:
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
    if runs_of(state["scenario"], new):
        ended = [*known, *new]
        update["calibration"] = services.run(calibrate_model, scenario=state["scenario"], trials=ended)
    return services.done(**update, trials=new)


def _due(state: State, services: NodeServices) -> Iterator[DueTrial]:
    """The baseline if there is none yet; the chosen proposal if there are verified ones."""
    if baseline_of(state.get("trials", [])) is None:
        plan = services.run(first_plan, scenario=state["scenario"], plan=state["session"].plan)
        yield DueTrial("baseline", plan)
    if is_current(state, state.get("search")) and state.get("verification"):
        proposals = state["search"].proposals
        pending = state.get("decisions", [])[state.get("handled", 0) :]
        approved = [decision.proposal for decision in pending if decision.action == "approve"]
        rank = approved[-1] if approved else first_open_rank(proposals)
        chosen = proposals[:rank][-1] if rank else None
        if chosen and chosen.measured is None:
            yield DueTrial("candidate", chosen.plan, chosen.rank)


def first_plan(context: Context, scenario: Scenario, plan: Plan | None) -> Plan:
    """What is measured first: today's plan, or the framework's default."""
    workload = context.workload(scenario)
    return with_recompute(workload, plan or default_plan(workload))


def _measure(
    state: State, services: NodeServices, due: DueTrial, before: Sequence[TrialRecord]
) -> TrialRecord:
    scenario, start = state["scenario"], time.perf_counter()
    predicted = services.run(predict_plan, scenario=scenario, plan=due.plan)
    best = fastest(before)
    order = TrialOrder(
        key=trial_key(state["session"].id, len(before)),
        scenario=scenario,
        plan=due.plan,
        device_hours=budget_of(services.context.limits, before).left_device_hours,
        against=_reference(best) if best else None,
        template=state["session"].template,
    )
    result = services.measure(order)
    record = TrialRecord(
        **dict(result),
        refusals=[],
        role=due.role,
        rank=due.rank,
        plan=due.plan,
        predicted=predicted,
        # A job that another worker began, and died over, has run for longer than this one waited.
        waited_s=max(time.perf_counter() - start, result.seconds),
        summary=predicted.summary,
        message="",
    )
    # With the baseline; if that failed, with the first plan measured, and the gain stays unknown.
    reference = next(iter(measured(before)), None)
    if record.status == "measured" and (reference or record.role == "baseline"):
        compared = services.compute(compare, reference or record, record)
        if compared.refusals:
            record = record.model_copy(update={"refusals": compared.refusals, "status": "refused"})
        elif reference is None or reference.role == "baseline":
            record = record.model_copy(update=dict(compared))
            if record.paired and best and best.speedup and best.speedup_low and best.speedup_high:
                # Load was the same for both of a pair: less uncertain than two runs at different times.
                ends = {
                    "speedup_low": best.speedup_low / record.paired.high,
                    "speedup_high": best.speedup_high / record.paired.low,
                }
                record = record.model_copy(update=ends)
    record = record.model_copy(update={"message": outcome_in_words(record)})
    services.log.emit(
        TrialEnded(
            role=record.role,
            plan=record.summary,
            status=record.status,
            predicted_s=record.predicted.step_time_s,
            step_time_s=record.step_time_s,
            interval_s=record.interval_s,
            speedup=record.speedup,
            message=record.message,
        )
    )
    return record


def _reference(best: TrialRecord) -> TrialReference:
    spread = max(best.uncertainty or 0.0, best.noise or 0.0)
    return TrialReference(best.key, best.plan, step_time_s(best), spread)


def predict_plan(context: Context, scenario: Scenario, plan: Plan) -> TrialPrediction:
    """What the model predicts now, to be compared with what will be measured."""
    prediction = context.workload(scenario).predict([plan])[0]
    return TrialPrediction(
        summary=short(plan),
        step_time_s=prediction.step_time_s,
        step_time_low_s=prediction.step_time_low_s,
        step_time_high_s=prediction.step_time_high_s,
        peak_memory_gib=prediction.peak_memory_gib,
    )


def outcome_in_words(trial: Trial) -> str:
    if trial.status == "refused":
        return f"not compared: {trial.refusals[0].reason}"
    if trial.step_time_s is None or trial.interval_s is None:
        return f"it {failure_in_words(trial)}"
    middle, low, high = format_same_decimals(trial.step_time_s, *trial.interval_s)
    predicted = f"{trial.predicted.step_time_s:.3g} s were predicted before"
    is_compared = trial.role != "baseline" and trial.speedup is not None
    gain = f", {trial.speedup:.2f}x the baseline's speed" if is_compared else ""
    if trial.paired:
        times = "once" if trial.paired.pairs == 1 else f"{trial.paired.pairs} times"
        gain += f", run {times} in turn with the best plan so far because steps vary by {trial.noise:.0%}"
    return f"measured {middle} s per step ({low} to {high} s){gain}; {predicted}"


def calibrate_model(
    context: Context, scenario: Scenario, trials: Sequence[TrialRecord]
) -> dict[str, JsonValue]:
    """The cost model as the cluster's runs and all trials that ended make it: out of memory says something
    too."""
    base = None if context.runs else context.calibration
    learned = calibrate(context.runs, base, own=runs_of(scenario, trials)).calibration
    before = context.session_calibration.seen if context.session_calibration else None
    told = [run for run in before.runs if run.source in TOLD] if before else []
    return with_seen(learned, [*(learned.seen.runs if learned.seen else ()), *told]).to_data()
