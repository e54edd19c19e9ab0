"""What published runs correct: alike runs share it, a stranger gets nothing, all are compared alike."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.physics.scenes import raw_scenario, scene
from tools.model.calibration import shipped_calibration
from tools.model.likeness import DEGREES, Prices, Traits, distances
from tools.model.near import nearest_runs
from tools.model.predict import predict_rows
from tools.model.published import published_runs
from tools.model.residual import Residual, ResidualPrior, shipped_residual
from tools.physics.encode import encode, encode_plans
from tools.scenario import PlanColumns, Scenario, parse_scenario

PRICES = Prices(
    model=0.2, work=0.2, setting=0.2, precision=0.2, kind=2.0, framework=0.5, generation=1.0, device=0.3
)
PRIOR = ResidualPrior(deviation=0.15, noise=0.03, moe_noise=0.1, prices=PRICES)


def of(error: float, *scenarios: Scenario) -> Residual:
    """Taught by these scenarios alone, all off by the same."""
    x, keys = encode(scenarios)
    runs, errors = Traits.of(x, keys, DEGREES), np.full(len(scenarios), error)
    weights = PRIOR.weights(Traits.of(x, keys), np.broadcast_to(x.is_moe, errors.shape), errors)
    return Residual(PRIOR, runs, [f"run-{n}" for n in range(len(scenarios))], errors, weights)


def parse(**words: object) -> Scenario:
    return parse_scenario(raw_scenario(**words))


SLOW = (parse(seq_len=2048, tp=4), parse(tp=4), parse(tp=2))


def factor(residual: Residual, **words: object) -> float:
    return float(np.exp(residual.correct(*encode([parse(**words)])).log_factor[0]))


def test_a_plan_like_the_slow_ones_is_predicted_slower_and_a_stranger_hardly() -> None:
    residual = of(0.2, *SLOW)
    alike = factor(residual, tp=4)
    neighbour = factor(residual, seq_len=8192, devices=128)
    stranger = factor(
        residual, model="mixtral-8x7b", device="a100-sxm-80gb", framework="torchtitan", zero_stage=3
    )
    assert np.exp(0.2) >= alike > neighbour > stranger
    assert alike > 1.1
    assert abs(stranger - 1.0) < 0.005


def test_a_cluster_of_a_slow_network_is_another_environment_where_it_is_crossed() -> None:
    """BigScience ran on a quarter of the usual cards: its errors say little of others, nor theirs of it."""
    residual = of(0.2, *SLOW)

    def on(share: float, **words: object) -> float:
        s = parse(tp=4, **words)
        card = {"inter_node_gbps_per_device": 400.0 * share}
        cluster = s.cluster.model_copy(update={"overrides": card})
        x, keys = encode([s.model_copy(update={"cluster": cluster})])
        return float(np.exp(residual.correct(x, keys).log_factor[0]))

    assert on(0.25) < on(0.8) == on(1.0) == factor(residual, tp=4)
    assert on(0.25, devices=8) == on(1.0, devices=8)


def test_blackwell_ultra_is_farther_from_blackwell_than_two_blackwells_from_each_other() -> None:
    prices, gb200, b200, gb300 = (
        PRICES,
        *(Traits.of(*encode([parse(device=name)])) for name in ("gb200", "b200", "gb300")),
    )
    assert distances(prices, gb200, gb300) > 2.0 * distances(prices, gb200, b200)


def test_a_fast_run_of_one_s_own_joins_the_published_ones() -> None:
    """A cluster's runs are further observations of the same process."""
    before = of(0.2, *SLOW)
    x, keys = encode([*SLOW, parse(seq_len=16384)])
    runs, errors = Traits.of(x, keys), np.array([0.2, 0.2, 0.2, -0.3])
    joined = replace(before, runs=runs, weights=before.prior.weights(runs, np.zeros(4), errors))
    assert factor(joined, seq_len=16384) < 0.9 < 1.0 < factor(before, seq_len=16384)


def test_all_plans_of_a_workload_are_corrected_alike() -> None:
    """So that a residual never changes which plan is the fastest."""
    calibration = replace(shipped_calibration(), residual=of(0.2, *SLOW))
    plans = PlanColumns.of([plan for tp in (1, 2, 4, 8) if (plan := parse(tp=tp).plan)])
    x, keys = encode_plans(parse(), plans)
    times = [
        predict_rows(x, keys, ["bf16"], c).costs.step_time_s for c in (calibration, calibration.formulas)
    ]
    np.testing.assert_allclose(times[0] / times[1], factor(calibration.residual, tp=4))


def test_the_nearest_run_is_named_with_what_differs_and_how_it_erred() -> None:
    """Of runs of one workload the one whose plan is nearest."""
    found = of(-0.1, *SLOW).nearest(*encode([parse(tp=8, devices=128)]))
    assert (found.id, found.differences) == ("run-1", ("devices", "tp"))
    assert found.error == pytest.approx(np.exp(-0.1) - 1.0)


def test_a_published_run_s_nearest_run_is_itself_in_both_notions_of_near() -> None:
    residual = shipped_residual()
    runs = {run.id: run for run in published_runs()}
    for id in residual.ids[:: len(residual.ids) // 7]:
        scenario = runs[id].scenario
        assert residual.nearest(*encode([scenario])).distance == pytest.approx(0.0, abs=1e-5)  # six digits
        assert nearest_runs(scenario, [runs[id]], 1)[0].distance == pytest.approx(0.0, abs=1e-6)


def test_a_run_without_plan_is_near_by_its_workload_alone() -> None:
    s = scene(tp=4)
    run = next(run for run in published_runs() if run.measured.step_time_s and run.scenario.plan)
    without = run.scenario.model_copy(update={"plan": None})
    assert nearest_runs(without, [run], 1)[0].distance == pytest.approx(0.0, abs=1e-6)
    assert nearest_runs(s.scenario, [run], 1)[0].distance > 0
