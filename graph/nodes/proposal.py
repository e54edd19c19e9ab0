"""The proposal agent: searches every plan, asks for more, ranks with evidence that is checked."""

from collections.abc import Sequence

from pydantic import JsonValue

from graph import tools, tuning
from graph.answers import Question, Suggestion, Suggestions
from graph.context import NodeServices, describe_situation, facets_of
from graph.prompts import digest_of
from graph.report import Decision, PersonQuestion
from graph.request import MAX_PROPOSALS, PLAN_ACTIONS
from graph.rules import Rules
from graph.state import Knowledge, SessionSearch, State, WorkItem, plain
from graph.toolbox import PROPOSAL_TOOLS, Toolbox
from graph.tuning import budget_of, has_current_search, measured, trials_seen, why_ended, within_policy
from tools.kb.recipes import RecipeMatch
from tools.recommend.choose import FAMILY
from tools.recommend.measured import without_slower
from tools.recommend.report import Evidence, PlanFields, PlanSummary, Proposal, ScoredPlan
from tools.recommend.score import family_of, with_roles
from tools.recommend.situation import resolve_moves
from tools.recommend.words import short
from tools.scenario import Plan

MAX_CALLS = 10
"""Of tools, before the plans must be handed in."""


def proposal(state: State, services: NodeServices) -> State:
    decisions, item = state.get("decisions", []), state.get("item")
    plans = [decision for decision in decisions[state.get("handled", 0) :] if decision.action in PLAN_ACTIONS]
    update = State(handled=len(decisions), verification=None)
    search = state["search"] if has_current_search(state) else _search(state, services)
    if "search" not in state and state["notes"].accepted:
        search = _beside_the_notes(state, search, update, services)
        state = {**state, **update}
    search = _with_engineers_plans(search, plans, state, services)
    if item is not None:
        search = _for_item(item, state, search, services)
    elif "analysis" in state and search.proposals and not plans:
        update["knowledge"] = state.get("knowledge") or _knowledge(state, services)
        search = _with_suggestions(state, search, update["knowledge"], services)
    if state.get("trials"):
        search = _judge(state, search, update, services)
    elif "analysis" in state and (recalibrated := state["analysis"].diagnosis.recalibrated):
        search = _without_slower(search, recalibrated.measured_s)
    return services.done(**update, search=search)


def _search(state: State, services: NodeServices) -> SessionSearch:
    """Every plan that no trial has settled; submitted plans are scored again beside them."""
    trials = state.get("trials", [])
    search = services.run(tools.search_plans, scenario=within_policy(state), trials=trials)
    before = state["search"].considered if "search" in state else []
    again = [_score_again(state, search, plan, services) for plan in before if plan.by_person]
    return _join(state, search, again, services)


def _without_slower(search: SessionSearch, measured_s: float) -> SessionSearch:
    """No target is slower than the measured step, but for the plan that a person wants to compare."""
    own = [scored.plan for scored in search.considered if scored.by_person]
    faster = without_slower([entry for entry in search.proposals if entry.plan not in own], measured_s)
    plans = [*own, *(entry.plan for entry in faster)]
    kept = [entry for entry in search.proposals if entry.plan in plans]
    return search.model_copy(update={"proposals": with_roles(kept)})


def _beside_the_notes(
    state: State, search: SessionSearch, update: State, services: NodeServices
) -> SessionSearch:
    """The answer without the notes, to show beside; notes that leave only slower plans wait for a person."""
    request, notes = state["request"], state["notes"]
    plain_state: State = {**state, "scenario": request}
    without = services.run(tools.search_plans, scenario=within_policy(plain_state), trials=[])
    shown = [
        PlanSummary(
            summary=short(entry.plan), step_time_s=entry.prediction.step_time_s, speedup=entry.speedup
        )
        for entry in without.proposals
    ]
    update["notes"] = notes.model_copy(update={"without": shown})
    if not all(entry.speedup is not None and entry.speedup < 1 for entry in search.proposals):
        return search
    if all(entry.speedup is not None and entry.speedup < 1 for entry in without.proposals):
        return search
    fields = ", ".join(dict.fromkeys(entry.field for entry in notes.accepted))
    text = f"With what the notes say of {fields} every plan is slower than today's: shall they hold?"
    quotes = [entry.quote for entry in notes.accepted]
    refused = [entry.model_copy(update={"reason": "every plan would be slower"}) for entry in notes.accepted]
    update["questions"] = [PersonQuestion(field="notes", text=text, quotes=quotes)]
    update["notes"] = notes.model_copy(
        update={"without": [], "accepted": [], "refused": [*notes.refused, *refused]}
    )
    update["scenario"] = request
    return without


def _score_again(
    state: State, search: SessionSearch, known: ScoredPlan, services: NodeServices
) -> ScoredPlan:
    if not isinstance(known.plan, Plan):
        return known
    origin = {"origin": known.origin, "reason": known.reason, "by_person": known.by_person}
    return _score(state, search, known.plan, {}, services).model_copy(update=origin)


def _score(
    state: State,
    search: SessionSearch,
    start: Plan,
    fields: PlanFields,
    services: NodeServices,
    *,
    by_family: bool = False,
) -> ScoredPlan:
    """A plan from elsewhere beside the best one."""
    return services.run(
        tools.score_plan,
        scenario=within_policy(state),
        start=start,
        fields=fields,
        best=search.ranked[0],
        trials=state.get("trials", []),
        by_family=by_family,
    )


def _with_engineers_plans(
    search: SessionSearch, decisions: Sequence[Decision], state: State, services: NodeServices
) -> SessionSearch:
    scored = []
    for decision in decisions:
        start = search.ranked[: decision.proposal][-1].plan
        origin = {"origin": decision.by or "engineer", "reason": decision.comment or "", "by_person": True}
        scored.append(_score(state, search, start, decision.plan or {}, services).model_copy(update=origin))
    return _join(state, search, scored, services)


def _for_item(item: WorkItem, state: State, search: SessionSearch, services: NodeServices) -> SessionSearch:
    """What the coordinator's worklist asks for: a narrower search, or reasons for the order of near ties."""
    scenario = within_policy(state)
    if item.task == "compare_ties":
        comparisons = services.run(tools.compare_ties, scenario=scenario, proposals=search.proposals)
        compared = [
            entry
            if any(known.ref == "comparison" for known in entry.evidence)
            else _with_evidence(entry, evidence)
            for entry, evidence in zip(search.proposals, comparisons, strict=True)
        ]
        return search.model_copy(update={"proposals": compared})
    plans = services.run(tools.search_under, scenario=scenario, constraints=item.constraints)
    origin = {"origin": item.by, "reason": item.reason}
    scored = [_score(state, search, plan, {}, services).model_copy(update=origin) for plan in plans[:1]]
    return _join(state, search, scored, services)


def _with_evidence(entry: Proposal, evidence: Evidence) -> Proposal:
    return entry.model_copy(update={"evidence": [*entry.evidence, evidence]})


def _judge(state: State, search: SessionSearch, update: State, services: NodeServices) -> SessionSearch:
    """Whether another trial is worth it; if none is, what was measured comes first."""
    trials, limits = state["trials"], services.context.limits
    open_plans = [entry.plan for entry in search.proposals if entry.measured is None]
    gains = services.run(tuning.gains_of, scenario=state["scenario"], trials=trials, plans=open_plans)
    judged = services.run(tuning.judge_trials, trials=trials, gains=gains, budget=budget_of(limits, trials))
    update["stopping"] = judged.model_copy(update={"trials_seen": trials_seen(state)})
    closed = judged.stop or why_ended(state, limits, services.context.clock()) is not None
    if not closed:
        return search.model_copy(update={"closed": False})
    done = services.run(tuning.measured_proposals, scenario=state["scenario"], trials=measured(trials))
    rest = [entry for entry in search.proposals if all(entry.plan != other.plan for other in done)]
    merged = [*done, *rest][:MAX_PROPOSALS] or search.settled
    return search.model_copy(update={"closed": True, "proposals": with_roles(merged)})


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
    """The model's suggestions first, then the rules'; both count by the references that code can check."""
    scenario, start, tenant = within_policy(state), state["analysis"].plan, state["session"].tenant
    recipes = tools.published_recipes(services.context, scenario)
    moves = [resolve_moves(book.moves, start, scenario) for book in knowledge.playbooks]
    confirmed = services.run(tools.confirmed_runs, scenario=scenario, hits=knowledge.hits, tenant=tenant)
    payload = plain(
        {
            "scenario": scenario,
            "plan": start,
            "playbooks": [
                {**plain(book), "resolved_moves": own}
                for book, own in zip(knowledge.playbooks, moves, strict=True)
            ],
            "hits": knowledge.hits,
            "recipes": [_shown_recipe(match) for match in recipes],
            "confirmed": confirmed,
        }
    )
    by_rules = Rules().ask(Question("propose_plans", payload, Suggestions)).answer.suggestions
    scored: list[ScoredPlan] = []
    if services.has_model:
        box = Toolbox(services.context, scenario, start, tenant)
        digest = digest_of({**state, "search": search}, "proposal")
        asked = Question(
            "propose_plans",
            {**payload, "digest": digest},
            Suggestions,
            services.lookups(box.named(PROPOSAL_TOOLS)),
            MAX_CALLS,
        )
        answer = services.ask(asked)
        if services.last_author != Rules.name:
            author = services.last_author
            scored = _score_all(state, search, knowledge, answer.suggestions, author, services)
    scored += _score_all(state, search, knowledge, by_rules, Rules.name, services)
    return _join(state, search, scored, services)


def _score_all(
    state: State,
    search: SessionSearch,
    knowledge: Knowledge,
    suggestions: Sequence[Suggestion],
    by: str,
    services: NodeServices,
) -> list[ScoredPlan]:
    start = state["analysis"].plan
    scored = []
    changes = [suggestion.plan.model_dump(exclude_none=True) for suggestion in suggestions]
    tools.predict_together(services.context, within_policy(state), start, changes)
    for suggestion, fields in zip(suggestions, changes, strict=True):
        was_run = any(ref.startswith(("case:", "recipe:")) for ref in suggestion.references)
        plan = _score(state, search, start, fields, services, by_family=was_run)
        support = services.run(
            tools.checked_references,
            scenario=within_policy(state),
            scored=plan,
            references=suggestion.references,
            before=start,
            playbooks=knowledge.playbooks,
            tenant=state["session"].tenant,
        )
        reason = (
            suggestion.reason
            if by == Rules.name
            else services.accept_text(suggestion.reason, {}, "propose_plans.reason")
        )
        origin = by if by != Rules.name else next(iter(suggestion.references), by).partition(":")[2]
        update = {"origin": origin, "reason": reason or "", "support": support}
        scored.append(plan.model_copy(update=update))
    return scored


def _shown_recipe(match: RecipeMatch) -> dict[str, JsonValue]:
    recipe = match.recipe
    family: dict[str, JsonValue] = dict(zip(FAMILY, family_of(recipe.plan), strict=True))
    return {
        "id": f"recipe:{recipe.id}",
        "title": recipe.title,
        "says": recipe.says,
        "same_device": match.is_same_device,
        **family,
    }


def _join(
    state: State, search: SessionSearch, scored: Sequence[ScoredPlan], services: NodeServices
) -> SessionSearch:
    if not scored:
        return search
    proposals = services.run(
        tools.join_plans, scenario=state["scenario"], proposals=search.proposals, scored=scored
    )
    considered = [*search.considered, *scored]
    return search.model_copy(update={"proposals": proposals, "considered": considered})
