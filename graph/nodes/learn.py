"""Keeps outcomes as cases: proposals are hypotheses, and a trial confirms or refutes its plan."""

import json
from hashlib import sha256

from graph.services import NodeServices
from graph.state import Data, State
from tools.errors import InputError
from tools.kb import KnowledgeError
from tools.trials.steering import OUT_OF_MEMORY, SAME_PROGRAM

WORKLOAD = ("model", "cluster", "training", "constraints")
"""What of a scenario a later reader needs; notes stay with the session."""

ID_DIGITS = 16
PLANS_FAULT = (OUT_OF_MEMORY, *SAME_PROGRAM)


def learn(state: State, services: NodeServices) -> State:
    seen = [len(state.get("decisions", [])), len(state.get("trials", []))]
    known = {"case": None, "trials": {}, **state.get("learnt", {}), "seen": seen}
    if not services.context.saves_cases:
        return services.done(learnt=known)
    try:
        return services.done(learnt=_kept(state, known, services))
    except (InputError, KnowledgeError) as error:
        services.report_incident("not learnt", f"the outcome is reported, but could not be kept: {error}")
        return services.done(learnt=known)


def _kept(state: State, known: Data, services: NodeServices) -> Data:
    """One case for each plan that was tried; without any, the plan that is proposed."""
    tenant, trials = state["session"]["tenant"], state.get("trials", [])
    kept = dict(known["trials"])
    for number, trial in enumerate(trials):
        if trial["role"] == "candidate" and trial["status"] != "cancelled" and str(number) not in kept:
            case = _trial_case(state, trial, number)
            kept[str(number)] = services.call("learn_case", case=case, tenant=tenant)["id"]
    best = known["case"]
    if not trials:
        best = best or services.call("learn_case", case=_advice(state), tenant=tenant)["id"]
    return {**known, "trials": kept, "case": kept[_fastest(trials, kept)] if kept else best}


def _fastest(trials: list[Data], kept: Data) -> str:
    """Of the trials that were kept, the one whose case a report names."""
    return min(kept, key=lambda number: trials[int(number)].get("step_time_s", float("inf")))


def _advice(state: State) -> Data:
    """The same advice on the same workload is one case, however often a platform asks."""
    case = _case(state, _chosen(state))
    told = [
        state["session"]["tenant"],
        *(case[name] for name in ("scenario", "before", "after", "predicted")),
    ]
    digest = sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    return {**case, "id": f"advice-{digest[:ID_DIGITS]}"}


def _case(state: State, proposal: Data) -> Data:
    """In the shape of the seed's cases, with what was predicted."""
    facts = state["analysis"]["facts"]
    return {
        "id": f"session-{state['session']['id']}".replace(".", "-"),
        "title": "{architecture} model on {num_devices} {device}, {framework}".format_map(facts),
        "status": "hypothesis",
        "model": state["request"]["model"].get("name") or "unnamed",
        **{name: facts[name] for name in ("architecture", "device", "num_devices", "framework")},
        "bottleneck": state["analysis"]["diagnosis"]["bottleneck"],
        "scenario": {name: part for name, part in state["request"].items() if name in WORKLOAD},
        "before": state["session"]["plan"] or {},
        "after": proposal["plan"],
        "predicted": _predicted(proposal),
        "story": state["prose"]["verdict"],
        "lesson": proposal["rationale"],
        "sources": [{"title": "a session of this installation", "where": state["session"]["id"]}],
    }


def _trial_case(state: State, trial: Data, number: int) -> Data:
    """What was predicted before the trial, what it measured, and what that says about the plan."""
    proposal = {
        "plan": trial["plan"],
        "prediction": trial["predicted"],
        "rationale": f"{trial['summary']}: {trial['says']}",
        **dict.fromkeys(("speedup", "speedup_low", "speedup_high")),
    }
    case = _case(state, proposal)
    told = f"Trial {trial['key']} of {trial['summary']}. {trial['says'][:1].upper()}{trial['says'][1:]}."
    measured = {"measured": _measured(trial)} if trial["status"] == "measured" else {}
    verdict = {"status": _verdict(trial), "story": told, **measured}
    return {**case, **verdict, "id": f"{case['id']}-trial-{number}"}


def _verdict(trial: Data) -> str:
    """Confirmed where the plan is surely faster than the baseline, refuted where it is slower or at fault."""
    if trial["status"] != "measured":
        return "refuted" if _is_the_plans_fault(trial) else "hypothesis"
    if trial["speedup"] is None or trial["speedup_low"] <= 1.0 <= trial["speedup_high"]:
        return "hypothesis"
    return "confirmed" if trial["speedup"] > 1.0 else "refuted"


def _is_the_plans_fault(trial: Data) -> bool:
    """And not the cluster's, which lost a node, did not start the job, or started it elsewhere."""
    kind = (trial["failure"] or {}).get("kind")
    return kind in PLANS_FAULT or any(one["entry"] == "losses" for one in trial["refusals"])


def _measured(trial: Data) -> Data:
    gain = {"speedup": trial["speedup"]} if trial["speedup"] is not None else {}
    return {
        "metric": "step time, s",
        "after": trial["step_time_s"],
        "step_time_s": trial["step_time_s"],
        **gain,
    }


def _chosen(state: State) -> Data:
    """The proposal a person approved, else the first."""
    proposals, decisions = state["found"]["proposals"], state.get("decisions", [])
    rank = decisions[-1]["proposal"] if decisions else 1
    chosen: Data = proposals[min(rank, len(proposals)) - 1]
    return chosen


def _predicted(best: Data) -> Data:
    gain = {name: best[name] for name in ("speedup", "speedup_low", "speedup_high") if best[name] is not None}
    return {"step_time_s": best["prediction"]["step_time_s"], **gain}
