"""Plans are decided about, measured and learned from.

`approve` is a person's or a policy's decision, and a node of its own: what precedes an interrupt is repeated
on resume. `trial` measures today's plan first, then the proposal that was approved, each compared fairly.
`learn` keeps outcomes as cases: proposals are hypotheses, and a trial confirms or refutes its plan.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from langgraph.types import interrupt
from pydantic import JsonValue

from graph import tools, tuning
from graph.context import NodeServices
from graph.nodes.report import SHOWN
from graph.report import Decision, PendingDecision, WaitingProposal
from graph.request import parse_decision
from graph.rules import Rules
from graph.state import Learnt, State, TrialRecord, plain
from graph.tuning import (
    baseline_of,
    budget_of,
    calibration_data,
    fastest,
    first_open_rank,
    has_current_search,
    measured,
    outcome_in_words,
    reference_of,
    step_time_s,
)
from tools.errors import InputError
from tools.kb import KnowledgeError
from tools.recommend.report import Proposal
from tools.scenario import Plan
from tools.trials.gate import compare
from tools.trials.order import TrialOrder, trial_key
from tools.trials.steering import OUT_OF_MEMORY, SAME_PROGRAM


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
    record = _compare(services, record, before)
    record = record.model_copy(update={"says": outcome_in_words(record)})
    services.log.emit("trial", **record.model_dump(mode="json", include=SHOWN))
    return record


def _compare(services: NodeServices, trial: TrialRecord, before: Sequence[TrialRecord]) -> TrialRecord:
    """With the baseline; if that failed, with the first plan measured, and the gain stays unknown."""
    reference = reference_of(before)
    if trial.status != "measured" or (reference is None and trial.role != "baseline"):
        return trial
    compared = services.compute(compare, reference or trial, trial)
    if compared.refusals:
        return trial.model_copy(update={"refusals": compared.refusals, "status": "refused"})
    is_gain_known = reference is None or reference.role == "baseline"
    return trial.model_copy(update=dict(compared)) if is_gain_known else trial


POLICY = "policy"


def approve(state: State, services: NodeServices) -> State:
    if state["session"].approval == POLICY:
        decision = _by_policy(state, services)
    else:
        decision = parse_decision(interrupt(_question(state, services).model_dump(mode="json")))
    services.log.emit("decided", action=decision.action, by=decision.by, proposal=decision.proposal)
    return services.done(decisions=[decision])


def _question(state: State, services: NodeServices) -> PendingDecision:
    """With what a list of sessions shows of each, and what was measured so far."""
    return PendingDecision(
        bottleneck=state["analysis"].diagnosis.bottleneck,
        proposals=[WaitingProposal.model_validate(dict(entry)) for entry in state["search"].proposals],
        trials=[entry.public for entry in state.get("trials", [])],
        calibration=calibration_data(services.context, state),
    )


def _by_policy(state: State, services: NodeServices) -> Decision:
    """The search was held to the policy's fields, so that the first proposal keeps to them."""
    trials, policy = state.get("trials", []), state["session"].policy
    fields = ", ".join(policy.fields) if policy and policy.fields is not None else "any field"
    left = budget_of(services.context.limits, trials).left_device_hours
    return Decision(
        id=f"policy-{len(trials)}",
        action="approve",
        proposal=first_open_rank(state["search"].proposals) or 1,
        plan=None,
        by=POLICY,
        comment=f"the policy lets trials change {fields}; {left:.3g} device-hours are left",
    )


WORKLOAD = ("model", "cluster", "training", "constraints")
"""What of a scenario a later reader needs; notes stay with the session."""
Case = dict[str, JsonValue]
"""In the shape of the seed's cases."""

ID_DIGITS = 16
PLANS_FAULT = (OUT_OF_MEMORY, *SAME_PROGRAM)


def learn(state: State, services: NodeServices) -> State:
    before = state.get("learnt")
    known = Learnt(
        case=before.case if before else None,
        trials=before.trials if before else {},
        decisions_seen=len(state.get("decisions", [])),
        trials_seen=len(state.get("trials", [])),
    )
    if not services.context.saves_cases:
        return services.done(learnt=known)
    try:
        return services.done(learnt=_keep_cases(state, known, services))
    except (InputError, KnowledgeError) as error:
        services.report_incident("not learnt", f"the outcome is reported, but could not be kept: {error}")
        return services.done(learnt=known)


def _keep_cases(state: State, known: Learnt, services: NodeServices) -> Learnt:
    """One case for each plan that was tried; without any, the plan that is proposed."""
    tenant, trials = state["session"].tenant, state.get("trials", [])
    kept = dict(known.trials)
    for number, trial in enumerate(trials):
        if trial.role == "candidate" and trial.status != "cancelled" and number not in kept:
            case = _trial_case(state, trial, number)
            kept[number] = services.run(tools.learn_case, case=case, tenant=tenant)
    named = known.case
    if not trials:
        named = named or services.run(tools.learn_case, case=_advice(state), tenant=tenant)
    if kept:
        named = kept[min(kept, key=lambda number: step_time_s(trials[number]))]
    return known.model_copy(update={"trials": kept, "case": named})


def _advice(state: State) -> Case:
    """The same advice on the same workload is one case, however often a platform asks."""
    proposal = _chosen(state)
    gain = proposal.model_dump(include={"speedup", "speedup_low", "speedup_high"}, exclude_none=True)
    case = _case(state) | {
        "after": plain(proposal.plan),
        "predicted": {"step_time_s": proposal.prediction.step_time_s, **gain},
        # The search's own words: what a model wrote stays with its session.
        "story": f"Predicted, not measured. {proposal.rationale}",
        "lesson": proposal.rationale,
        "author": Rules.name,
    }
    parts = [state["session"].tenant, *(case[name] for name in ("scenario", "before", "after", "predicted"))]
    digest = sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return {**case, "id": f"advice-{digest[:ID_DIGITS]}"}


def _case(state: State) -> Case:
    analysis, session, request = state["analysis"], state["session"], plain(state["request"])
    facts = analysis.facts
    return {
        "id": f"session-{session.id}".replace(".", "-"),
        "title": "{architecture} model on {num_devices} {device}, {framework}".format_map(facts),
        "status": "hypothesis",
        "model": state["request"].model.name or "unnamed",
        **{name: facts[name] for name in ("architecture", "device", "num_devices", "framework")},
        "bottleneck": analysis.diagnosis.bottleneck,
        "scenario": {name: request[name] for name in WORKLOAD if name in request},
        "before": plain(session.plan) or {},
        "facts": {f"{fact.source}: {fact.name}": plain(fact.value) for fact in state.get("facts", [])},
        "sources": [{"title": "a session of this installation", "where": session.id}],
    }


def _trial_case(state: State, trial: TrialRecord, number: int) -> Case:
    """What was predicted before the trial, what it measured, and what that says about the plan."""
    case = _case(state) | {
        "after": plain(trial.plan),
        "predicted": {"step_time_s": trial.predicted.step_time_s},
        "status": _verdict(trial),
        "story": f"Trial {trial.key} of {trial.summary}. {trial.says[:1].upper()}{trial.says[1:]}.",
        "lesson": f"{trial.summary}: {trial.says}",
        "author": "trial",
    }
    if trial.status == "measured":
        case["measured"] = _measured_fields(trial)
    return {**case, "id": f"{case['id']}-trial-{number}"}


def _verdict(trial: TrialRecord) -> str:
    """Confirmed if the plan is surely faster than the baseline, refuted if it is slower or at fault."""
    if trial.status != "measured":
        return "refuted" if _is_the_plans_fault(trial) else "hypothesis"
    if trial.speedup is None or (trial.speedup_low or 0.0) <= 1.0 <= (trial.speedup_high or 0.0):
        return "hypothesis"
    return "confirmed" if trial.speedup > 1.0 else "refuted"


def _is_the_plans_fault(trial: TrialRecord) -> bool:
    """And not the cluster's, which lost a node, did not start the job, or started it elsewhere."""
    at_fault = trial.failure is not None and trial.failure.kind in PLANS_FAULT
    return at_fault or any(refusal.entry == "losses" for refusal in trial.refusals)


def _measured_fields(trial: TrialRecord) -> Case:
    gain = {"speedup": trial.speedup} if trial.speedup is not None else {}
    step_s = trial.step_time_s
    return {"metric": "step time, s", "after": step_s, "step_time_s": step_s, **gain}


def _chosen(state: State) -> Proposal:
    """The proposal a person approved, else the first."""
    proposals, decisions = state["search"].proposals, state.get("decisions", [])
    rank = decisions[-1].proposal if decisions else 1
    return proposals[min(rank, len(proposals)) - 1]
