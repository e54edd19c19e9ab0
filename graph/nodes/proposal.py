"""The proposal agent: searches every plan, asks knowledge and reasoner for more, scores all alike."""

from dataclasses import asdict
from typing import Any

from graph.reasoner.answers import Question, Suggestions
from graph.request import MAX_PROPOSALS, PLAN_ACTIONS
from graph.services import NodeServices, describe_situation, facets_of
from graph.state import Data, State
from graph.tuning import budget_of, is_current, measured, seen, why_ended, within_policy


def proposal(state: State, services: NodeServices) -> State:
    decisions = state.get("decisions", [])
    plans = [one for one in decisions[state.get("handled", 0) :] if one["action"] in PLAN_ACTIONS]
    found = state["found"] if is_current(state, "found") else _searched(state, services)
    found = _with_engineers_plans(found, plans, state, services)
    update: Data = {"found": found, "handled": len(decisions), "verification": {}}
    if "analysis" in state and found["proposals"] and not plans:
        update["knowledge"] = state.get("knowledge") or _knowledge(state, services)
        update["found"] = _with_suggestions(state, found, update["knowledge"], services)
    if state.get("trials"):
        update |= _judged(state, update["found"], services)
    return services.done(**update)


def _searched(state: State, services: NodeServices) -> Data:
    """Every plan that no trial has settled; plans that people brought are scored again beside them."""
    trials = state.get("trials", [])
    found = services.call("search_plans", scenario=within_policy(state), trials=trials)
    brought = [one for one in state.get("found", {}).get("considered", []) if one.get("by_person")]
    found |= {"considered": [], **seen(state)}
    again = [{**one, **_scored(state, found, one["plan"], {}, services)} for one in brought]
    return _joined(found, again, services)


def _scored(state: State, found: Data, start: Data, fields: Data, services: NodeServices) -> Data:
    """A plan from elsewhere beside the best one."""
    trials, best = state.get("trials", []), _ranked(found)[0]
    scored: Data = services.call(
        "score_plan", scenario=within_policy(state), start=start, fields=fields, best=best, trials=trials
    )
    return scored


def _ranked(found: Data) -> list[Data]:
    """The proposals, or where trials have left none, what they settled."""
    return list(found["proposals"] or found["settled"])


def _with_engineers_plans(found: Data, decisions: list[Data], state: State, services: NodeServices) -> Data:
    scored = []
    for one in decisions:
        start = _ranked(found)[: one["proposal"]][-1]["plan"]
        told = {"origin": one["by"] or "engineer", "reason": one["comment"] or "", "by_person": True}
        scored.append({**told, **_scored(state, found, start, one["plan"], services)})
    return _joined(found, scored, services)


def _judged(state: State, found: Data, services: NodeServices) -> Data:
    """Whether another trial is worth it; where none is, what was measured comes first."""
    trials, scenario = state["trials"], state["reading"]["scenario"]
    predictions = [one["prediction"] for one in found["proposals"] if one["measured"] is None]
    budget = asdict(budget_of(services.context.limits, trials))
    judged = services.call("judge_trials", trials=trials, predictions=predictions, budget=budget)
    is_closed = (
        judged["stop"] or why_ended(state, services.context.limits, services.context.clock()) is not None
    )
    if is_closed:
        done = services.call("measured_proposals", scenario=scenario, trials=measured(trials))
        rest = [one for one in found["proposals"] if all(one["plan"] != other["plan"] for other in done)]
        merged = [*done, *rest][:MAX_PROPOSALS] or found["settled"]
        found = {**found, "proposals": [{**one, "rank": rank} for rank, one in enumerate(merged, start=1)]}
    found = {**found, "closed": is_closed}
    return {"found": found, "stopping": {**judged, **seen(state)}}


def _knowledge(state: State, services: NodeServices) -> Data:
    """Playbooks whose conditions hold, and what is nearest in meaning."""
    facts = state["analysis"]["facts"]
    playbooks = services.call("matching_playbooks", facts=facts)
    hits = services.call(
        "find_knowledge",
        query=describe_situation(state["analysis"]),
        facets=facets_of(state["analysis"]),
        tenant=state["session"]["tenant"],
    )
    return {"playbooks": playbooks, "hits": hits}


def _with_suggestions(state: State, found: Data, knowledge: Data, services: NodeServices) -> Data:
    """The reasoner's own plans; what is refused goes back to it once, with the reason."""
    first = _suggested(state, found, knowledge, [], services)
    refused = [one for one in first if not one["accepted"]]
    second = _suggested(state, found, knowledge, refused, services) if refused else []
    return _joined(found, [*first, *second], services)


def _suggested(
    state: State, found: Data, knowledge: Data, refused: list[Data], services: NodeServices
) -> list[Data]:
    scenario, start = within_policy(state), state["analysis"]["plan"]
    books: list[Any] = services.call(
        "resolve_moves", scenario=scenario, plan=start, playbooks=knowledge["playbooks"]
    )
    payload = {
        "scenario": scenario,
        "plan": start,
        "diagnosis": state["analysis"]["diagnosis"],
        "proposals": found["proposals"],
        "playbooks": books,
        "hits": knowledge["hits"],
        "refused": [{"plan": one["plan"], "why": one["why"]} for one in refused],
    }
    answer = services.ask(Question("suggest_plans", payload, Suggestions, services.lookups(state, found)))
    return [
        {
            "origin": one.origin or services.context.reasoner.name,
            "reason": one.reason,
            **_scored(state, found, start, one.plan.model_dump(exclude_none=True), services),
        }
        for one in answer.suggestions
    ]


def _joined(found: Data, scored: list[Data], services: NodeServices) -> Data:
    if not scored:
        return found
    proposals = services.call("join_plans", proposals=found["proposals"], scored=scored)
    return {**found, "proposals": proposals, "considered": [*found["considered"], *scored]}
