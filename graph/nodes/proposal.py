"""The proposal agent: searches every plan, asks knowledge and reasoner for more, scores all alike."""

from collections.abc import Sequence

from graph import tools
from graph.answers import Question, Suggestions
from graph.report import Decision
from graph.request import MAX_PROPOSALS, PLAN_ACTIONS
from graph.services import NodeServices, describe_situation, facets_of
from graph.state import Knowledge, SessionSearch, State, plain
from graph.tuning import budget_of, has_current_search, measured, trials_seen, why_ended, within_policy
from tools.recommend.report import PlanFields, ScoredPlan
from tools.recommend.score import ranked
from tools.scenario import Plan


def proposal(state: State, services: NodeServices) -> State:
    decisions = state.get("decisions", [])
    plans = [one for one in decisions[state.get("handled", 0) :] if one.action in PLAN_ACTIONS]
    search = state["search"] if has_current_search(state) else _searched(state, services)
    search = _with_engineers_plans(search, plans, state, services)
    update = State(handled=len(decisions), verification=None)
    if "analysis" in state and search.proposals and not plans:
        update["knowledge"] = state.get("knowledge") or _knowledge(state, services)
        search = _with_suggestions(state, search, update["knowledge"], services)
    if state.get("trials"):
        search = _judged(state, search, update, services)
    return services.done(**update, search=search)


def _searched(state: State, services: NodeServices) -> SessionSearch:
    """Every plan that no trial has settled; submitted plans are scored again beside them."""
    trials = state.get("trials", [])
    search = services.run(tools.search_plans, scenario=within_policy(state), trials=trials)
    before = state["search"].considered if "search" in state else []
    again = [_scored_again(state, search, one, services) for one in before if one.by_person]
    return _joined(search, again, services)


def _scored_again(state: State, search: SessionSearch, one: ScoredPlan, services: NodeServices) -> ScoredPlan:
    if not isinstance(one.plan, Plan):
        return one
    origin = {"origin": one.origin, "reason": one.reason, "by_person": one.by_person}
    return _scored(state, search, one.plan, {}, services).model_copy(update=origin)


def _scored(
    state: State, search: SessionSearch, start: Plan, fields: PlanFields, services: NodeServices
) -> ScoredPlan:
    """A plan from elsewhere beside the best one."""
    return services.run(
        tools.score_plan,
        scenario=within_policy(state),
        start=start,
        fields=fields,
        best=search.ranked[0],
        trials=state.get("trials", []),
    )


def _with_engineers_plans(
    search: SessionSearch, decisions: Sequence[Decision], state: State, services: NodeServices
) -> SessionSearch:
    scored = []
    for one in decisions:
        start = search.ranked[: one.proposal][-1].plan
        origin = {"origin": one.by or "engineer", "reason": one.comment or "", "by_person": True}
        scored.append(_scored(state, search, start, one.plan or {}, services).model_copy(update=origin))
    return _joined(search, scored, services)


def _judged(state: State, search: SessionSearch, update: State, services: NodeServices) -> SessionSearch:
    """Whether another trial is worth it; if none is, what was measured comes first."""
    trials, limits = state["trials"], services.context.limits
    predictions = [one.prediction for one in search.proposals if one.measured is None]
    budget = budget_of(limits, trials)
    judged = services.run(tools.judge_trials, trials=trials, predictions=predictions, budget=budget)
    update["stopping"] = judged.model_copy(update={"trials_seen": trials_seen(state)})
    closed = judged.stop or why_ended(state, limits, services.context.clock()) is not None
    if not closed:
        return search.model_copy(update={"closed": False})
    done = services.run(tools.measured_proposals, scenario=state["scenario"], trials=measured(trials))
    rest = [one for one in search.proposals if all(one.plan != other.plan for other in done)]
    merged = [*done, *rest][:MAX_PROPOSALS] or search.settled
    return search.model_copy(update={"closed": True, "proposals": ranked(merged)})


def _knowledge(state: State, services: NodeServices) -> Knowledge:
    """Playbooks whose conditions hold, and what is nearest in meaning."""
    analysis = state["analysis"]
    return Knowledge(
        playbooks=services.run(tools.matching_playbooks, facts=analysis.facts),
        hits=services.run(
            tools.find_knowledge,
            query=describe_situation(analysis),
            facets=facets_of(analysis),
            tenant=state["session"].tenant,
        ),
    )


def _with_suggestions(
    state: State, search: SessionSearch, knowledge: Knowledge, services: NodeServices
) -> SessionSearch:
    """The reasoner's own plans; what is refused goes back to it once, with the reason."""
    first = _suggested(state, search, knowledge, [], services)
    refused = [one for one in first if not one.accepted]
    second = _suggested(state, search, knowledge, refused, services) if refused else []
    return _joined(search, [*first, *second], services)


def _suggested(
    state: State,
    search: SessionSearch,
    knowledge: Knowledge,
    refused: Sequence[ScoredPlan],
    services: NodeServices,
) -> list[ScoredPlan]:
    scenario, start, books = within_policy(state), state["analysis"].plan, knowledge.playbooks
    moves = services.run(tools.resolve_moves, scenario=scenario, plan=start, playbooks=books)
    payload = plain(
        {
            "scenario": scenario,
            "plan": start,
            "diagnosis": state["analysis"].diagnosis,
            "proposals": search.proposals,
            "playbooks": [
                {**plain(book), "resolved_moves": own} for book, own in zip(books, moves, strict=True)
            ],
            "hits": knowledge.hits,
            "refused": [{"plan": one.plan, "why": one.why} for one in refused],
        }
    )
    answer = services.ask(Question("suggest_plans", payload, Suggestions, services.lookups(state, search)))
    name = services.context.reasoner.name
    return [
        _scored(state, search, start, one.plan.model_dump(exclude_none=True), services).model_copy(
            update={"origin": one.origin or name, "reason": one.reason}
        )
        for one in answer.suggestions
    ]


def _joined(search: SessionSearch, scored: Sequence[ScoredPlan], services: NodeServices) -> SessionSearch:
    if not scored:
        return search
    proposals = services.run(tools.join_plans, proposals=search.proposals, scored=scored)
    considered = [*search.considered, *scored]
    return search.model_copy(update={"proposals": proposals, "considered": considered})
