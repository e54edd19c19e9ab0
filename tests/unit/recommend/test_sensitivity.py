"""Other cluster sizes, links and memory: near a full search, legal, and inside the user's constraints."""

import pytest

from tests.unit.recommend.cases import MIXTRAL, Raw, llama, report, workload_for
from tests.unit.recommend.test_optimize import EVERY
from tools.recommend.optimize import best_plans
from tools.recommend.report import Sensitivity
from tools.recommend.sensitivity import other_sizes
from tools.search.search import Search


def by_devices(raw: Raw) -> dict[int, Sensitivity]:
    workload = workload_for(raw)
    return {int(case.if_.split()[0]): case for case in other_sizes(workload, best_plans(workload)[1].best)}


@pytest.mark.parametrize("raw", [llama(), MIXTRAL], ids=["dense", "moe"])
def test_the_answer_is_that_of_a_full_search_within_five_percent(raw: Raw) -> None:
    workload, cases = workload_for(raw), by_devices(raw)
    assert set(cases) == {32, 128}
    for devices, case in cases.items():
        cluster = workload.scenario.cluster.model_copy(update={"num_devices": devices})
        scenario = workload.scenario.model_copy(update={"cluster": cluster, "plan": None})
        searched = Search(scenario, workload.constraints, workload.calibration).run()
        fastest = float(searched.best.step_time_s.min())
        assert fastest * (1 - 1e-9) <= (case.step_time_s or 0.0) <= fastest * 1.05


def test_the_largest_cluster_is_not_doubled_and_an_odd_one_not_halved() -> None:
    dims = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    run = {"seq_len": 128, "global_batch_size": 2_000_000, "precision": "bf16", "framework": "torch-fsdp"}
    largest = {
        "model": {**dims, "vocab_size": 100},
        "cluster": {"device": "h100", "num_devices": 1_000_000},
        "training": run,
        "constraints": {"tp": 1},
    }
    assert set(by_devices(largest)) == {500_000}
    odd = llama(plan=None, cluster={"device": "h100-sxm-80gb", "num_devices": 35, "devices_per_node": 7})
    odd["training"] = {**odd["training"], "global_batch_size": 140}
    assert set(by_devices(odd)) <= {70}


@EVERY
def test_the_pareto_front_falls_in_memory_as_time_rises(raw: Raw) -> None:
    result = report(raw)
    times, memory = (
        [point[name] for point in result["pareto"]] for name in ("step_time_s", "peak_memory_gib")
    )
    assert 1 <= len(times) <= 20
    assert times == sorted(times)
    assert memory == sorted(memory, reverse=True)
    assert all(m <= 0.92 * 79.11 for m in memory)
    proposed = min(proposal["prediction"]["step_time_s"] for proposal in result["proposals"])
    assert times[0] <= proposed * (1 + 1e-9)
