"""The report, assembled from verified parts only."""

from graph.claims import published_recipes
from graph.report import (
    Advice,
    BaselinePlan,
    CalibrationUse,
    CaseReference,
    Incident,
    RecipeReference,
    Report,
    Stopping,
    Usage,
)
from graph.services import NodeServices
from graph.state import Knowledge, State
from graph.tuning import budget_of, calibration_data, why_ended
from tools.recommend.measured import memory_questions
from tools.recommend.optimize import workload_of
from tools.recommend.score import family_of, without_gains
from tools.recommend.situation import supporting

MAX_ADVICE = 6
MAX_RECIPES = 2


def report(state: State, services: NodeServices) -> State:
    analysis, search, texts = state["analysis"], state["search"], state["texts"]
    session, decisions, verification = state["session"], state.get("decisions", []), state["verification"]
    usage, learnt = state.get("usage", {}), state.get("learnt")
    if verification is None:
        raise RuntimeError("the report was reached without a verification")
    knowledge, limits = state.get("knowledge") or Knowledge(), services.context.limits
    proposals = []
    for entry in search.proposals:  # with the checked rationale, and the playbooks that say the same
        evidence, rationale = entry.evidence, texts.rationales[entry.rank - 1]
        if session.plan and knowledge.playbooks:
            said = supporting(knowledge.playbooks, session.plan, entry.plan, state["scenario"])
            evidence = [*evidence, *said]
        proposals.append(entry.model_copy(update={"rationale": rationale, "evidence": evidence}))
    if session.plan and not texts.headline.sells:
        proposals = without_gains(proposals)
    # Playbooks that apply but change no field of the plan: flags, settings, what to look at.
    near = [hit.id for hit in knowledge.hits]
    books = [book for book in knowledge.playbooks if not book.moves]
    books.sort(key=lambda book: near.index(book.id) if book.id in near else len(near))
    stopping = None
    if session.mode == "tune":
        budget, judged = budget_of(limits, state.get("trials", [])), state.get("stopping")
        stopping = Stopping(
            reason=why_ended(state, limits, services.context.clock()) or "no trial was due",
            expected_gain=judged.expected_gain if judged else None,
            noise=judged.noise if judged else None,
            device_hours=budget.device_hours,
            trials=budget.trials,
            spent_device_hours=budget.spent_device_hours,
            spent_trials=budget.spent_trials,
        )
    asked = []
    if session.plan and not session.plan_is_default:
        asked = memory_questions(services.context.workload(state["scenario"]), session.plan)
    whole = Report(
        id=state["request"].id,
        scenario=state["request"].model_dump(mode="json"),
        verdict=texts.headline.text,
        headline=texts.headline,
        explanation=texts.explanation if texts.headline.sells or session.plan is None else "",
        first_step=texts.first_step,
        would_change=texts.would_change,
        authors=texts.authors,
        facts=state.get("facts", []),
        hypotheses=analysis.hypotheses,
        questions=[*state.get("questions", []), *asked],
        chosen=texts.headline.rank,
        diagnosis=analysis.diagnosis,
        baseline=analysis.baseline,
        baseline_plan=BaselinePlan(
            plan=session.plan, name="the framework's default" if session.plan_is_default else "today"
        )
        if session.plan
        else None,
        proposals=proposals,
        rejected=search.rejected,
        searched=search.searched,
        sensitivity=search.sensitivity,
        beyond_contract=search.beyond_contract,
        pareto=search.pareto,
        considered=search.considered,
        advice=[
            Advice.model_validate(book.model_dump(include=set(Advice.model_fields)))
            for book in books[:MAX_ADVICE]
        ],
        cases=[
            CaseReference.model_validate(
                {
                    **hit.model_dump(include={"id", "title", "status", "warning"}),
                    # A person's own case may have neither lesson nor sources.
                    "lesson": hit.body.get("lesson") or hit.body["story"],
                    "measured": hit.body.get("measured"),
                    "sources": hit.body.get("sources", []),
                }
            )
            for hit in knowledge.hits
            if hit.kind == "case"
        ],
        recipes=_recipes(state, services),
        notes=state["notes"] if state["request"].notes else None,
        profile=analysis.profile,
        decisions=decisions,
        trials=[entry.public for entry in state.get("trials", [])],
        stopping=stopping,
        calibration=calibration_data(services.context, state),
        calibrated_by=_calibrated_by(state, services),
        verification=verification,
        incidents=_merged([*state.get("incidents", []), *services.incidents]),
        route=state["route"],
        usage=Usage.model_validate({name: usage.get(name, 0) for name in Usage.model_fields}),
        case=learnt.case if learnt else None,
        reasoner=services.context.reasoner.name,
    )
    return services.done(report=whole)


def _calibrated_by(state: State, services: NodeServices) -> CalibrationUse | None:
    calibration = services.context.calibration
    if calibration is None or calibration.cluster is None:
        return None
    cluster, today = calibration.cluster, state["session"].plan
    plans = [*([today] if today else []), state["search"].proposals[0].plan]
    without = [prediction.step_time_s for prediction in workload_of(state["scenario"]).predict(plans)]
    return CalibrationUse(
        cluster=cluster.name,
        version=cluster.version,
        runs=cluster.runs,
        label=cluster.label,
        baseline_without_s=without[0] if today else None,
        proposal_without_s=without[-1],
        findings=cluster.findings,
    )


def _merged(incidents: list[Incident]) -> list[Incident]:
    """One for each kind of fault by which questions fell back to the rules, naming the questions."""
    merged: list[Incident] = []
    for incident in incidents:
        same = [i for i, other in enumerate(merged) if other.fell_back and other.kind == incident.kind]
        if not incident.fell_back or not same:
            merged.append(incident)
            continue
        questions = list(dict.fromkeys([*merged[same[0]].questions, *incident.questions]))
        update = {"questions": questions, "message": incident.message}
        merged[same[0]] = merged[same[0]].model_copy(update=update)
    return merged


def _recipes(state: State, services: NodeServices) -> list[RecipeReference]:
    """What was published for this model: on this device if there is any, else on the nearest."""
    matches = published_recipes(services.context, state["scenario"])
    here = [match for match in matches if match.is_same_device] or matches[:1]
    ranks = {family_of(entry.plan): entry.rank for entry in reversed(state["search"].proposals)}
    return [
        RecipeReference(
            id=recipe.id,
            title=recipe.title,
            summary=recipe.summary,
            same_device=is_same_device,
            proposal=ranks.get(family_of(recipe.plan)),
            sources=[recipe.source],
        )
        for recipe, _, is_same_device, _ in here[:MAX_RECIPES]
    ]
