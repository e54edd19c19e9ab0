"""The proposal agent: searches every plan, asks knowledge and reasoner for more, scores all alike."""

from typing import Any

from graph.decisions import PLAN_ACTIONS
from graph.desk import Desk
from graph.knowledge import describe_situation, facets_of
from graph.reasoner.answers import Suggestions
from graph.reasoner.question import Question
from graph.state import Data, State


def proposal(state: State, desk: Desk) -> State:
    scenario = state["reading"]["scenario"]
    found = state.get("found") or {**desk.call("search_plans", scenario=scenario), "considered": []}
    decisions = state.get("decisions", [])
    plans = [one for one in decisions[state.get("handled", 0) :] if one["action"] in PLAN_ACTIONS]
    found = _with_engineers_plans(found, plans, scenario, desk)
    update: Data = {"found": found, "handled": len(decisions), "verification": {}}
    if "analysis" in state and not plans:
        update["knowledge"] = state.get("knowledge") or _knowledge(state, desk)
        update["found"] = _with_suggestions(state, found, update["knowledge"], desk)
    return desk.done(**update)


def _with_engineers_plans(found: Data, decisions: list[Data], scenario: Data, desk: Desk) -> Data:
    best = found["proposals"][0]
    scored = [
        {
            "origin": one["by"] or "engineer",
            "reason": one["comment"] or "",
            **desk.call(
                "score_plan",
                scenario=scenario,
                start=found["proposals"][min(one["proposal"], len(found["proposals"])) - 1]["plan"],
                fields=one["plan"],
                best=best,
            ),
        }
        for one in decisions
    ]
    return _joined(found, scored, desk)


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
    scenario, start = state["reading"]["scenario"], state["analysis"]["plan"]
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
            **desk.call(
                "score_plan",
                scenario=scenario,
                start=start,
                fields=one.plan.model_dump(exclude_none=True),
                best=found["proposals"][0],
            ),
        }
        for one in answer.suggestions
    ]


def _joined(found: Data, scored: list[Data], desk: Desk) -> Data:
    if not scored:
        return found
    proposals = desk.call("join_plans", proposals=found["proposals"], scored=scored)
    return {**found, "proposals": proposals, "considered": [*found["considered"], *scored]}
