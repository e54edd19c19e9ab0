"""Plans from elsewhere: judged like the search's own, and unable to make the answer worse."""

import pytest

from tests.unit.recommend.cases import llama, recommendation
from tools.errors import InputError
from tools.recommend.choose import MAX_PROPOSALS
from tools.recommend.optimize import workload_of
from tools.recommend.report import Proposal, ScoredPlan
from tools.recommend.score import complete, join, score
from tools.recommend.workload import Workload
from tools.scenario import parse_scenario


def workload(**changed: object) -> Workload:
    return workload_of(parse_scenario(llama(**changed), need_plan=False))


def best() -> Proposal:
    return recommendation(llama()).proposals[0]


def judged(asked: Workload, **fields: object) -> ScoredPlan:
    return score(asked, complete(asked, best().plan, fields), best())


def test_a_refused_plan_names_the_rule_and_has_no_proposal() -> None:
    refused = judged(workload(), ep=2)
    assert not refused.accepted
    assert refused.binding == "rule"
    assert "ep" in refused.why
    assert refused.proposal is None


def test_a_plan_that_does_not_fit_is_told_how_much_it_lacks() -> None:
    refused = judged(workload(), tp=1, pp=1, zero_stage=1, recompute="none", micro_batch_size=2, vpp=1)
    assert refused.binding == "memory"
    assert "GiB" in refused.why


def test_a_plan_against_the_users_constraint_is_refused() -> None:
    refused = judged(workload(constraints={"tp": 4}), tp=8)
    assert refused.binding == "constraint"


def test_an_accepted_plan_has_a_proposal_of_its_own() -> None:
    accepted = judged(workload(), tp=8)
    assert accepted.accepted
    assert accepted.proposal is not None
    assert accepted.proposal.plan == accepted.plan


def test_a_slower_suggestion_never_displaces_a_proposal() -> None:
    proposals = recommendation(llama()).proposals
    joined = join(proposals, [judged(workload(), tp=8, recompute="full")])
    assert [one.plan for one in joined] == [one.plan for one in proposals]


def test_a_clearly_faster_suggestion_goes_before_what_it_beats() -> None:
    one = judged(workload(), tp=8)
    slower = best().prediction.model_copy(update={"step_time_s": 1e9})
    slow = [best().model_copy(update={"prediction": slower})]
    assert [p.plan for p in join(slow, [one])] == [one.plan, best().plan]
    assert [p.rank for p in join(slow, [one])] == [1, 2]


def test_a_suggestion_fills_an_empty_place_and_none_is_doubled() -> None:
    one = judged(workload(), tp=8)
    joined = join([best()], [one, one, judged(workload())])
    assert [p.plan for p in joined] == [best().plan, one.plan]
    assert len(join(recommendation(llama()).proposals, [one])) == MAX_PROPOSALS


def test_an_unknown_field_of_a_plan_is_named() -> None:
    with pytest.raises(InputError, match=r"plan\.tpp"):
        complete(workload(), best().plan, {"tpp": 2})
