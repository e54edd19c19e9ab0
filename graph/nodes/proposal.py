"""The proposal agent: searches every plan, asks for more, ranks with evidence that is checked."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from pydantic import JsonValue

from graph.answers import Question, Suggestion, Suggestions
from graph.claims import Book, checked_references, confirmed_runs, published_recipes
from graph.context import Context
from graph.questions import Effect, NearPlan, OfferedPlaybook, OfferedRecipe, ProposePlans, digest_of
from graph.request import PLAN_ACTIONS
from graph.rules import Rules
from graph.services import NodeServices
from graph.state import (
    Analysis,
    Knowledge,
    KnowledgeHit,
    SessionSearch,
    State,
    TrialJudgement,
    TrialRecord,
    WorkItem,
)
from graph.tools import PROPOSAL_TOOLS, Toolbox
from graph.tuning import budget_of, is_current, likely_s, measured, step_time_s, why_ended, within_policy
from tools.errors import InfeasibleError, InputError
from tools.kb import Playbook, matching
from tools.model.calibration import shipped_calibration
from tools.physics.memory import GIB
from tools.recommend.choose import FAMILY, MAX_PROPOSALS, families, probability_of_fitting
from tools.recommend.measured import without_slower
from tools.recommend.optimize import best_plans, propose
from tools.recommend.proposal import proposal as make_proposal
from tools.recommend.report import (
    Evidence,
    MeasuredPlan,
    PersonQuestion,
    PlanFields,
    PlanSummary,
    Proposal,
    ScoredPlan,
    plain_value,
)
from tools.recommend.score import complete, family_of, rank, score, with_roles
from tools.recommend.situation import Facts, resolve_moves
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario
from tools.search.ranked import Ranked
from tools.trials.gain import TrialBudget, comparison_error, expected_gains, judge, most_promising, runs_of
from tools.trials.steering import steered

MAX_CALLS = 10
"""Tool calls before the plans must be handed in."""
MAX_FAILURES = 2
"""After this many failures with nothing measured, the installation is at fault and not the plans."""
MIN_NEAR, MAX_NEAR = 5, 10
"""Families that a model is shown."""
TOLD_SHARE = 0.03
"""The share of a step below which a near plan's terms are not shown."""
DESCRIBED = (*FAMILY, "zero_stage", "recompute")


def proposal(state: State, services: NodeServices) -> State:
    decisions, item = state.get("decisions", []), state.get("item")
    plans = [decision for decision in decisions[state.get("handled", 0) :] if decision.action in PLAN_ACTIONS]
    update = State(handled=len(decisions), verification=None)
    search = state["search"] if is_current(state, state.get("search")) else _search(state, services)
    if "search" not in state and state["notes"].accepted:
        search = _beside_the_notes(state, search, update, services)
        state = {**state, **update}
    submitted = []
    for decision in plans:
        start = search.ranked[: decision.proposal][-1].plan
        origin = {"origin": decision.by or "engineer", "reason": decision.comment or "", "by_person": True}
        submitted.append(_score(state, search, start, decision.plan or {}, services, origin))
    search = _join(state, search, submitted, services)
    if item is not None:
        search = _for_item(item, state, search, services)
    elif "analysis" in state and search.proposals and not plans:
        update["knowledge"] = state.get("knowledge") or _knowledge(state["analysis"], state, services)
        search = _with_suggestions(state, search, update["knowledge"], services)
    if state.get("trials"):
        search = _judge(state, search, update, services)
    elif "analysis" in state and (recalibrated := state["analysis"].diagnosis.recalibrated):
        # No target is slower than the measured step, but for the plan that a person wants to compare.
        wanted = [scored.plan for scored in search.considered if scored.by_person]
        others = [entry for entry in search.proposals if entry.plan not in wanted]
        wanted += [entry.plan for entry in without_slower(others, recalibrated.measured_s)]
        kept = [entry for entry in search.proposals if entry.plan in wanted]
        search = search.model_copy(update={"proposals": with_roles(kept)})
    return services.done(**update, search=search)


def _search(state: State, services: NodeServices) -> SessionSearch:
    """Every plan that no trial has settled; submitted plans are scored again beside them."""
    trials = state.get("trials", [])
    search = services.run(search_plans, scenario=within_policy(state), trials=trials)
    again = []
    for known in state["search"].considered if "search" in state else []:
        if known.by_person and isinstance(known.plan, Plan):
            origin = {"origin": known.origin, "reason": known.reason, "by_person": True}
            again.append(_score(state, search, known.plan, {}, services, origin))
        elif known.by_person:
            again.append(known)
    return _join(state, search, again, services)


def search_plans(context: Context, scenario: Scenario, trials: Sequence[TrialRecord] = ()) -> SessionSearch:
    """Every legal plan searched: the three best, why not others, what would change the answer.

    What trials have settled is left out; if that is everything, it becomes `settled`."""
    workload = context.workload(scenario)

    def next_trial(ranked: Ranked) -> Plan:
        return most_promising(scenario, ranked, workload.calibration, trials)

    chooses = next_trial if runs_of(scenario, trials) else None
    try:
        result = dict(propose(steered(workload, trials), context.progress, context.keep_plans, chooses))
    except InfeasibleError:
        if not trials:
            raise
        everything = propose(workload, context.progress, context.keep_plans)
        result = {**dict(everything), "proposals": [], "settled": everything.proposals}
    return SessionSearch(**result, trials_seen=len(trials))


def _beside_the_notes(
    state: State, search: SessionSearch, update: State, services: NodeServices
) -> SessionSearch:
    """The answer without the notes, to show beside; notes that leave only slower plans wait for a person."""
    request, notes = state["request"], state["notes"]
    without = services.run(search_plans, scenario=within_policy({**state, "scenario": request}), trials=[])

    def are_slower(proposals: Sequence[Proposal]) -> bool:
        return all(entry.speedup is not None and entry.speedup < 1 for entry in proposals)

    if not are_slower(search.proposals) or are_slower(without.proposals):
        shown = [
            PlanSummary(
                summary=short(entry.plan), step_time_s=entry.prediction.step_time_s, speedup=entry.speedup
            )
            for entry in without.proposals
        ]
        update["notes"] = notes.model_copy(update={"without": shown})
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


def _score(
    state: State,
    search: SessionSearch,
    start: Plan,
    fields: PlanFields,
    services: NodeServices,
    origin: Mapping[str, object],
    *,
    by_family: bool = False,
) -> ScoredPlan:
    """A plan from elsewhere beside the best one, with where it comes from and why."""
    scored = services.run(
        score_plan,
        scenario=within_policy(state),
        start=start,
        fields=fields,
        best=search.ranked[0],
        trials=state.get("trials", []),
        by_family=by_family,
    )
    return scored.model_copy(update=dict(origin))


def score_plan(
    context: Context,
    scenario: Scenario,
    start: Plan,
    fields: PlanFields,
    best: Proposal,
    trials: Sequence[TrialRecord] = (),
    *,
    by_family: bool = False,
) -> ScoredPlan:
    """A plan from elsewhere, judged like the search's own; `fields` replace those of the plan `start`.

    What was run elsewhere speaks for its family: the rest of the plan is what the search finds best here."""
    workload = context.workload(scenario)
    try:
        plan = complete(workload, start, fields)
    except InputError as error:
        stated = {name: plain_value(value) for name, value in fields.items()}
        summary = ", ".join(f"{name} {value}" for name, value in stated.items())
        return ScoredPlan(plan=stated, summary=summary, accepted=False, binding="rule", why=str(error))
    if by_family:
        family: dict[str, JsonValue] = dict(zip(FAMILY, family_of(plan), strict=True))
        plan = next(iter(search_under(context, scenario, family)), plan)
    if not steered(workload, trials).permits(plan):
        why = "a trial has measured it, or one that would run alike has failed"
        return ScoredPlan(plan=plan, summary=short(plan), accepted=False, binding="trial", why=why)
    return score(workload, plan, best)


def search_under(context: Context, scenario: Scenario, constraints: Mapping[str, JsonValue]) -> list[Plan]:
    """The best plans under further constraints; none if nothing fits them."""
    narrowed = scenario.model_copy(update={"constraints": {**scenario.constraints, **constraints}})
    try:
        return best_plans(context.workload(narrowed), context.progress)[0]
    except InfeasibleError:
        return []


def _join(
    state: State, search: SessionSearch, scored: Sequence[ScoredPlan], services: NodeServices
) -> SessionSearch:
    if not scored:
        return search
    proposals = services.run(
        join_plans, scenario=state["scenario"], proposals=search.proposals, scored=scored
    )
    considered = [*search.considered, *scored]
    return search.model_copy(update={"proposals": proposals, "considered": considered})


def join_plans(
    context: Context, scenario: Scenario, proposals: Sequence[Proposal], scored: Sequence[ScoredPlan]
) -> list[Proposal]:
    """The proposals with what beats one of them clearly or has evidence; at most three."""
    return rank(proposals, scored, context.workload(scenario).pair_error)


def _for_item(item: WorkItem, state: State, search: SessionSearch, services: NodeServices) -> SessionSearch:
    """What the coordinator's worklist asks for: a narrower search, or reasons for the order of near ties."""
    scenario = within_policy(state)
    if item.task == "compare_ties":
        comparisons = services.run(compare_ties, scenario=scenario, proposals=search.proposals)
        compared = [
            entry
            if any(known.ref == evidence.ref for known in entry.evidence)
            else entry.model_copy(update={"evidence": [*entry.evidence, evidence]})
            for entry, evidence in zip(search.proposals, comparisons, strict=True)
        ]
        return search.model_copy(update={"proposals": compared})
    plans = services.run(search_under, scenario=scenario, constraints=item.constraints)
    origin = {"origin": item.by, "reason": item.reason}
    scored = [_score(state, search, plan, {}, services, origin) for plan in plans[:1]]
    return _join(state, search, scored, services)


def compare_ties(context: Context, scenario: Scenario, proposals: Sequence[Proposal]) -> list[Evidence]:
    """For each proposal how near it is to the fastest, and whether that is beyond the comparison's error."""
    fastest = min(proposals, key=lambda proposal: proposal.prediction.step_time_s)
    evidence = []
    for entry in proposals:
        behind = entry.prediction.step_time_s / fastest.prediction.step_time_s - 1
        tie = "inside" if behind <= context.workload(scenario).pair_error else "beyond"
        says = f"{behind:.1%} behind the fastest by prediction, {tie} the error of a comparison"
        if entry.plan == fastest.plan:
            says = "the fastest by prediction"
        evidence.append(Evidence(kind="model", ref="comparison", says=says))
    return evidence


def _knowledge(analysis: Analysis, state: State, services: NodeServices) -> Knowledge:
    """Playbooks whose conditions hold, and what is nearest in meaning to what limits the plan, and where."""
    facts, diagnosis = analysis.facts, analysis.diagnosis
    plan = ", ".join(f"{name} {facts[name]}" for name in DESCRIBED if name in facts)
    evidence = ". ".join(item.says for item in diagnosis.evidence)
    query = (
        f"Bottleneck {diagnosis.bottleneck}. {evidence}. {facts['architecture']} model of "
        f"{facts['parameters_b']:.0f}B parameters on {facts['num_devices']} {facts['device']}, "
        f"{facts['framework']}, sequence {facts['seq_len']}, {plan}, micro-batch {facts['micro_batch_size']}"
    )
    facets: dict[str, str | int] = {
        **{name: str(facts[name]) for name in ("device", "vendor", "architecture")},
        "bottleneck": diagnosis.bottleneck,
        "num_devices": int(facts["num_devices"] or 0),
    }
    return Knowledge(
        playbooks=services.run(matching_playbooks, facts=facts),
        hits=services.run(find_knowledge, query=query, facets=facets, tenant=state["session"].tenant),
    )


def matching_playbooks(context: Context, facts: Facts) -> list[Playbook]:
    """The playbooks whose conditions hold."""
    entries = matching(facts, context.knowledge.entries(kind="playbook"))
    return [entry.body for entry in entries if isinstance(entry.body, Playbook)]


def find_knowledge(
    context: Context, query: str, facets: Mapping[str, str | int], tenant: str | None, limit: int = 6
) -> list[KnowledgeHit]:
    """Playbooks and past cases nearest to a description; refuted ones are warnings."""
    return [
        KnowledgeHit(
            id=hit.entry.id,
            kind=hit.entry.kind,
            title=hit.entry.title,
            status=hit.entry.status,
            warning=hit.warning,
            score=hit.score,
            body=hit.entry.json_body(),
        )
        for hit in context.knowledge.search(query, facets=facets, tenant=tenant, limit=limit)
    ]


def _with_suggestions(
    state: State, search: SessionSearch, knowledge: Knowledge, services: NodeServices
) -> SessionSearch:
    """The model's suggestions first, then the rules'; both count by the references that code can check."""
    scenario, start, tenant = within_policy(state), state["analysis"].plan, state["session"].tenant
    near: list[NearPlan] = services.run(near_plans, scenario=scenario) if services.has_model else []
    asked = ProposePlans(
        scenario=scenario,
        plan=start,
        playbooks=[
            OfferedPlaybook.model_construct(**dict(book), moves_here=moves, effects=effects)
            for book, moves, effects in _offered(knowledge.playbooks, state, scenario, services)
        ],
        near=near,
        pair_error=services.context.workload(scenario).pair_error,
        hits=knowledge.hits,
        recipes=[
            OfferedRecipe(
                id=f"recipe:{match.recipe.id}",
                title=match.recipe.title,
                summary=match.recipe.summary,
                same_device=match.is_same_device,
                **dict(zip(FAMILY, family_of(match.recipe.plan), strict=True)),
            )
            for match in published_recipes(services.context, scenario)
        ],
        confirmed=services.run(confirmed_runs, scenario=scenario, hits=knowledge.hits, tenant=tenant),
        digest=digest_of({**state, "search": search}, "proposal"),
    )
    suggested: list[tuple[str, Sequence[Suggestion]]] = []
    if services.is_open(ProposePlans.name):
        box = Toolbox(services.context, scenario, start, tenant)
        lookups = services.lookups(box.named(PROPOSAL_TOOLS))
        answer = services.ask(Question(asked, Suggestions, lookups, MAX_CALLS))
        if services.last_author != Rules.name:
            suggested.append((services.last_author, answer.suggestions))
    suggested.append((Rules.name, Rules().ask(Question(asked, Suggestions)).answer.suggestions))
    scored = [
        plan
        for author, suggestions in suggested
        for plan in _score_all(state, search, knowledge, suggestions, author, services)
    ]
    return _join(state, search, scored, services)


def _offered(
    playbooks: Sequence[Playbook], state: State, scenario: Scenario, services: NodeServices
) -> Iterator[tuple[Playbook, list[PlanFields], list[Effect]]]:
    """With the moves of each from here, and their predicted effects if a model will read them."""
    workload, start = services.context.workload(scenario), state["analysis"].plan
    for book in playbooks:
        moves, legal = resolve_moves(book.moves, start, scenario), list[tuple[PlanFields, Plan]]()
        for fields in moves if services.has_model else []:
            with suppress(InputError):
                plan = complete(workload, start, fields)
                legal += [] if workload.objection(plan) else [(fields, plan)]
        predicted = workload.predict([plan for _, plan in legal])
        effects = [
            Effect(fields=fields, **each.model_dump(include={"step_time_s", "peak_memory_gib", "fits"}))
            for (fields, _), each in zip(legal, predicted, strict=True)
        ]
        yield book, moves, effects


def near_plans(context: Context, scenario: Scenario) -> list[NearPlan]:
    """The best plan of each family within the error of a comparison of the fastest; a few in any case."""
    workload = context.workload(scenario)
    ranked = best_plans(workload, context.progress)[1].best
    rows = families(workload, ranked).rows
    rows = rows[np.argsort(ranked.step_time_s[rows], kind="stable")]
    least_s = float(ranked.step_time_s.min())
    is_near = ranked.step_time_s[rows] <= least_s * math.exp(workload.pair_error)
    count = min(max(int(is_near.sum()), MIN_NEAR), MAX_NEAR)
    plans = [ranked.plans.plan(int(row)) for row in rows[:count]]
    likely = probability_of_fitting(workload, ranked.take(rows[:count]))
    return [
        NearPlan(
            plan=plan.model_dump(include={*DESCRIBED, "dp", "micro_batch_size"}),
            step_time_s=found.step_time_s,
            behind=found.step_time_s / least_s - 1,
            peak_memory_gib=found.peak_memory_gib,
            likely_fits=float(fit),
            terms_s={
                name: part
                for name, part in found.breakdown_s.items()
                if part > TOLD_SHARE * found.step_time_s
            },
        )
        for plan, found, fit in zip(plans, workload.predict(plans), likely, strict=True)
    ]


def _score_all(
    state: State,
    search: SessionSearch,
    knowledge: Knowledge,
    suggestions: Sequence[Suggestion],
    by: str,
    services: NodeServices,
) -> list[ScoredPlan]:
    scenario, start = within_policy(state), state["analysis"].plan
    changes = [suggestion.plan.model_dump(exclude_none=True) for suggestion in suggestions]
    # What `score_plan` will need of these plans is computed at once.
    workload, plans = services.context.workload(scenario), []
    for fields in changes:
        with suppress(InputError):
            plans.append(complete(workload, start, fields))
    legal = [plan for plan in plans if workload.objection(plan) is None]
    workload.predict(legal)
    workload.on_slow_links(legal)
    scored = []
    for suggestion, fields in zip(suggestions, changes, strict=True):
        was_run = any(ref.startswith(("case:", "recipe:")) for ref in suggestion.references)
        plan = _score(state, search, start, fields, services, {}, by_family=was_run)
        support = services.run(
            checked_references,
            scenario=scenario,
            scored=plan,
            references=suggestion.references,
            before=start,
            playbooks=knowledge.playbooks,
            tenant=state["session"].tenant,
        )
        if by == Rules.name:
            origin = next(iter(suggestion.references), by).partition(":")[2]
            reason = next((book.why for book in knowledge.playbooks if book.id == origin), "a published run")
        else:
            origin, reason = by, _argued(workload, start, plan, suggestion, services)
        update = {"origin": origin, "reason": reason, "support": support}
        scored.append(plan.model_copy(update=update))
    return scored


def _argued(
    workload: Workload, start: Plan, scored: ScoredPlan, suggestion: Suggestion, services: NodeServices
) -> str:
    """What a model claims of the plan it suggests, as far as it holds."""
    if scored.proposal is None:
        return ""
    suggested = scored.proposal.model_copy(update={"rank": 1})
    book = Book.of(workload.predict([start])[0], [suggested], [], [], workload.pair_error)
    book.plans["p1"] = replace(book.plans["p1"], name="it")
    reason, refused = book.write(suggestion.claims, names_plans=False)
    services.refuse(ProposePlans.name, refused)
    return reason


def _judge(state: State, search: SessionSearch, update: State, services: NodeServices) -> SessionSearch:
    """Whether another trial is worth it; if none is, what was measured comes first."""
    trials, limits, scenario = state["trials"], services.context.limits, state["scenario"]
    open_plans = [entry.plan for entry in search.proposals if entry.measured is None]
    gains = services.run(gains_of, scenario=scenario, trials=trials, plans=open_plans)
    judged = services.run(judge_trials, trials=trials, gains=gains, budget=budget_of(limits, trials))
    update["stopping"] = judged.model_copy(update={"trials_seen": len(trials)})
    closed = judged.stop or why_ended(state, limits, services.context.clock()) is not None
    if not closed:
        return search.model_copy(update={"closed": False})
    done = services.run(measured_proposals, scenario=scenario, trials=measured(trials))
    rest = [entry for entry in search.proposals if all(entry.plan != other.plan for other in done)]
    merged = [*done, *rest][:MAX_PROPOSALS] or search.settled
    return search.model_copy(update={"closed": True, "proposals": with_roles(merged)})


def gains_of(
    context: Context, scenario: Scenario, trials: Sequence[TrialRecord], plans: Sequence[Plan]
) -> list[float]:
    """What each plan is expected to save of the best measured step."""
    if not plans:
        return []
    calibration = context.session_calibration or context.calibration or shipped_calibration()
    planned = [scenario.model_copy(update={"plan": plan}) for plan in plans]
    runs, error = runs_of(scenario, trials), comparison_error(trials)
    gains, _ = expected_gains(planned, calibration, runs, error)
    return [float(gain) for gain in gains]


def judge_trials(
    context: Context, trials: Sequence[TrialRecord], gains: Sequence[float], budget: TrialBudget
) -> TrialJudgement:
    """Whether another trial is worth it: the gain expected of the plans left against noise and budget."""
    if measured(trials):
        return TrialJudgement.model_validate(vars(judge(gains, comparison_error(trials), budget)))
    kinds = [trial.failure.kind if trial.failure else "not comparable" for trial in trials]
    if len(kinds) >= MAX_FAILURES or not gains:
        reason = f"nothing could be measured: {', '.join(kinds)}; see the trials' evidence"
        return TrialJudgement(stop=True, reason=reason)
    reason = budget.spent or "the first trial failed; another plan may run"
    return TrialJudgement(stop=bool(budget.spent), reason=reason)


def measured_proposals(context: Context, scenario: Scenario, trials: Sequence[TrialRecord]) -> list[Proposal]:
    """Measured plans as proposals, the fastest first; today's own only if nothing beats it."""
    workload, proposals = context.workload(scenario), list[Proposal]()
    shortest = min(trials, key=step_time_s, default=None)
    for trial in sorted(trials, key=likely_s):
        if trial.role == "baseline" and proposals:
            continue
        prediction, took_s = workload.predict([trial.plan])[0], step_time_s(trial)
        made = make_proposal(workload, len(proposals) + 1, trial.plan, prediction, workload.today())
        outcome = MeasuredPlan(
            step_time_s=took_s,
            interval_s=trial.interval_s or (took_s, took_s),
            noise=trial.noise or 0.0,
            speedup=trial.speedup,
            speedup_low=trial.speedup_low,
            speedup_high=trial.speedup_high,
            peak_memory_gib=trial.peak_memory_bytes / GIB if trial.peak_memory_bytes else None,
            predicted_step_time_s=trial.predicted.step_time_s,
            trial=trial.key,
        )
        evidence = [*made.evidence, Evidence(kind="trial", ref=trial.key, says=trial.message)]
        if shortest and not proposals and shortest is not trial:
            less = f"{shortest.summary} measured less, {step_time_s(shortest):.3g} s"
            says = f"{less}, but within noise, and more was predicted for it"
            evidence.append(Evidence(kind="trial", ref=shortest.key, says=says))
        proposals.append(made.model_copy(update={"measured": outcome, "evidence": evidence}))
    return proposals
