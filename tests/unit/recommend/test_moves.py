"""A playbook's moves on a real plan, and whether a proposal makes them."""

from typing import Any

import pytest

from tests.unit.recommend.cases import llama
from tools.kb import Playbook
from tools.recommend.report import Evidence, PlanFields
from tools.recommend.situation import agrees, resolve_moves, supporting
from tools.scenario import Plan, parse_scenario

SCENARIO = parse_scenario(llama(), need_plan=False)
assert SCENARIO.plan is not None
TODAY: Plan = SCENARIO.plan


@pytest.mark.parametrize(
    ("move", "fields"),
    [
        ({"tp": "/2"}, {"tp": TODAY.tp // 2}),
        ({"micro_batch_size": "x2"}, {"micro_batch_size": 2}),
        ({"tp": "devices_per_node"}, {"tp": 8}),
        ({"dp_shard": "all_data_ranks"}, {"dp_shard": TODAY.dp * TODAY.cp}),
        ({"dp_shard": "all_data_ranks", "tp": "/2"}, {"dp_shard": 2 * TODAY.dp, "tp": TODAY.tp // 2}),
        ({"cp": "x2", "dp_shard": "all_data_ranks"}, {"cp": 2, "dp_shard": TODAY.dp}),
        ({"dp": 8, "dp_shard": "all_data_ranks"}, {"dp": 8, "dp_shard": 8}),
        ({"recompute": "selective", "zero_stage": 1}, {"recompute": "selective", "zero_stage": 1}),
    ],
)
def test_a_move_becomes_figures_of_the_plan(move: dict[str, Any], fields: dict[str, Any]) -> None:
    assert resolve_moves([move], TODAY, SCENARIO) == [fields]


def test_sharding_over_all_data_ranks_of_a_plan_with_one_is_over_those_of_the_changed_plan() -> None:
    """Defect 5: "dp 8, ZeRO 3 over 1"."""
    alone = TODAY.model_copy(update={"tp": 8, "pp": 8, "dp": 1, "dp_shard": 1, "zero_stage": 0})
    move: PlanFields = {"tp": "/8", "zero_stage": 3, "dp_shard": "all_data_ranks"}
    assert resolve_moves([move], alone, SCENARIO) == [{"tp": 1, "zero_stage": 3, "dp_shard": 8}]


def test_what_cannot_be_halved_is_left_out() -> None:
    assert resolve_moves([{"micro_batch_size": "/2"}], TODAY, SCENARIO) == []


def test_a_proposal_agrees_with_a_move_in_its_direction_only() -> None:
    after = TODAY.model_copy(update={"tp": TODAY.tp // 4, "recompute": "none"})
    assert agrees({"tp": TODAY.tp // 2}, TODAY, after)
    assert not agrees({"tp": TODAY.tp * 2}, TODAY, after)
    assert agrees({"recompute": "none"}, TODAY, after)
    assert not agrees({"recompute": "selective"}, TODAY, after)
    assert not agrees({"tp": TODAY.tp // 2, "pp": TODAY.pp * 2}, TODAY, after)
    assert not agrees({}, TODAY, after)


def test_a_supporting_playbook_is_evidence_with_its_effect() -> None:
    book = Playbook.model_validate(
        {
            "id": "less-tp",
            "title": "Less tp",
            "when": [{"fact": "tp", "above": 1}],
            "symptoms": "much to send",
            "do": "halve it",
            "why": "less to send",
            "effect": "10% here",
            "risks": ["more memory"],
            "sources": [{"title": "a paper", "where": "its address"}],
            "moves": [{"tp": "/2"}],
        }
    )
    other = book.model_copy(update={"id": "none", "moves": ()})
    after = TODAY.model_copy(update={"tp": TODAY.tp // 2})
    evidence = supporting([book, other], TODAY, after, SCENARIO)
    assert evidence == [Evidence(kind="knowledge", ref="less-tp", says="Less tp: 10% here")]
