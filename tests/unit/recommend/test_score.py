"""Plans from elsewhere: judged like the search's own, and unable to make the answer worse."""

import pytest

from tests.unit.recommend.cases import Raw, llama, recommendation, workload_for
from tools.errors import InputError
from tools.recommend.choose import MAX_PROPOSALS
from tools.recommend.report import Proposal, ScoredPlan
from tools.recommend.score import complete, rank, score


def best() -> Proposal:
    return recommendation(llama()).proposals[0]


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
        ({"tp": 4}, {"tp": 8}, "constraint", "tp"),
    ],
)
def test_a_refused_plan_names_what_binds_and_has_no_proposal(
    constraints: Raw, fields: Raw, binding: str, why: str
) -> None:
    refused = judged(constraints, **fields)
    assert (refused.accepted, refused.binding, refused.proposal) == (False, binding, None)
    assert why in refused.why


def test_an_accepted_plan_has_a_proposal_of_its_own() -> None:
    accepted = judged(tp=8)
    assert accepted.accepted
    assert accepted.proposal is not None
    assert accepted.proposal.plan == accepted.plan


def test_a_slower_suggestion_never_displaces_a_proposal() -> None:
    proposals = recommendation(llama()).proposals
    joined = rank(proposals, [judged(tp=8, recompute="full")])
    assert [proposal.plan for proposal in joined] == [proposal.plan for proposal in proposals]


def test_a_clearly_faster_suggestion_goes_before_what_it_beats() -> None:
    faster = judged(tp=8)
    slow = best().prediction.model_copy(update={"step_time_s": 1e9})
    joined = rank([best().model_copy(update={"prediction": slow})], [faster])
    assert [(p.rank, p.plan) for p in joined] == [(1, faster.plan), (2, best().plan)]


def test_a_persons_plan_fills_an_empty_place_and_none_is_doubled() -> None:
    other = judged(tp=8)
    own = other.model_copy(update={"by_person": True})
    assert [p.plan for p in rank([best()], [other, own, own, judged()])] == [best().plan, other.plan]
    assert len(rank(recommendation(llama()).proposals, [other])) == MAX_PROPOSALS


def test_an_unknown_field_of_a_plan_is_named() -> None:
    with pytest.raises(InputError, match=r"plan\.tpp"):
        complete(workload_for(llama()), best().plan, {"tpp": 2})
