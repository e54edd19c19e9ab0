"""Keeps outcomes as cases: proposals are hypotheses, and a trial confirms or refutes its plan."""

import json
from hashlib import sha256

from pydantic import JsonValue

from graph import tools
from graph.rules import Rules
from graph.services import NodeServices
from graph.state import Learnt, State, TrialRecord, plain
from graph.tuning import step_time_s
from tools.errors import InputError
from tools.kb import KnowledgeError
from tools.recommend.report import Proposal
from tools.trials.steering import OUT_OF_MEMORY, SAME_PROGRAM

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
        return services.done(learnt=_kept(state, known, services))
    except (InputError, KnowledgeError) as error:
        services.report_incident("not learnt", f"the outcome is reported, but could not be kept: {error}")
        return services.done(learnt=known)


def _kept(state: State, known: Learnt, services: NodeServices) -> Learnt:
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
        case["measured"] = _measured(trial)
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


def _measured(trial: TrialRecord) -> Case:
    gain = {"speedup": trial.speedup} if trial.speedup is not None else {}
    step_s = trial.step_time_s
    return {"metric": "step time, s", "after": step_s, "step_time_s": step_s, **gain}


def _chosen(state: State) -> Proposal:
    """The proposal a person approved, else the first."""
    proposals, decisions = state["search"].proposals, state.get("decisions", [])
    rank = decisions[-1].proposal if decisions else 1
    return proposals[min(rank, len(proposals)) - 1]
