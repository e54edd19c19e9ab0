"""The proposal agent: searches every plan, asks knowledge and reasoner for more, scores all alike."""

from dataclasses import asdict
from typing import Any

from graph.reasoner.answers import Question, Suggestions
from graph.request import MOST_PROPOSALS, PLAN_ACTIONS
from graph.services import Desk, describe_situation, facets_of
from graph.state import Data, State
from graph.tuning import budget_of, is_fresh, measured, seen, why_ended, within_policy


def proposal(state: State, desk: Desk) -> State:
    decisions = state.get("decisions", [])
    plans = [one for one in decisions[state.get("handled", 0) :] if one["action"] in PLAN_ACTIONS]
    found = state["found"] if is_fresh(state, "found") else _searched(state, desk)
    found = _with_engineers_plans(found, plans, state, desk)
    update: Data = {"found": found, "handled": len(decisions), "verification": {}}
    if "analysis" in state and found["proposals"] and not plans:
        update["knowledge"] = state.get("knowledge") or _knowledge(state, desk)
        update["found"] = _with_suggestions(state, found, update["knowledge"], desk)
    if state.get("trials"):
        update |= _judged(state, update["found"], desk)
    return desk.done(**update)


def _searched(state: State, desk: Desk) -> Data:
    """Every plan that no trial has settled; plans that people brought are scored again beside them."""
    trials = state.get("trials", [])
    found = desk.call("search_plans", scenario=within_policy(state), trials=trials)
    brought = [one for one in state.get("found", {}).get("considered", []) if one.get("by_person")]
    found |= {"considered": [], **seen(state)}
    again = [{**one, **_scored(state, found, one["plan"], {}, desk)} for one in brought]
    return _joined(found, again, desk)


def _scored(state: State, found: Data, start: Data, fields: Data, desk: Desk) -> Data:
    """A plan from elsewhere beside the best one."""
    trials, best = state.get("trials", []), _ranked(found)[0]
    scored: Data = desk.call(
        "score_plan", scenario=within_policy(state), start=start, fields=fields, best=best, trials=trials
    )
    return scored


def _ranked(found: Data) -> list[Data]:
    """The proposals, or where trials have left none, what they settled."""
    return list(found["proposals"] or found["settled"])


def _with_engineers_plans(found: Data, decisions: list[Data], state: State, desk: Desk) -> Data:
    scored = []
    for one in decisions:
        start = _ranked(found)[: one["proposal"]][-1]["plan"]
        told = {"origin": one["by"] or "engineer", "reason": one["comment"] or "", "by_person": True}
        scored.append({**told, **_scored(state, found, start, one["plan"], desk)})
    return _joined(found, scored, desk)


def _judged(state: State, found: Data, desk: Desk) -> Data:
    """Whether another trial is worth it; where none is, what was measured comes first."""
    trials, scenario = state["trials"], state["reading"]["scenario"]
    predictions = [one["prediction"] for one in found["proposals"] if one["measured"] is None]
    budget = asdict(budget_of(desk.context.limits, trials))
    judged = desk.call("judge_trials", trials=trials, predictions=predictions, budget=budget)
    is_closed = judged["stop"] or why_ended(state, desk.context.limits, desk.context.clock()) is not None
    if is_closed:
        done = desk.call("measured_proposals", scenario=scenario, trials=measured(trials))
        rest = [one for one in found["proposals"] if all(one["plan"] != other["plan"] for other in done)]
        merged = [*done, *rest][:MOST_PROPOSALS] or found["settled"]
        found = {**found, "proposals": [{**one, "rank": rank} for rank, one in enumerate(merged, start=1)]}
    found = {**found, "closed": is_closed}
    return {"found": found, "stopping": {**judged, **seen(state)}}


def _knowledge(state: State, desk: Desk) -> Data:
    """Playbooks whose conditions hold, and what is nearest in meaning."""
    facts = state["analysis"]["facts"]
    playbooks = desk.call("matching_playbooks", facts=facts)
    hits = desk.call(
        "find_knowledge",
        query=describe_situation(state["analysis"]),
        facets=facets_of(state["analysis"]),
        tenant=state["session"]["tenant"],
    )
    return {"playbooks": playbooks, "hits": hits}


def _with_suggestions(state: State, found: Data, knowledge: Data, desk: Desk) -> Data:
    """The reasoner's own plans; what is refused goes back to it once, with the reason."""
    first = _suggested(state, found, knowledge, [], desk)
    refused = [one for one in first if not one["accepted"]]
    second = _suggested(state, found, knowledge, refused, desk) if refused else []
    return _joined(found, [*first, *second], desk)


def _suggested(state: State, found: Data, knowledge: Data, refused: list[Data], desk: Desk) -> list[Data]:
    scenario, start = within_policy(state), state["analysis"]["plan"]
    books: list[Any] = desk.call(
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
    answer = desk.ask(Question("suggest_plans", payload, Suggestions, desk.lookups(state, found)))
    return [
        {
            "origin": one.origin or desk.context.reasoner.name,
            "reason": one.reason,
            **_scored(state, found, start, one.plan.model_dump(exclude_none=True), desk),
        }
        for one in answer.suggestions
    ]


def _joined(found: Data, scored: list[Data], desk: Desk) -> Data:
    if not scored:
        return found
    proposals = desk.call("join_plans", proposals=found["proposals"], scored=scored)
    return {**found, "proposals": proposals, "considered": [*found["considered"], *scored]}
