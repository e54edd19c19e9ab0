"""Outcomes are kept as cases: proposals are hypotheses, and a trial confirms or refutes its plan."""

import json
from hashlib import sha256

from pydantic import JsonValue

from graph.context import Context
from graph.events import plain
from graph.rules import Rules
from graph.services import NodeServices
from graph.state import Learnt, State, TrialRecord
from graph.tuning import likely_s
from tools.errors import InputError
from tools.kb import KnowledgeError
from tools.kb.entries import Case
from tools.kb.ledger import ASAP
from tools.scenario.fields import build
from tools.trials.steering import OUT_OF_MEMORY, SAME_PROGRAM

WORKLOAD = ("model", "cluster", "training", "constraints")
"""What of a scenario a later reader needs; notes stay with the session."""
ID_DIGITS = 16
PLANS_FAULT = (OUT_OF_MEMORY, *SAME_PROGRAM)


def learn(state: State, services: NodeServices) -> State:
    """One case for each plan that was tried; without any, the plan that is proposed."""
    before, trials, tenant = state.get("learnt"), state.get("trials", []), state["session"].tenant
    known = Learnt(
        case=before.case if before else None,
        trials=before.trials if before else {},
        decisions_seen=len(state.get("decisions", [])),
        trials_seen=len(trials),
    )
    if not services.context.saves_cases:
        return services.done(learnt=known)
    kept, named = dict(known.trials), known.case
    try:
        for number, trial in enumerate(trials):
            if trial.role == "candidate" and trial.status != "cancelled" and number not in kept:
                case = _trial_case(state, trial, number)
                kept[number] = services.run(learn_case, case=case, tenant=tenant)
        if not trials:
            named = named or services.run(learn_case, case=_advice(state), tenant=tenant)
    except (InputError, KnowledgeError) as error:
        services.report_incident("not learnt", f"the outcome is reported, but could not be kept: {error}")
        return services.done(learnt=known)
    if kept:
        named = kept[min(kept, key=lambda number: likely_s(trials[number]))]
    return services.done(learnt=known.model_copy(update={"trials": kept, "case": named}))


def learn_case(context: Context, case: Case, tenant: str | None) -> str:
    """Keeps the outcome of a session in the knowledge base; the same id is kept once, as first written."""
    body = case.model_dump(mode="json", exclude_unset=True)
    known = context.knowledge.find(case.id, tenant)
    return (known or context.knowledge.add(body, by=ASAP, tenant=tenant)).id


def _advice(state: State) -> Case:
    """The same advice on the same workload is one case, however often a platform asks."""
    proposals, decisions = state["search"].proposals, state.get("decisions", [])
    proposal = proposals[min(decisions[-1].proposal if decisions else 1, len(proposals)) - 1]
    gain = proposal.model_dump(include={"speedup", "speedup_low", "speedup_high"}, exclude_none=True)
    case = _case(
        state,
        after=plain(proposal.plan),
        predicted={"step_time_s": proposal.prediction.step_time_s, **gain},
        # The search's own words: what a model wrote stays with its session.
        story=f"Predicted, not measured. {proposal.rationale}",
        lesson=proposal.rationale,
        author=Rules.name,
    )
    parts = [state["session"].tenant, case.scenario, case.before, case.after, case.predicted]
    digest = sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return case.model_copy(update={"id": f"advice-{digest[:ID_DIGITS]}"})


def _trial_case(state: State, trial: TrialRecord, number: int) -> Case:
    """What was predicted before the trial, what it measured, and what that says about the plan."""
    told: dict[str, JsonValue] = {}
    if trial.status == "measured":
        gain = {"speedup": trial.speedup} if trial.speedup is not None else {}
        took = {"after": trial.step_time_s, "step_time_s": trial.step_time_s}
        told["measured"] = {"metric": "step time, s", **took, **gain}
    case = _case(
        state,
        after=plain(trial.plan),
        predicted={"step_time_s": trial.predicted.step_time_s},
        status=_verdict(trial),
        story=f"Trial {trial.key} of {trial.summary}. {trial.message[:1].upper()}{trial.message[1:]}.",
        lesson=f"{trial.summary}: {trial.message}",
        author="trial",
        **told,
    )
    return case.model_copy(update={"id": f"{case.id}-trial-{number}"})


def _case(state: State, **told: JsonValue) -> Case:
    analysis, session, request = state["analysis"], state["session"], plain(state["request"])
    facts = analysis.facts
    common = {
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
    return build(Case, {**common, **told})


def _verdict(trial: TrialRecord) -> str:
    """Confirmed if the plan is surely faster than the baseline, refuted if it is slower or at fault.

    At fault is not the cluster, which lost a node, did not start the job, or started it elsewhere.
    """
    if trial.status != "measured":
        failed = trial.failure is not None and trial.failure.kind in PLANS_FAULT
        is_at_fault = failed or any(refusal.entry == "losses" for refusal in trial.refusals)
        return "refuted" if is_at_fault else "hypothesis"
    if trial.speedup is None or (trial.speedup_low or 0.0) <= 1.0 <= (trial.speedup_high or 0.0):
        return "hypothesis"
    return "confirmed" if trial.speedup > 1.0 else "refuted"
