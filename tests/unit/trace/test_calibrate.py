"""Constants of the cost model from measured figures: what the model produced must come back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.trace.builders import collective, rank_profile
from tools.cost.calibration import calibrated_to, shipped_calibration
from tools.cost.constants import resolve
from tools.cost.encode import encode
from tools.cost.kernels import gemm_s
from tools.cost.predict import Prediction, predict
from tools.hardware import get_device
from tools.scenario import Scenario, parse_scenario
from tools.trace.calibrate import (
    ClusterMeasurements,
    MeasuredCoefficient,
    large_products,
    measure_cluster,
    measure_coefficients,
)
from tools.trace.host import HostProfile
from tools.trace.roofline import RoofPoint
from tools.trace.terms import MeasuredTerms

NOTHING = MeasuredTerms({}, 0.0, 0)
DEVICE = get_device("h100-sxm-80gb")


def _scenario(**training: object) -> Scenario:
    dims = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "vocab_size": 32000}
    run = {"seq_len": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "torchtitan"}
    degrees = {"tp": 2, "pp": 1, "cp": 1, "ep": 1, "dp": 8, "dp_shard": 8}
    content = {
        "model": {"num_hidden_layers": 16, **dims},
        "cluster": {"device": "h100-sxm-80gb", "num_devices": 16, "devices_per_node": 8},
        "training": {**run, "flash_attention": True, **training},
        "plan": {**degrees, "zero_stage": 3, "micro_batch_size": 2},
    }
    return parse_scenario(content)


def _product(efficiency: float, m: int, n: int, k: int, precision: str = "bf16") -> RoofPoint:
    """A product that takes as long as the model says at this efficiency."""
    x, keys = encode([_scenario(precision=precision)])
    name = "gemm_efficiency" if precision == "bf16" else "fp8_gain"
    shifts = calibrated_to(shipped_calibration(), keys, {name: efficiency}).shifts
    time_s = float(
        gemm_s(x, resolve(keys, shifts), np.asarray(float(m)), np.asarray(float(n)), np.asarray(float(k)))
    )
    flops, moved = 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n)
    return RoofPoint("aten::mm", "s", precision, 3, round(3 * time_s * 1e9), flops, moved, dims=(1, m, n, k))


def _values(found: list[MeasuredCoefficient]) -> dict[str, float]:
    return {one.name: one.value for one in found}


def test_nothing_measured_is_nothing_claimed() -> None:
    assert measure_coefficients([rank_profile()], NOTHING, _scenario()) == []


def test_the_efficiency_of_products_is_that_of_the_models_own_formula() -> None:
    points = [_product(0.5, 8192, 8192, 2048), _product(0.5, 8192, 2048, 4096)]
    found = measure_coefficients([rank_profile(roofline=points)], NOTHING, _scenario())
    assert _values(found) == pytest.approx({"gemm_efficiency": 0.5}, rel=1e-4)


def test_eight_bit_products_set_their_gain_only() -> None:
    points = [_product(0.8, 8192, 8192, 4096, "fp8")]
    found = measure_coefficients([rank_profile(roofline=points)], NOTHING, _scenario(precision="fp8"))
    assert _values(found) == pytest.approx({"fp8_gain": 0.8}, rel=1e-4)


def test_batched_and_small_products_say_nothing() -> None:
    small = _product(0.5, 64, 64, 64)
    assert measure_coefficients([rank_profile(roofline=[small])], NOTHING, _scenario()) == []


def test_fused_attention_sets_its_own_efficiency() -> None:
    flops, width = 1e12, 128
    ideal_s = flops / DEVICE.peak_flops["bf16"]
    half = float(resolve(encode([_scenario()])[1], shipped_calibration().shifts).attention_head_dim_half)
    time_ns = round(ideal_s * (width + half) / width / 0.4 * 1e9)
    dims = (2, 8, 4096, 4096, width)
    call = RoofPoint("aten::_flash_attention_forward", "s", "bf16", 1, time_ns, flops, 1e9, dims=dims)
    found = measure_coefficients([rank_profile(roofline=[call])], NOTHING, _scenario())
    assert _values(found) == pytest.approx({"attention_efficiency": 0.4}, rel=1e-4)
    assert (
        measure_coefficients([rank_profile(roofline=[call])], NOTHING, _scenario(flash_attention=False)) == []
    )


@pytest.mark.parametrize(
    ("ranks", "name", "link_bytes_per_s"),
    [
        ((0, 1), "fast_link_efficiency", DEVICE.intra_node_bytes_per_s),
        ((0, 8), "slow_link_efficiency", DEVICE.inter_node_bytes_per_s),
    ],
)
def test_a_link_at_half_its_speed_has_half_its_efficiency(
    ranks: tuple[int, int], name: str, link_bytes_per_s: float
) -> None:
    size = 10**9
    time_ns = round(size / (link_bytes_per_s / 2) * 1e9)
    event = collective(0, time_ns, ranks, size=size)
    profiles = [rank_profile(rank, collectives=[event]) for rank in ranks]
    found = measure_coefficients(profiles, NOTHING, _scenario())
    assert _values(found) == pytest.approx({name: 0.5}, rel=1e-4)


def test_the_host_sets_its_time_for_a_launch_when_there_are_enough() -> None:
    many = HostProfile(launches=1000, launch_interval_median_ns=9000)
    few = HostProfile(launches=10, launch_interval_median_ns=9000)
    assert _values(measure_coefficients([rank_profile(host=many)], NOTHING, _scenario())) == {
        "host_kernel_s": 9e-6
    }
    assert measure_coefficients([rank_profile(host=few)], NOTHING, _scenario()) == []


@settings(max_examples=40, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "gemm_efficiency": st.floats(0.35, 0.95),
            "elementwise_traffic": st.floats(0.3, 4.5),
            "tp_exposed": st.floats(0.1, 0.9),
            "dp_exposed": st.floats(0.05, 0.9),
            "optimizer_traffic": st.floats(0.6, 3.5),
            "scale_jitter": st.floats(0.001, 0.014),
            "step_overhead_s": st.floats(0.002, 0.25),
        }
    )
)
def test_a_step_that_the_model_made_is_predicted_again(truth: dict[str, float]) -> None:
    scenario = _scenario()
    made, wider = _made_step(truth), _made_step({**truth, "scale_jitter": 2 * truth["scale_jitter"]})
    terms_s = made.breakdown_s
    # the host's term is a line over the jitter: doubling it adds what it was
    waiting_s = wider.breakdown_s["host_and_other"] - terms_s["host_and_other"]
    measured = MeasuredTerms({name: value for name, value in terms_s.items() if value}, waiting_s, 3)
    found = _values(measure_coefficients([rank_profile()], measured, scenario))
    assert found == pytest.approx(truth, rel=1e-5)
    assert _made_step(found).step_time_s == pytest.approx(made.step_time_s, rel=1e-6)


def _made_step(constants: dict[str, float]) -> Prediction:
    scenario = _scenario()
    _, keys = encode([scenario])
    return predict([scenario], calibrated_to(shipped_calibration(), keys, constants))[0]


def test_a_value_beyond_the_bounds_is_cut_and_said() -> None:
    terms = MeasuredTerms({"compute": 1e3, "host_and_other": 1e-9}, 0.0, 3)
    found = {one.name: one for one in measure_coefficients([rank_profile()], terms, _scenario())}
    assert found["gemm_efficiency"].value == 0.3
    assert found["gemm_efficiency"].is_bounded


def test_waiting_becomes_jitter_and_not_host_overhead() -> None:
    def overhead(waiting_s: float) -> float:
        terms = MeasuredTerms({"compute": 1.0, "host_and_other": 0.1 + waiting_s}, waiting_s, 3)
        return _values(measure_coefficients([rank_profile()], terms, _scenario()))["step_overhead_s"]

    # 0.5 s is more than jitter's bound can explain: the rest must not turn into overhead
    assert overhead(0.5) == pytest.approx(overhead(0.01), rel=1e-6)


def test_an_optimizer_that_cannot_be_told_apart_is_taken_out_of_memory_bound_work() -> None:
    terms_s = predict([_scenario()])[0].breakdown_s
    both_s = terms_s["memory_bound_ops"] + terms_s["optimizer"]
    terms = MeasuredTerms({"memory_bound_ops": both_s, "host_and_other": 0.05}, 0.0, 3)
    found = measure_coefficients([rank_profile()], terms, _scenario())
    (traffic,) = (one for one in found if one.name == "elementwise_traffic")
    assert traffic.value == pytest.approx(traffic.default)


A100 = get_device("a100-sxm-80gb")


def _roof_point(
    flops: float, op: str = "aten::mm", precision: str = "bf16", moved: float = 1e-3
) -> RoofPoint:
    return RoofPoint(op, "m×n×k", precision, 1, 1000, flops, flops * moved)


def test_products_that_are_small_or_wait_for_memory_say_nothing_of_the_arithmetic_rate() -> None:
    large = _roof_point(1e12)
    others = [
        _roof_point(1e6),
        _roof_point(1e12, moved=1.0),
        _roof_point(1e12, precision="fp32"),
        _roof_point(1e12, op="aten::_flash_attention_forward"),
    ]
    assert large_products([large, *others], A100, "bf16") == [large]
    assert large_products([large], A100, "nvfp4") == []


@pytest.mark.parametrize(("ranks", "inside"), [((0, 1), True), ((0, 8), False)])
def test_links_inside_and_across_nodes_are_told_apart(ranks: tuple[int, int], inside: bool) -> None:
    early = rank_profile(ranks[0], collectives=[collective(0, 20_000_000, ranks, size=10**8)])
    late = rank_profile(ranks[1], collectives=[collective(19_000_000, 20_000_000, ranks, size=10**8)])
    measured = measure_cluster([early, late], A100)
    found = measured.intra_node_bytes_per_s if inside else measured.inter_node_bytes_per_s
    assert found == pytest.approx(10**8 / 1e-3)
    assert (measured.inter_node_bytes_per_s if inside else measured.intra_node_bytes_per_s) is None


def test_small_messages_say_nothing_of_the_link() -> None:
    ranks = [rank_profile(rank, collectives=[collective(0, 5000, (0, 1))]) for rank in (0, 1)]
    assert measure_cluster(ranks, A100).intra_node_bytes_per_s is None


def test_the_network_cards_of_a_node_work_side_by_side() -> None:
    ranks = tuple(range(16))
    profiles = [
        rank_profile(rank, collectives=[collective(0, 10_000_000, ranks, size=10**8)]) for rank in ranks
    ]
    reached = measure_cluster(profiles, A100).inter_node_bytes_per_s
    # an all-reduce sends the message twice; half of it crosses, over the eight cards of a node
    assert reached == pytest.approx(2 * 10**8 / 2 / 8 / 10e-3)


def test_no_collectives_measure_no_links() -> None:
    assert measure_cluster([rank_profile()], A100) == ClusterMeasurements()
