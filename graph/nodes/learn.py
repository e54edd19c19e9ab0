"""Keeps the outcome as a case: a hypothesis until a measurement confirms or refutes it."""

from graph.desk import Desk
from graph.state import Data, State
from tools.errors import InputError
from tools.kb import KnowledgeError

WORKLOAD = ("model", "cluster", "training", "constraints")
"""What of a scenario a later reader needs; notes stay with the session."""


def learn(state: State, desk: Desk) -> State:
    seen = [len(state.get("decisions", [])), len(state.get("trials", []))]
    if not desk.context.learns:
        return desk.done(learnt={"seen": seen, "case": None})
    try:
        return desk.done(learnt={"seen": seen, "case": _kept(state, desk)})
    except (InputError, KnowledgeError) as error:
        desk.report_incident("not learnt", f"the outcome is reported, but could not be kept: {error}")
        return desk.done(learnt={"seen": seen, "case": None})


def _kept(state: State, desk: Desk) -> str:
    tenant, earlier = state["session"]["tenant"], state.get("learnt", {}).get("case")
    id: str = earlier or desk.call("learn_case", case=_case(state), tenant=tenant)["id"]
    if state.get("trials"):
        desk.call("mark_case", id=id, tenant=tenant, **_outcome(state))
    return id


def _case(state: State) -> Data:
    """In the shape of the seed's cases, with what was predicted."""
    facts, best = state["analysis"]["facts"], _chosen(state)
    return {
        "id": f"session-{state['session']['id']}".replace(".", "-"),
        "title": "{architecture} model on {num_devices} {device}, {framework}".format_map(facts),
        "status": "hypothesis",
        "model": state["request"]["model"].get("name") or "unnamed",
        **{name: facts[name] for name in ("architecture", "device", "num_devices", "framework")},
        "bottleneck": state["analysis"]["diagnosis"]["bottleneck"],
        "scenario": {name: part for name, part in state["request"].items() if name in WORKLOAD},
        "before": state["session"]["plan"] or {},
        "after": best["plan"],
        "predicted": _predicted(best),
        "story": state["prose"]["verdict"],
        "lesson": best["rationale"],
        "sources": [{"title": "a session of this installation", "where": state["session"]["id"]}],
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


def _outcome(state: State) -> Data:
    """What the last trial said, and who let it run."""
    trial, decisions = state["trials"][-1], state.get("decisions", [])
    by = (decisions[-1]["by"] if decisions else None) or "asap"
    return {"status": trial["status"], "by": by, "reason": trial["says"], "measured": trial["measured"]}
