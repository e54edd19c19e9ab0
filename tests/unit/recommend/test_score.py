"""Plans from elsewhere: judged like the search's own, and unable to make the answer worse."""

from dataclasses import replace

import pytest

from tests.unit.recommend.cases import Raw, llama, recommendation, workload_for
from tools.kb.recipes import nearest_recipes
from tools.recommend.choose import MAX_PROPOSALS
from tools.recommend.report import Evidence, Proposal, ScoredPlan
from tools.recommend.score import check_recipe, complete, rank, score
from tools.scenario import parse_scenario


def best() -> Proposal:
    """The fastest: tp 4, pp 4, cp 2."""
    return min(recommendation(llama()).proposals, key=lambda plan: plan.prediction.step_time_s)


OTHER: Raw = {"tp": 8, "pp": 2, "vpp": 1, "cp": 1}
"""A plan that fits, of another family."""


def judged(constraints: Raw | None = None, **fields: object) -> ScoredPlan:
    workload = workload_for(llama(constraints=constraints))
    return score(workload, complete(workload, best().plan, fields), best())


@pytest.mark.parametrize(
    ("constraints", "fields", "binding", "why"),
    [
        ({}, {"ep": 2}, "rule", "ep"),
        (
            {},
            {"tp": 1, "pp": 1, "vpp": 1, "zero_stage": 1, "recompute": "none", "micro_batch_size": 2},
            "memory",
            "GiB",
        ),
        ({"tp": 4}, OTHER, "constraint", "tp"),
    ],
)
def test_a_refused_plan_names_what_binds_and_has_no_proposal(
    constraints: Raw, fields: Raw, binding: str, why: str
) -> None:
    refused = judged(constraints, **fields)
    assert (refused.accepted, refused.binding, refused.proposal) == (False, binding, None)
    assert why in refused.why


def test_a_persons_plan_fills_an_empty_place_and_none_is_doubled() -> None:
    other = judged(**OTHER)
    own = other.model_copy(update={"by_person": True})
    assert [p.plan for p in rank([best()], [other, own, own, judged()])] == [best().plan, other.plan]
    assert len(rank(recommendation(llama()).proposals, [other])) == MAX_PROPOSALS


def supported(plan: ScoredPlan, *refs: str) -> ScoredPlan:
    support = [Evidence(kind="knowledge", ref=ref, says="checked") for ref in refs]
    return plan.model_copy(update={"support": support})


def near(**fields: int) -> ScoredPlan:
    """A plan of another family than the proposals', by prediction as fast as the first."""
    plan = judged(None, **fields)
    assert plan.proposal is not None
    alike = plan.proposal.model_copy(update={"prediction": best().prediction})
    return plan.model_copy(update={"proposal": alike})


@pytest.mark.parametrize(
    ("refs", "rank_of_plan"),
    [((), None), (("playbook:a",), None), (("playbook:a", "profile:compute"), 2), (("case:a",), 1)],
)
def test_inside_the_window_checked_evidence_decides(refs: tuple[str, ...], rank_of_plan: int | None) -> None:
    proposals = recommendation(llama()).proposals
    plan = supported(near(tp=8, pp=8, vpp=1, cp=1), *refs)
    joined = rank(proposals, [plan])
    ranks = {proposal.rank for proposal in joined if proposal.plan == plan.plan}
    assert ranks == ({rank_of_plan} if rank_of_plan else set())
    assert min(proposal.prediction.step_time_s for proposal in joined) == min(
        proposal.prediction.step_time_s for proposal in proposals
    )
    families = {
        (proposal.plan.tp, proposal.plan.pp, proposal.plan.cp, proposal.plan.ep) for proposal in joined
    }
    assert len(families) == len(joined) == MAX_PROPOSALS
    assert [proposal.role for proposal in joined].count("recommended") == 1


@pytest.mark.parametrize(
    ("ref", "update", "leads"),
    [
        ("case:a", {}, True),
        ("exact_recipe:a", {}, True),
        ("recipe:a", {}, False),
        ("case:a", {"fit_probability": 0.7}, False),
        ("case:a", {"step_time_s": 1.01}, False),
        ("run:a", {"step_time_s": 1.01}, True),
        ("case:a", {"step_time_s": 1.01, "peak_memory_gib": 0.5}, True),
    ],
)
def test_evidence_leads_only_what_likely_fits_and_is_not_beaten_in_time_and_memory(
    ref: str, update: dict[str, float], leads: bool
) -> None:
    plan = near(tp=8, pp=8, vpp=1, cp=1)
    assert plan.proposal is not None
    start = best().prediction
    scaled = {
        name: value if name == "fit_probability" else value * getattr(start, name)
        for name, value in update.items()
    }
    prediction = start.model_copy(update={"fit_probability": 0.99, **scaled})
    plan = plan.model_copy(update={"proposal": plan.proposal.model_copy(update={"prediction": prediction})})
    first, *_ = rank(recommendation(llama()).proposals, [supported(plan, ref)])
    assert (first.plan == plan.plan) == leads


def slower(plan: ScoredPlan, ratio: float) -> ScoredPlan:
    assert plan.proposal is not None
    step_s = best().prediction.step_time_s * ratio
    prediction = best().prediction.model_copy(update={"step_time_s": step_s})
    return plan.model_copy(update={"proposal": plan.proposal.model_copy(update={"prediction": prediction})})


@pytest.mark.parametrize(("ratio", "expected"), [(1.1, 2), (1.2, None)])
def test_a_published_recipe_earns_an_alternatives_place_within_the_error_of_a_comparison(
    ratio: float, expected: int | None
) -> None:
    plan = supported(slower(near(tp=8, pp=8, vpp=1, cp=1), ratio), "recipe:a")
    joined = rank(recommendation(llama()).proposals, [plan], pair_error=0.125)
    assert next((p.rank for p in joined if p.plan == plan.plan), None) == expected


def test_a_recipe_of_this_model_speaks_for_its_family_on_any_device_near_in_size() -> None:
    scenario = parse_scenario({**llama(), "plan": None}, need_plan=False)
    matches = [match for match in nearest_recipes(scenario, 50) if match.is_same_model]
    elsewhere = next(m for m in matches if not m.is_same_device and m.recipe.framework == "megatron-core")
    plan = elsewhere.recipe.plan
    evidence = check_recipe(elsewhere, plan, scenario)
    assert evidence is not None
    assert evidence.ref == f"recipe:{elsewhere.recipe.id}"
    assert check_recipe(elsewhere, plan.model_copy(update={"pp": 2 * plan.pp}), scenario) is None
    assert check_recipe(elsewhere._replace(is_same_model=False), plan, scenario) is None
    far = elsewhere._replace(recipe=replace(elsewhere.recipe, num_devices=4096))
    assert check_recipe(far, plan, scenario) is None


def test_a_persons_plan_stands_alone_if_trials_have_settled_the_rest() -> None:
    plan = judged(None, tp=8)
    assert rank([], [plan]) == []
    joined = rank([], [plan.model_copy(update={"by_person": True})])
    assert [(proposal.rank, proposal.role, proposal.plan) for proposal in joined] == [
        (1, "recommended", plan.plan)
    ]


def test_a_better_plan_of_a_proposals_family_takes_its_place_with_its_evidence() -> None:
    proposals = recommendation(llama()).proposals
    first = proposals[0]
    plan = first.plan.model_copy(update={"micro_batch_size": 2 * first.plan.micro_batch_size})
    for ratio, fit, wins in ((0.97, 0.95, True), (0.97, 0.5, False), (1.01, 0.95, False)):
        step_s = first.prediction.step_time_s * ratio
        better = first.prediction.model_copy(update={"step_time_s": step_s, "fit_probability": fit})
        own = first.model_copy(update={"plan": plan, "prediction": better, "evidence": []})
        joined = rank(proposals, [judged(**OTHER).model_copy(update={"plan": plan, "proposal": own})])
        assert (joined[0].plan == plan) == wins
        assert (first.plan in [entry.plan for entry in joined]) != wins
        assert not wins or {entry.ref for entry in joined[0].evidence} >= {e.ref for e in first.evidence}


def test_the_plan_that_a_person_brings_is_among_the_proposals_beside_the_first_and_the_fastest() -> None:
    proposals = recommendation(llama()).proposals
    assert len(proposals) == MAX_PROPOSALS
    for fields in (OTHER, {"micro_batch_size": 1, "recompute": "full"}):
        own = judged(**fields).model_copy(update={"by_person": True})
        assert own.proposal
        joined = rank(proposals, [own])
        assert len(joined) == MAX_PROPOSALS
        assert own.plan in [entry.plan for entry in joined[1:]]
        assert joined[0].plan == proposals[0].plan
        assert best().plan in [entry.plan for entry in joined]
