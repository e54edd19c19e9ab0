"""Scores plans from outside (an agent, an engineer) like the search's own, and ranks with evidence.

The guarantee: rank 1 is within the comparison error of the fastest plan that was searched; inside that window
the order follows evidence that code has checked; one slot is always the fastest; families differ.
"""

import math
from collections.abc import Mapping, Sequence

from tools.errors import InputError
from tools.kb.entries import Case, Entry, Playbook
from tools.kb.recipes import RecipeMatch
from tools.model.predict import Prediction
from tools.recommend.choose import FAMILY, MAX_PROPOSALS, SAFE
from tools.recommend.measured import citations
from tools.recommend.proposal import own_terms, proposal
from tools.recommend.report import Evidence, Proposal, Role, ScoredPlan
from tools.recommend.situation import supporting
from tools.recommend.switch import with_commands
from tools.recommend.why import WEIGHTS, kind_of, why
from tools.recommend.why_not import explain, find_changed
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario
from tools.scenario.fields import build, refuse_unknown
from tools.scenario.spec import MODEL_AXES

EVIDENCE_WINDOW = 0.05
"""How far (log of step time) a plan may be behind the fastest for evidence to count."""
MIN_SUPPORT = 2
"""What a plan needs to take the place of an alternative: a confirmed run, or two weaker reasons."""
MAX_SIZE_RATIO = 4
"""How far the device counts of a case and of this job may be apart."""


def complete(workload: Workload, start: Plan, fields: Mapping[str, object]) -> Plan:
    """The plan `start` with some fields replaced; the data-parallel degree and what depends on it follow."""
    refuse_unknown(fields, Plan.model_fields, "plan.")
    typed = build(Plan, {**start.model_dump(), **fields}, "plan.")
    plan = find_changed(workload, start, {name: getattr(typed, name) for name in fields})
    if plan is None:
        devices = workload.scenario.cluster.num_devices
        allowed = f"{' * '.join(MODEL_AXES)} must be whole numbers that divide {devices} devices"
        raise InputError("plan", dict(fields), allowed)
    return plan


def score(workload: Workload, plan: Plan, best: Proposal) -> ScoredPlan:
    """Accepted with a proposal of its own, or refused with the reason; `best` is the first proposal."""
    objection = workload.objection(plan)
    if objection is not None:
        return ScoredPlan(plan=plan, summary=short(plan), accepted=False, binding="rule", why=objection)
    prediction = workload.predict([plan])[0]
    cited, crashes = citations(workload, plan, prediction)
    if not prediction.fits and crashes:
        return ScoredPlan(
            plan=plan, summary=short(plan), accepted=False, binding="trial", why=crashes[0], support=cited
        )
    verdict = explain(workload, plan, best.plan, best.prediction, prediction)
    accepted = verdict.binding not in ("memory", "constraint")
    own = proposal(workload, MAX_PROPOSALS, plan, prediction, workload.today()) if accepted else None
    return ScoredPlan(**dict(verdict), accepted=accepted, proposal=own)


def check_case(entry: Entry, plan: Plan, scenario: Scenario) -> Evidence | None:
    """Evidence for a plan: a confirmed run of a workload of this kind, on this device, with this family."""
    case = entry.body
    if not isinstance(case, Case) or entry.status != "confirmed" or case.after is None:
        return None
    kind = "moe" if scenario.model.is_moe else "dense"
    wanted = (kind, scenario.cluster.device, scenario.training.framework)
    if (case.architecture, case.device, case.framework) != wanted:
        return None
    if not _is_near_in_size(case.num_devices or 0, scenario):
        return None
    stated = {name: value for name, value in case.after.items() if value is not None}
    family = [name for name in FAMILY if name in stated]
    if not {"tp", "pp"} <= {*family} or any(stated[name] != getattr(plan, name) for name in family):
        return None
    says = f"{entry.title}: confirmed with this family"
    return Evidence(kind="knowledge", ref=f"case:{entry.id}", says=says)


def _is_near_in_size(devices: int, scenario: Scenario) -> bool:
    wanted = scenario.cluster.num_devices
    return wanted <= MAX_SIZE_RATIO * devices <= MAX_SIZE_RATIO**2 * wanted


def check_recipe(match: RecipeMatch, plan: Plan, scenario: Scenario) -> Evidence | None:
    """Evidence for a plan: a recipe published for this model and framework has the same family."""
    recipe = match.recipe
    if not match.is_same_model or recipe.framework != scenario.training.framework:
        return None
    if not _is_near_in_size(recipe.num_devices, scenario) or family_of(recipe.plan) != family_of(plan):
        return None
    cluster = scenario.cluster
    is_exact = match.is_same_device and (recipe.num_devices, recipe.precision, recipe.seq_len) == (
        cluster.num_devices,
        scenario.training.precision,
        scenario.training.seq_len,
    )
    kind = "exact_recipe" if is_exact else "recipe"
    return Evidence(kind="knowledge", ref=f"{kind}:{recipe.id}", says=f"{recipe.title} has this family")


def check_playbook(book: Playbook, before: Plan, plan: Plan, scenario: Scenario) -> Evidence | None:
    """Evidence for a plan: it makes the moves of a playbook whose conditions hold."""
    support = supporting([book], before, plan, scenario)
    return support[0].model_copy(update={"ref": f"playbook:{book.id}"}) if support else None


def check_profile(term: str | None, old: Prediction, new: Prediction, ref: str) -> Evidence | None:
    """Evidence for a plan: it shrinks the term that a hypothesis names by a tenth of the step."""
    if term is None:
        return None
    saved_s = old.breakdown_s[term] - new.breakdown_s[term]
    if saved_s < 0.1 * old.step_time_s:
        return None
    says = f"the cause that the evidence names shrinks by {saved_s / old.step_time_s:.0%} of the step"
    return Evidence(kind="profile", ref=ref, says=says)


def support_of(evidence: Sequence[Evidence]) -> int:
    """How much checked evidence weighs: as much as its strongest kind; any number of playbooks as two."""
    kinds = {item.ref: kind_of(item) for item in evidence}
    weights = [WEIGHTS.get(kind, 0) for kind in kinds.values()]
    return max(*weights, min(sum(weights), MIN_SUPPORT), 0)


def rank(
    proposals: Sequence[Proposal], scored: Sequence[ScoredPlan], pair_error: float = EVIDENCE_WINDOW
) -> list[Proposal]:
    """The proposals with what evidence supports and what a person brought; at most three.

    `proposals` are the search's own, so the fastest of them is the fastest of all. A plan that is clearly
    faster (one that the search was not allowed to find) stands first. Evidence gives a plan the place of an
    alternative if a comparison's error allows that it is the fastest, the earlier suggestion first.
    """
    ordered = list(proposals)
    if not ordered:  # trials have settled all that the search found
        own_plans = [plan.proposal for plan in scored if plan.by_person and plan.proposal is not None]
        return with_roles(own_plans[:MAX_PROPOSALS])
    fastest = min(ordered, key=lambda proposal: proposal.prediction.step_time_s)
    fastest_s, window = fastest.prediction.step_time_s, math.exp(EVIDENCE_WINDOW)
    limit_s = max(ordered[0].prediction.step_time_s, fastest_s * window)
    alternative_s = max(limit_s, fastest_s * math.exp(pair_error))
    backed: list[Proposal] = []
    for suggestion in scored:
        if suggestion.proposal is None:
            continue
        own = _supported(suggestion.proposal, suggestion.support)
        is_backed = support_of(suggestion.support) >= MIN_SUPPORT
        # What speaks for a family speaks for its proposal.
        by_family, family = is_backed and not suggestion.by_person, family_of(own.plan)
        same = [
            place
            for place, other in enumerate(ordered)
            if other.plan == own.plan or (by_family and family_of(other.plan) == family)
        ]
        rivals = [place for place, other in enumerate(ordered) if _improves(own, other)]
        if rivals and not same:
            same = rivals[:1]
        if same:
            known = ordered[same[0]]
            better = _supported(own, known.evidence) if _improves(own, known) else known
            ordered[same[0]] = _supported(better, suggestion.support)
        elif own.prediction.step_time_s * window < fastest_s:
            ordered.insert(0 if _is_safe(own) else 1, own)
        elif is_backed and own.prediction.step_time_s <= alternative_s:
            backed.append(own)
        elif suggestion.by_person:
            ordered.append(own)
    ordered[1:1] = backed
    fastest = min(ordered, key=lambda proposal: proposal.prediction.step_time_s)
    # First what a confirmed run stands behind, if it is within the window and the first has none.
    strong = [plan for plan in ordered if support_of(plan.evidence) >= WEIGHTS["case"]]
    near = [plan for plan in strong if plan.prediction.step_time_s <= limit_s and _may_lead(plan, ordered)]
    if near and ordered[0] not in strong:
        ordered.sort(key=lambda plan: plan is not near[0])
    # The first of each family, the fastest among them; more of a family only if there are no others.
    kept: list[Proposal] = []
    for candidate in ordered:
        if all(family_of(candidate.plan) != family_of(other.plan) for other in kept):
            kept.append(candidate)
    kept += [candidate for candidate in ordered if candidate not in kept]
    three = kept[:MAX_PROPOSALS]
    is_beaten = any(candidate.prediction.step_time_s < fastest_s for candidate in three)
    if fastest not in three and not is_beaten:
        three[MAX_PROPOSALS - 1 :] = [fastest]
    # What a person brought can be approved and tried: the newest take the places behind the first.
    brought = [known.plan for known in scored if known.by_person and known.proposal is not None]
    free = [
        place for place in range(len(three) - 1, 0, -1) if three[place].plan not in (fastest.plan, *brought)
    ]
    unseen = [own for own in reversed(ordered) if own.plan in brought and own not in three]
    for place, own in zip(free, unseen, strict=False):
        three[place] = own
    return with_roles(three)


def _is_safe(plan: Proposal) -> bool:
    return plan.prediction.fit_probability >= SAFE


def _may_lead(plan: Proposal, others: Sequence[Proposal]) -> bool:
    """Whether it is as likely to fit as a first plan must be, and none of the others beats it in time and
    memory, unless it was measured here."""
    own = plan.prediction
    is_beaten = any(
        other.step_time_s < own.step_time_s and other.peak_memory_gib <= own.peak_memory_gib
        for other in (entry.prediction for entry in others if _is_safe(entry))
    )
    if not _is_safe(plan) and any(map(_is_safe, others)):
        return False
    return not is_beaten or support_of(plan.evidence) >= WEIGHTS["trial"]


def _improves(plan: Proposal, known: Proposal) -> bool:
    """Whether it is a better plan of the same family: faster, and as likely to fit as a first one must be."""
    own, other = plan.prediction, known.prediction
    is_as_safe = own.fit_probability >= min(SAFE, other.fit_probability)
    is_kin = plan.plan != known.plan and family_of(plan.plan) == family_of(known.plan)
    return is_kin and is_as_safe and own.step_time_s < other.step_time_s


def _supported(plan: Proposal, support: Sequence[Evidence]) -> Proposal:
    """With the evidence that it does not have yet."""
    known = {evidence.ref for evidence in plan.evidence}
    new = [evidence for evidence in support if evidence.ref not in known]
    return plan.model_copy(update={"evidence": [*plan.evidence, *new]}) if new else plan


def without_gains(proposals: Sequence[Proposal], *, keeps_rationale: bool = False) -> list[Proposal]:
    """Without speedups over a plan that cannot run, or that was judged by traces of another job; each is told
    by its own terms, since what it changes of that plan's means as little."""
    made = []
    for plan in proposals:
        told = plan.rationale if keeps_rationale else own_terms(plan.plan, plan.prediction)
        none = {"speedup": None, "speedup_low": None, "speedup_high": None, "two_runs": None}
        made.append(plan.model_copy(update={**none, "rationale": told}))
    return with_roles(made)


def family_of(plan: Plan) -> tuple[int, ...]:
    return tuple(getattr(plan, name) for name in FAMILY)


def with_roles(proposals: Sequence[Proposal]) -> list[Proposal]:
    """Ranked in this order: the first is recommended, then the fastest by prediction is named; what is slower
    than today is an alternative. Each with why it has its slot."""
    if not proposals:
        return []
    fastest = min(proposals, key=lambda plan: plan.prediction.step_time_s)
    roles: dict[int, Role] = {id(fastest): "fastest", id(proposals[0]): "recommended"}
    return [
        plan.model_copy(
            update={
                "rank": place,
                "role": "alternative" if (plan.speedup or 1.0) < 1.0 else roles.get(id(plan), "alternative"),
                "why": why(plan, proposals),
                "two_runs": with_commands(plan.two_runs, place) if plan.two_runs else None,
            }
        )
        for place, plan in enumerate(proposals, start=1)
    ]
