"""Other cluster sizes: near a full search, legal, and inside the user's constraints."""

import pytest

from tests.unit.recommend.cases import MIXTRAL, Raw, llama
from tools.recommend.optimize import best_plans, workload_of
from tools.recommend.report import Sensitivity
from tools.recommend.sensitivity import other_sizes
from tools.recommend.workload import Workload
from tools.scenario import parse_scenario
from tools.search.search import Search


def asked(raw: Raw) -> tuple[Workload, dict[int, Sensitivity]]:
    workload = workload_of(parse_scenario(raw, need_plan=False))
    told = other_sizes(workload, best_plans(workload)[1].best)
    return workload, {int(one.if_.split()[0]): one for one in told}


@pytest.mark.parametrize("raw", [llama(), MIXTRAL], ids=["dense", "moe"])
def test_the_answer_is_that_of_a_full_search_within_two_percent(raw: Raw) -> None:
    workload, told = asked(raw)
    assert set(told) == {32, 128}
    for devices, one in told.items():
        cluster = workload.scenario.cluster.model_copy(update={"num_devices": devices})
        scenario = workload.scenario.model_copy(update={"cluster": cluster, "plan": None})
        searched = Search(scenario, workload.constraints, workload.calibration).run()
        fastest = float(searched.best.step_time_s.min())
        assert fastest * (1 - 1e-9) <= (one.step_time_s or 0.0) <= fastest * 1.02


def test_the_users_constraints_hold_on_other_sizes_too() -> None:
    _, told = asked(llama(constraints={"tp": [8], "recompute": "full"}))
    for one in told.values():
        assert one.best is not None
        assert (one.best.tp, one.best.recompute) == (8, "full")


def test_the_largest_cluster_that_a_scenario_may_have_is_not_doubled() -> None:
    tiny = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    training = {
        "seq_len": 128,
        "global_batch_size": 2_000_000,
        "precision": "bf16",
        "framework": "torch-fsdp",
    }
    raw = {
        "model": {**tiny, "vocab_size": 100},
        "cluster": {"device": "h100", "num_devices": 1_000_000},
        "training": training,
        "constraints": {"tp": 1},
    }
    assert set(asked(raw)[1]) == {500_000}


def test_an_odd_cluster_is_not_halved() -> None:
    raw = llama(plan=None, cluster={"device": "h100-sxm-80gb", "num_devices": 35, "devices_per_node": 7})
    raw["training"] = {**raw["training"], "global_batch_size": 140}
    assert set(asked(raw)[1]) <= {70}
