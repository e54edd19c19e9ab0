"""The functions of `tools/` as the nodes run them, through `NodeServices.run`. No arithmetic here."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from pydantic import JsonValue

from graph.answers import SuggestedPlan
from graph.context import Context
from graph.state import KnowledgeHit, SessionSearch, TrialRecord, plain
from graph.tuning import workload_in
from tools.cost.encode import scenario_device
from tools.cost.memory import GIB
from tools.cost.predict import Prediction
from tools.errors import InfeasibleError, InputError
from tools.kb import Playbook, matching
from tools.kb.entries import Case
from tools.kb.ledger import ASAP
from tools.kb.recipes import RecipeMatch, nearest_recipes
from tools.recommend.choose import FAMILY
from tools.recommend.diagnosis import read_profile
from tools.recommend.hypotheses import CAUSE_OF_TERM, Hypothesis, predicted_hypotheses, profile_hypotheses
from tools.recommend.measured import measured_workload
from tools.recommend.optimize import analyse, best_plans, propose
from tools.recommend.proposal import recheck
from tools.recommend.report import (
    Diagnosis,
    Evidence,
    Fact,
    PlanFields,
    Proposal,
    ScoredPlan,
    Verification,
)
from tools.recommend.score import (
    check_case,
    check_playbook,
    check_profile,
    check_recipe,
    complete,
    family_of,
    rank,
    score,
)
from tools.recommend.situation import Facts, situation
from tools.recommend.words import short
from tools.scenario import Plan, Scenario
from tools.search.ranked import Ranked
from tools.trace.report import Profile
from tools.trials.gain import most_promising, runs_of
from tools.trials.steering import is_settled, steered

MAX_RECIPES = 12
SUGGESTED = frozenset(SuggestedPlan.model_fields)


class PlanAnalysis(NamedTuple):
    prediction: Prediction
    diagnosis: Diagnosis
    hypotheses: list[Hypothesis]
    facts: Facts
    calibration: dict[str, JsonValue] | None
    """The cost model as the measured step makes it; None if none was measured."""


def analyse_plan(
    context: Context,
    scenario: Scenario,
    plan: Plan,
    profile: Profile | None = None,
    measured_step_s: float | None = None,
    *,
    has_trials: bool = False,
) -> PlanAnalysis:
    """What a plan is predicted to take, what limits it, and the facts that playbooks ask for.

    The prediction is calibrated to the step of the traces, or to the one that notes state; trials measure
    without the profiler, so that what they say of the cost model stands.
    """
    workload, recalibrated = workload_in(context, scenario), None
    if not has_trials:
        workload, recalibrated = measured_workload(workload, plan, profile, measured_step_s)
    prediction, diagnosis = analyse(workload, plan, profile, recalibrated)
    facts = situation(workload, plan, prediction, profile)
    hypotheses = _hypotheses(prediction, profile)
    calibration = workload.calibration.to_data() if recalibrated else None
    return PlanAnalysis(prediction, diagnosis, hypotheses, facts, calibration)


def _hypotheses(prediction: Prediction, profile: Profile | None) -> list[Hypothesis]:
    """What the traces show before what is predicted."""
    predicted = predicted_hypotheses(prediction)
    return [*profile_hypotheses(profile), *predicted] if profile else predicted


def catalogue_facts(context: Context, scenario: Scenario) -> list[Fact]:
    """What is known of the cluster before anybody looks: the catalogue's figures, or the request's own."""
    device = scenario_device(scenario.cluster)
    overrides = scenario.cluster.overrides or {}
    figures = {
        "memory_gib": (device.memory_bytes / GIB, "GiB"),
        "intra_node_gbytes_per_s_per_device": (device.intra_node_bytes_per_s / 1e9, "GB/s"),
        "inter_node_gbps_per_device": (device.inter_node_bytes_per_s * 8 / 1e9, "Gbit/s"),
    }
    return [
        Fact(
            name=name,
            value=float(f"{value:.6g}"),
            unit=unit,
            source="scenario" if name in plain(overrides) else "catalogue",
            reference=scenario.cluster.device,
        )
        for name, (value, unit) in figures.items()
    ]


def read_traces(context: Context, folder: str, scenario: Scenario) -> Profile:
    """The measured diagnosis of a folder of profiler traces, checked against the scenario."""
    return read_profile(folder, scenario, context.check)


def why_infeasible(context: Context, scenario: Scenario) -> str | None:
    """Why no plan satisfies a scenario; None if some do."""
    try:
        best_plans(workload_in(context, scenario), context.progress)
    except InfeasibleError as error:
        return str(error)
    return None


def search_plans(context: Context, scenario: Scenario, trials: Sequence[TrialRecord] = ()) -> SessionSearch:
    """Every legal plan searched: the three best, why not others, what would change the answer.

    What trials have settled is left out; if that is everything, it becomes `settled`."""
    workload, runs = workload_in(context, scenario), runs_of(scenario, trials)

    def next_trial(ranked: Ranked) -> Plan:
        return most_promising(scenario, ranked, workload.calibration, runs)

    chooses = next_trial if runs else None
    try:
        result = dict(propose(steered(workload, trials), context.progress, context.keep_plans, chooses))
    except InfeasibleError:
        if not trials:
            raise
        everything = propose(workload, context.progress, context.keep_plans)
        result = {**dict(everything), "proposals": [], "settled": everything.proposals}
    return SessionSearch(**result, trials_seen=len(trials))


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
    workload = workload_in(context, scenario)
    try:
        plan = complete(workload, start, fields)
    except InputError as error:
        return ScoredPlan(plan=fields, summary=str(fields), accepted=False, binding="rule", why=str(error))
    if by_family:
        family: dict[str, JsonValue] = dict(zip(FAMILY, family_of(plan), strict=True))
        plan = next(iter(search_under(context, scenario, family)), plan)
    if is_settled(plan, steered(workload, trials)):
        why = "a trial has measured it, or one that would run alike has failed"
        return ScoredPlan(plan=plan, summary=short(plan), accepted=False, binding="trial", why=why)
    return score(workload, plan, best)


def predict_together(
    context: Context, scenario: Scenario, start: Plan, changes: Sequence[PlanFields]
) -> None:
    """What `score_plan` will need of these plans, computed at once."""
    workload, plans = workload_in(context, scenario), []
    for fields in changes:
        with suppress(InputError):
            plans.append(complete(workload, start, fields))
    legal = [plan for plan in plans if workload.objection(plan) is None]
    workload.predict(legal)
    workload.on_slow_links(legal)


def join_plans(
    context: Context, scenario: Scenario, proposals: Sequence[Proposal], scored: Sequence[ScoredPlan]
) -> list[Proposal]:
    """The proposals with what beats one of them clearly or has evidence; at most three."""
    return rank(proposals, scored, workload_in(context, scenario).pair_error)


def matching_playbooks(context: Context, facts: Facts) -> list[Playbook]:
    """The playbooks whose conditions hold."""
    entries = matching(facts, context.knowledge.entries(kind="playbook"))
    return [entry.body for entry in entries if isinstance(entry.body, Playbook)]


def find_knowledge(
    context: Context, query: str, facets: Mapping[str, str | int], tenant: str | None, limit: int = 6
) -> list[KnowledgeHit]:
    """Playbooks and past cases nearest to a description; refuted ones are warnings."""
    hits = context.knowledge.search(query, facets=facets, tenant=tenant, limit=limit)
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
        for hit in hits
    ]


def verify_numbers(
    context: Context, scenario: Scenario, proposals: Sequence[Proposal], baseline: Prediction | None
) -> Verification:
    """Every number of the proposals, computed a second time."""
    return recheck(workload_in(context, scenario), proposals, baseline)


def checked_references(
    context: Context,
    scenario: Scenario,
    scored: ScoredPlan,
    references: Sequence[str],
    before: Plan,
    playbooks: Sequence[Playbook],
    tenant: str | None,
) -> list[Evidence]:
    """Those references of a suggestion that code can confirm: a run, a playbook, the cause that counts."""
    if scored.proposal is None or not isinstance(scored.plan, Plan):
        return []
    evidence = (
        _checked(context, scenario, scored.proposal, ref, before, playbooks, tenant)
        for ref in dict.fromkeys(references)
    )
    return [item for item in evidence if item is not None]


def _checked(
    context: Context,
    scenario: Scenario,
    proposal: Proposal,
    reference: str,
    before: Plan,
    playbooks: Sequence[Playbook],
    tenant: str | None,
) -> Evidence | None:
    kind, _, name = reference.partition(":")
    if kind == "case":
        entry = context.knowledge.find(name, tenant)
        return check_case(entry, proposal.plan, scenario) if entry else None
    if kind == "recipe":
        recipes = published_recipes(context, scenario)
        match = next((match for match in recipes if match.recipe.id == name), None)
        return check_recipe(match, proposal.plan, scenario) if match else None
    if kind == "playbook":
        book = next((playbook for playbook in playbooks if playbook.id == name), None)
        return check_playbook(book, before, proposal.plan, scenario) if book else None
    if kind == "profile":
        term = next((term for term, cause in CAUSE_OF_TERM.items() if cause == name), None)
        old = workload_in(context, scenario).predict([before])[0]
        return check_profile(term, old, proposal.prediction, reference)
    return None


def confirmed_runs(
    context: Context, scenario: Scenario, hits: Sequence[KnowledgeHit], tenant: str | None
) -> list[tuple[str, PlanFields]]:
    """Plans that were run on this device and may be tried here: a reference and the fields they state."""
    entries = [context.knowledge.find(hit.id, tenant) for hit in hits if hit.kind == "case"]
    cases = [
        (f"case:{entry.id}", {name: value for name, value in entry.body.after.items() if name in SUGGESTED})
        for entry in entries
        if entry is not None
        and entry.status == "confirmed"
        and isinstance(entry.body, Case)
        and entry.body.after
        and entry.body.device == scenario.cluster.device
    ]
    recipes: dict[tuple[int, ...], tuple[str, PlanFields]] = {}
    for match in published_recipes(context, scenario):
        if match.is_same_device and check_recipe(match, match.recipe.plan, scenario):
            family = family_of(match.recipe.plan)
            fields: PlanFields = dict(zip(FAMILY, family, strict=True))
            recipes.setdefault(family, (f"recipe:{match.recipe.id}", fields))
    return [*recipes.values(), *cases]


def published_recipes(context: Context, scenario: Scenario) -> list[RecipeMatch]:
    """The plans published for this model, the nearest first."""
    recipes = nearest_recipes(scenario, MAX_RECIPES, context.recipes)
    return [match for match in recipes if match.is_same_model]


def search_under(context: Context, scenario: Scenario, constraints: Mapping[str, JsonValue]) -> list[Plan]:
    """The best plans under further constraints; none if nothing fits them."""
    narrowed = scenario.model_copy(update={"constraints": {**scenario.constraints, **constraints}})
    try:
        return best_plans(workload_in(context, narrowed), context.progress)[0]
    except InfeasibleError:
        return []


def compare_ties(context: Context, scenario: Scenario, proposals: Sequence[Proposal]) -> list[Evidence]:
    """For each proposal how near it is to the fastest, and whether that is beyond the comparison's error."""
    workload = workload_in(context, scenario)
    fastest = min(proposals, key=lambda proposal: proposal.prediction.step_time_s)
    evidence = []
    for proposal in proposals:
        behind = proposal.prediction.step_time_s / fastest.prediction.step_time_s - 1
        tie = "inside" if behind <= workload.pair_error else "beyond"
        says = f"{behind:.1%} behind the fastest by prediction, {tie} the error of a comparison"
        if proposal.plan == fastest.plan:
            says = "the fastest by prediction"
        evidence.append(Evidence(kind="model", ref="comparison", says=says))
    return evidence


def learn_case(context: Context, case: Mapping[str, JsonValue], tenant: str | None) -> str:
    """Keeps the outcome of a session in the knowledge base; the same id is kept once, as first written."""
    known = context.knowledge.find(str(case["id"]), tenant)
    return (known or context.knowledge.add(dict(case), by=ASAP, tenant=tenant)).id
