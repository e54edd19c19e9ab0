"""Verification and report: every number is computed again, prose states only what code writes into its slots,
and the report is assembled from verified parts only.
"""

from typing import Any

from graph import tools, tuning
from graph.answers import Prose, Question
from graph.context import INSTEAD, NodeServices
from graph.prompts import chosen_rank, decision_in_words, slots_of
from graph.report import (
    Advice,
    BaselinePlan,
    CalibrationUse,
    CaseReference,
    Incident,
    RecipeReference,
    Report,
    Source,
    Stopping,
    Usage,
)
from graph.rules import Rules
from graph.state import Knowledge, SessionSearch, State, Texts, plain
from graph.tuning import budget_of, why_ended
from tools.errors import AsapError
from tools.recommend.diagnosis import with_lever
from tools.recommend.optimize import workload_of
from tools.recommend.report import Diagnosis, Fault, Proposal
from tools.recommend.score import family_of, with_roles
from tools.recommend.situation import supporting
from tools.recommend.words import short

MAX_ADVICE = 6
MAX_RECIPES = 2


def report(state: State, services: NodeServices) -> State:
    analysis, search, texts = state["analysis"], state["search"], state["texts"]
    usage, learnt, verification = state.get("usage", {}), state.get("learnt"), state["verification"]
    if verification is None:
        raise RuntimeError("the report was reached without a verification")
    knowledge = state.get("knowledge") or Knowledge()
    whole = Report(
        id=state["request"].id,
        verdict=texts.verdict,
        first_step=texts.first_step,
        would_change=texts.would_change,
        authors=texts.authors,
        facts=state.get("facts", []),
        hypotheses=analysis.hypotheses,
        questions=state.get("questions", []),
        chosen=chosen_rank(state.get("decisions", []), len(search.proposals)),
        diagnosis=analysis.diagnosis,
        baseline=analysis.baseline,
        baseline_plan=_baseline_plan(state),
        proposals=[_with_texts(entry, state, knowledge) for entry in search.proposals],
        rejected=search.rejected,
        searched=search.searched,
        sensitivity=search.sensitivity,
        beyond_contract=search.beyond_contract,
        pareto=search.pareto,
        considered=search.considered,
        advice=_advice(knowledge),
        cases=_cases(knowledge),
        recipes=_recipes(state, services),
        notes=state["notes"] if state["request"].notes else None,
        profile=analysis.profile,
        decisions=state.get("decisions", []),
        trials=[entry.public for entry in state.get("trials", [])],
        stopping=_stopping(state, services),
        calibration=tuning.calibration_data(services.context, state),
        calibrated_by=_calibrated_by(state, services),
        verification=verification,
        incidents=_merged([*state.get("incidents", []), *services.incidents]),
        route=state["route"],
        usage=Usage(
            tokens=int(usage.get("tokens", 0)),
            cost=usage.get("cost", 0),
            answered=int(usage.get("answered", 0)),
            fell_back=int(usage.get("fell_back", 0)),
        ),
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
        says=cluster.says,
        baseline_without_s=without[0] if today else None,
        proposal_without_s=without[-1],
    )


def _baseline_plan(state: State) -> BaselinePlan | None:
    """What gains are counted from, and whether it runs today or is the framework's default."""
    session = state["session"]
    if session.plan is None:
        return None
    return BaselinePlan(
        plan=session.plan, name="the framework's default" if session.plan_is_default else "today"
    )


def _merged(incidents: list[Incident]) -> list[Incident]:
    """One for each kind of fault by which questions fell back to the rules, naming the questions."""
    merged: list[Incident] = []
    for incident in incidents:
        question, _, rest = incident.says.partition(": ")
        same = next((i for i, other in enumerate(merged) if _is_same_fault(other, incident)), None)
        if same is None:
            merged.append(incident)
            continue
        names, _, _ = merged[same].says.partition(": ")
        listed = names if question in names.split(", ") else f"{names}, {question}"
        merged[same] = merged[same].model_copy(update={"says": f"{listed}: {rest}"})
    return merged


def _is_same_fault(incident: Incident, other: Incident) -> bool:
    return incident.kind == other.kind and incident.says.endswith(INSTEAD) and other.says.endswith(INSTEAD)


def _stopping(state: State, services: NodeServices) -> Stopping | None:
    """Why the trials ended, and what they took of the budget."""
    if state["session"].mode != "tune":
        return None
    limits, judged = services.context.limits, state.get("stopping")
    budget = budget_of(limits, state.get("trials", []))
    return Stopping(
        says=why_ended(state, limits, services.context.clock()) or "no trial was due",
        expected_gain=judged.expected_gain if judged else None,
        noise=judged.noise if judged else None,
        device_hours=budget.device_hours,
        trials=budget.trials,
        spent_device_hours=budget.spent_device_hours,
        spent_trials=budget.spent_trials,
    )


def _with_texts(proposal: Proposal, state: State, knowledge: Knowledge) -> Proposal:
    """With the checked rationale, and the playbooks that say the same as evidence."""
    before, evidence = state["session"].plan, proposal.evidence
    if before and knowledge.playbooks:
        evidence = [*evidence, *supporting(knowledge.playbooks, before, proposal.plan, state["scenario"])]
    rationale = state["texts"].rationales[proposal.rank - 1]
    return proposal.model_copy(update={"rationale": rationale, "evidence": evidence})


def _advice(knowledge: Knowledge) -> list[Advice]:
    """Playbooks that apply but change no field of the plan: flags, settings, what to look at."""
    near = [hit.id for hit in knowledge.hits]
    books = [book for book in knowledge.playbooks if not book.moves]
    books.sort(key=lambda book: near.index(book.id) if book.id in near else len(near))
    return [
        Advice.model_validate(book.model_dump(include=set(Advice.model_fields)))
        for book in books[:MAX_ADVICE]
    ]


def _recipes(state: State, services: NodeServices) -> list[RecipeReference]:
    """What was published for this model: on this device if there is any, else on the nearest."""
    matches = tools.published_recipes(services.context, state["scenario"])
    here = [match for match in matches if match.is_same_device] or matches[:1]
    ranks = {family_of(entry.plan): entry.rank for entry in reversed(state["search"].proposals)}
    return [
        RecipeReference(
            id=recipe.id,
            title=recipe.title,
            says=recipe.says,
            same_device=is_same_device,
            proposal=ranks.get(family_of(recipe.plan)),
            sources=[Source.model_validate(recipe.source.model_dump())],
        )
        for recipe, _, is_same_device, _ in here[:MAX_RECIPES]
    ]


def _cases(knowledge: Knowledge) -> list[CaseReference]:
    """Past cases nearest to this one; those a measurement refuted are warnings."""
    return [
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
    ]


SHOWN = {"role", "summary", "predicted", "status", "step_time_s", "interval_s", "speedup", "says"}
"""What prose may say of a trial; not what a job printed."""


class UnverifiedError(AsapError):
    """ASAP contradicts itself: better no answer than one that does not hold."""


def verify(state: State, services: NodeServices) -> State:
    analysis, search = state["analysis"], state["search"]
    result = services.run(
        tools.verify_numbers,
        scenario=state["scenario"],
        proposals=search.proposals,
        baseline=analysis.baseline,
    )
    kept, says = (
        _without(result.faults, search.proposals),
        [f"{fault.place}: {fault.says}" for fault in result.faults],
    )
    is_baseline_wrong = any(fault.place.startswith("baseline") for fault in result.faults)
    if is_baseline_wrong or not kept:  # every speedup and the diagnosis rest on the baseline
        raise UnverifiedError(f"the numbers do not hold when computed again: {'; '.join(says)}")
    for fault in says:
        services.report_incident("unverified", f"{fault}; it is not reported")
    diagnosis = analysis.diagnosis
    if analysis.subject == "today":
        diagnosis = services.compute(
            with_lever, diagnosis=diagnosis, proposals=kept, prediction=analysis.prediction
        )
    search = search.model_copy(update={"proposals": kept})
    texts = _texts(state, search, diagnosis, services)
    return services.done(
        search=search,
        analysis=analysis.model_copy(update={"diagnosis": diagnosis}),
        texts=texts,
        verification=result.model_copy(update={"texts_refused": services.refused}),
    )


def _without(faults: list[Fault], proposals: list[Proposal]) -> list[Proposal]:
    """The proposals in which nothing is wrong, ranked anew."""
    wrong = {fault.place.partition(".")[0] for fault in faults}
    return with_roles(
        [proposal for index, proposal in enumerate(proposals) if f"proposals[{index}]" not in wrong]
    )


def _payload(state: State, search: SessionSearch, diagnosis: Diagnosis) -> dict[str, Any]:
    """All that prose may rest on, as JSON."""
    trials = state.get("trials", [])
    is_default = state["session"].plan_is_default
    payload: dict[str, Any] = plain(
        {
            "scenario": state["scenario"],
            "baseline": state["analysis"].baseline,
            "diagnosis": diagnosis,
            "proposals": [{**plain(entry), "summary": short(entry.plan)} for entry in search.proposals],
            "sensitivity": search.sensitivity,
            "trials": [entry.model_dump(mode="json", include=SHOWN) for entry in trials],
            "trials_run": len(trials),
            "stopping": state.get("stopping"),
            "baseline_name": "the framework's default plan" if is_default else "today's plan",
            "decision": decision_in_words(state.get("decisions", [])),
            "chosen": chosen_rank(state.get("decisions", []), len(search.proposals)),
        }
    )
    return payload


def _texts(state: State, search: SessionSearch, diagnosis: Diagnosis, services: NodeServices) -> Texts:
    """Code's text, and in its place what a model writes, if code can fill its slots and it states no more."""
    payload, slots = _payload(state, search, diagnosis), slots_of(state, search, diagnosis)
    by_rules = _parts(Rules().ask(Question("explain", payload, Prose)).answer)
    texts, authors = by_rules, dict.fromkeys(by_rules, Rules.name)
    if services.has_model:
        written = _parts(services.ask(Question("explain", {**payload, "slots": slots}, Prose)))
        if services.last_author != Rules.name:
            for name, text in by_rules.items():
                accepted = (
                    services.accept_text(written[name], slots, f"explain.{name}") if name in written else None
                )
                texts = {**texts, name: accepted or text}
                authors[name] = services.last_author if accepted else Rules.name
    return Texts(
        verdict=texts["verdict"],
        first_step=texts["first_step"],
        would_change=texts["would_change"],
        rationales=[text for name, text in texts.items() if name.startswith("rationale ")],
        authors=authors,
        decisions_seen=len(state.get("decisions", [])),
    )


def _parts(prose: Prose) -> dict[str, str]:
    parts = {name: getattr(prose, name) for name in ("verdict", "first_step", "would_change")}
    return parts | {f"rationale {rank}": text for rank, text in enumerate(prose.rationales, start=1)}
