"""Constants of the cost model from measured figures: what the model produced must come back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.trace.builders import collective, rank_profile
from tools.hardware import get_device
from tools.model.calibration import calibrated_to, shipped_calibration
from tools.model.constants import resolve
from tools.model.predict import Prediction, predict
from tools.physics.encode import encode
from tools.physics.kernels import gemm_s, head_share
from tools.scenario import Scenario, parse_scenario
from tools.trace.alignment import align
from tools.trace.calibrate import link_rates, measure_coefficients
from tools.trace.host import HostProfile
from tools.trace.rank_profile import RankProfile
from tools.trace.roofline import RoofPoint
from tools.trace.terms import MeasuredTerms

NOTHING = MeasuredTerms({}, 0.0, 0)
DEVICE = get_device("h100-sxm-80gb")


def _scenario(**training: object) -> Scenario:
    dims = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "vocab_size": 32000}
    run = {"seq_len": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron-core"}
    degrees = {"tp": 2, "pp": 1, "cp": 1, "ep": 1, "dp": 8, "dp_shard": 8}
    content = {
        "model": {"num_hidden_layers": 16, **dims},
        "cluster": {"device": "h100-sxm-80gb", "num_devices": 16, "devices_per_node": 8},
        "training": {**run, "flash_attention": True, **training},
        "plan": {**degrees, "zero_stage": 3, "micro_batch_size": 2},
    }
    return parse_scenario(content)


def _measured(
    profiles: list[RankProfile], terms: MeasuredTerms = NOTHING, **training: object
) -> dict[str, float]:
    coefficients = measure_coefficients(profiles, terms, _scenario(**training))
    return {coefficient.name: coefficient.value for coefficient in coefficients}


def _product(efficiency: float, m: int, n: int, k: int, precision: str = "bf16") -> RoofPoint:
    """A product that takes as long as the model says at this efficiency."""
    x, keys = encode([_scenario(precision=precision)])
    name = "gemm_efficiency" if precision == "bf16" else "fp8_gain"
    constants = resolve(keys, calibrated_to(shipped_calibration(), keys, {name: efficiency}).shifts)
    rows, columns, depth = np.asarray(float(m)), np.asarray(float(n)), np.asarray(float(k))
    time_s = float(gemm_s(x, constants, rows, columns, depth))
    flops, moved = 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n)
    return RoofPoint("aten::mm", "s", precision, 3, round(3 * time_s * 1e9), flops, moved, dims=(1, m, n, k))


def _attention() -> RoofPoint:
    """At an efficiency of 0.4."""
    flops, width = 1e12, 128
    x, _ = encode([_scenario()])
    rate = DEVICE.peak_flops["bf16"] * float(x.attention_kernel * x.power_share)
    time_s = flops / (rate * float(head_share(x, np.asarray(float(width)))) * 0.4)
    dims = (2, 8, 4096, 4096, width)
    op = "aten::_flash_attention_forward"
    return RoofPoint(op, "s", "bf16", 1, round(time_s * 1e9), flops, 1e9, dims=dims)


@pytest.mark.parametrize(
    ("points", "training", "measured"),
    [
        ([], {}, {}),
        ([_product(0.5, 8192, 8192, 2048), _product(0.5, 8192, 2048, 4096)], {}, {"gemm_efficiency": 0.5}),
        ([_product(0.8, 8192, 8192, 4096, "fp8")], {"precision": "fp8"}, {"fp8_gain": 0.8}),
        ([_product(0.5, 64, 64, 64), _product(0.5, 8192, 8192, 16)], {}, {}),
        ([_attention()], {}, {"attention_efficiency": 0.4}),
        ([_attention()], {"flash_attention": False}, {}),
    ],
    ids=[
        "nothing",
        "products",
        "8-bit products",
        "products that are small or wait for memory",
        "attention",
        "attention that is not fused",
    ],
)
def test_the_efficiency_of_kernels_is_that_of_the_models_own_formula(
    points: list[RoofPoint], training: dict[str, object], measured: dict[str, float]
) -> None:
    assert _measured([rank_profile(roofline=points)], NOTHING, **training) == pytest.approx(
        measured, rel=1e-4
    )


@pytest.mark.parametrize(("launches", "measured"), [(1000, {"host_kernel_s": 9e-6}), (10, {})])
def test_the_host_sets_its_time_for_a_launch_if_there_are_enough(
    launches: int, measured: dict[str, float]
) -> None:
    host = HostProfile(launches=launches, launch_interval_median_ns=9000)
    assert _measured([rank_profile(host=host)]) == measured


@settings(max_examples=40)
@given(
    st.fixed_dictionaries(
        {
            "gemm_efficiency": st.floats(0.35, 0.95),
            "elementwise_traffic": st.floats(0.3, 4.5),
            "tp_exposed": st.floats(0.1, 0.9),
            "dp_exposed": st.floats(0.05, 0.5),
            "optimizer_traffic": st.floats(0.6, 3.5),
            "scale_jitter": st.floats(0.001, 0.014),
            "step_overhead_s": st.floats(0.002, 0.25),
        }
    )
)
def test_a_step_that_the_model_made_is_predicted_again(truth: dict[str, float]) -> None:
    made, wider = _made_step(truth), _made_step({**truth, "scale_jitter": 2 * truth["scale_jitter"]})
    terms_s = made.breakdown_s
    # the host's term is a line over the jitter: doubling it adds what it was
    waiting_s = wider.breakdown_s["host_and_other"] - terms_s["host_and_other"]
    measured = MeasuredTerms({name: value for name, value in terms_s.items() if value}, waiting_s, 3)
    recovered = _measured([rank_profile()], measured)
    assert recovered == pytest.approx(truth, rel=1e-5)
    assert _made_step(recovered).step_time_s == pytest.approx(made.step_time_s, rel=1e-6)


def _made_step(constants: dict[str, float]) -> Prediction:
    scenario = _scenario()
    _, keys = encode([scenario])
    return predict([scenario], calibrated_to(shipped_calibration(), keys, constants))[0]


def test_a_value_beyond_the_bounds_is_cut_and_marked() -> None:
    terms = MeasuredTerms({"compute": 1e3, "host_and_other": 1e-9}, 0.0, 3)
    coefficients = measure_coefficients([rank_profile()], terms, _scenario())
    (efficiency,) = (coefficient for coefficient in coefficients if coefficient.name == "gemm_efficiency")
    assert (efficiency.value, efficiency.is_bounded) == (0.3, True)


def test_waiting_becomes_jitter_and_not_host_overhead() -> None:
    def overhead(waiting_s: float) -> float:
        terms = MeasuredTerms({"compute": 1.0, "host_and_other": 0.1 + waiting_s}, waiting_s, 3)
        return _measured([rank_profile()], terms)["step_overhead_s"]

    # 0.5 s is more than jitter's bound can explain: the rest must not turn into overhead
    assert overhead(0.5) == pytest.approx(overhead(0.01), rel=1e-6)


def test_an_optimizer_that_cannot_be_told_apart_is_taken_out_of_memory_bound_work() -> None:
    terms_s = _made_step({}).breakdown_s
    both_s = terms_s["memory_bound_ops"] + terms_s["optimizer"]
    terms = MeasuredTerms({"memory_bound_ops": both_s, "host_and_other": 0.05}, 0.0, 3)
    coefficients = measure_coefficients([rank_profile()], terms, _scenario())
    (traffic,) = (coefficient for coefficient in coefficients if coefficient.name == "elementwise_traffic")
    assert traffic.value == pytest.approx(traffic.default)


A100 = get_device("a100-sxm-80gb")


@pytest.mark.parametrize(
    ("starts_ns", "ranks", "size", "rates"),
    [
        # the last to arrive shows the transfer, inside a node and across
        ((0, 19_000_000), (0, 1), 10**8, ([10**8 / 1e-3], [])),
        ((0, 19_000_000), (0, 8), 10**8, ([], [10**8 / 1e-3])),
        # an all-reduce sends the message twice; half of it crosses, over the eight cards of a node
        ((10_000_000,) * 16, tuple(range(16)), 10**8, ([], [2 * 10**8 / 2 / 8 / 10e-3])),
        # small messages say nothing of the link
        ((19_995_000,) * 2, (0, 1), 1000, ([], [])),
    ],
)
def test_links_inside_and_across_nodes_are_measured_by_large_messages(
    starts_ns: tuple[int, ...], ranks: tuple[int, ...], size: int, rates: tuple[list[float], list[float]]
) -> None:
    profiles = [
        rank_profile(rank, collectives=[collective(start_ns, 20_000_000, ranks, size=size)])
        for rank, start_ns in zip(ranks, starts_ns, strict=True)
    ]
    inside, across = link_rates(align(profiles), A100.devices_per_node)
    assert inside == pytest.approx(rates[0])
    assert across == pytest.approx(rates[1])


def test_a_link_at_half_its_speed_has_half_its_efficiency() -> None:
    size, links = 10**9, (DEVICE.intra_node_bytes_per_s, DEVICE.inter_node_bytes_per_s)
    for link, ranks, name in zip(links, ((0, 1), (0, 8)), ("fast", "slow"), strict=True):
        event = collective(0, round(size / (link / 2) * 1e9), ranks, size=size)
        profiles = [rank_profile(rank, collectives=[event]) for rank in ranks]
        assert _measured(profiles) == pytest.approx({f"{name}_link_efficiency": 0.5}, rel=1e-4)
