"""gloo on CPU ranks: a reduce-scatter moves an all-reduce's bytes, rings ignore nodes, one card a node."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.cost.scenes import number
from tools.cost.calibration import shipped_calibration
from tools.cost.collectives import all_to_all_s, gather_transfer_s, neighbour_s, place
from tools.cost.constants import Coefficients, resolve
from tools.cost.encode import encode
from tools.cost.inputs import Inputs
from tools.cost.step import step_breakdown
from tools.cost.traffic import data_s, tensor_pair_s
from tools.hardware import device_names, get_device
from tools.scenario import parse_scenario

MEGABYTE = number(1e6)
LINK_BYTES_PER_S = 25e6  # of a node of two ranks, 200 Mbit/s


def inputs(*, gbps: float = 0.1, **plan: int) -> tuple[Inputs, Coefficients]:
    degrees = {
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "ep": 1,
        "dp": 1,
        "dp_shard": 1,
        "zero_stage": 0,
        "micro_batch_size": 2,
    }
    scenario = parse_scenario(
        {
            "model": {
                "num_hidden_layers": 6,
                "hidden_size": 256,
                "intermediate_size": 768,
                "vocab_size": 4096,
                "num_attention_heads": 8,
            },
            "cluster": {
                "device": "cpu",
                "num_devices": 4,
                "devices_per_node": 2,
                "overrides": {"inter_node_gbps_per_device": gbps},
            },
            "training": {
                "seq_len": 64,
                "global_batch_size": 8,
                "precision": "fp32",
                "framework": "torch-fsdp2",
            },
            "plan": {**degrees, **plan},
        }
    )
    x, keys = encode([scenario])
    c = resolve(keys, shipped_calibration().shifts)
    return x, replace(c, slow_link_efficiency=number(1.0), fast_link_efficiency=number(1.0))


def sent_s(**plan: int) -> float:
    x, c = inputs(**plan)
    sent = data_s(x, c, MEGABYTE, number(0.0), number(1.0))
    return float(sent.end_scatter + sent.end_gather + sent.every_micro_batch * x.micro_batches)


def test_only_the_cpu_has_other_rings_than_nccl() -> None:
    others = [name for name in device_names() if get_device(name).collectives.is_flat]
    assert others == ["cpu"]
    assert get_device("cpu").collectives.reduce_scatter_passes == 2
    assert get_device("h100").collectives.reduce_scatter_passes == 1


def test_a_flat_ring_crosses_each_nodes_link_with_all_but_one_share() -> None:
    x, c = inputs(dp=4)
    whole = place(x, number(4), number(1))
    assert float(gather_transfer_s(x, c, whole, MEGABYTE)) == pytest.approx(3 / 4 * 1e6 / LINK_BYTES_PER_S)
    pair = place(x, number(2), number(2))
    assert float(gather_transfer_s(x, c, pair, MEGABYTE)) == pytest.approx(
        1 / 2 * 1e6 / (LINK_BYTES_PER_S / 2)
    )


def test_a_ring_inside_a_node_never_meets_the_link() -> None:
    x, c = inputs(dp=4)
    inside = place(x, number(2), number(1))
    assert float(gather_transfer_s(x, c, inside, MEGABYTE)) == pytest.approx(
        5e5 / float(x.scale_up_bandwidth)
    )


def test_fsdp_sends_twice_what_ddp_sends() -> None:
    """Two gathers and a reduce-scatter that costs two, against the all-reduce's two."""
    assert sent_s(dp=4, dp_shard=4, zero_stage=3) == pytest.approx(2 * sent_s(dp=4))


def test_zero_2_scatters_and_gathers_for_three_passes() -> None:
    assert sent_s(dp=4, dp_shard=4, zero_stage=2) == pytest.approx(1.5 * sent_s(dp=4))


def test_sequence_parallelism_costs_half_as_much_again() -> None:
    plain, split = (inputs(tp=4, sequence_parallel=flag) for flag in (False, True))
    assert float(tensor_pair_s(*split)) == pytest.approx(1.5 * float(tensor_pair_s(*plain)))


def test_a_lone_sender_has_the_whole_link_of_its_node() -> None:
    x, c = inputs(pp=4)
    x = replace(x, scale_out_latency=number(0.0))
    lone, both = place(x, number(4), number(1)), place(x, number(2), number(2))
    assert float(neighbour_s(x, c, lone, MEGABYTE)) == pytest.approx(1e6 / LINK_BYTES_PER_S)
    assert float(neighbour_s(x, c, both, MEGABYTE)) == pytest.approx(2e6 / LINK_BYTES_PER_S)


def test_each_copy_of_a_token_crosses_for_itself() -> None:
    x, c = inputs(dp=4)
    quiet = replace(
        x, scale_out_latency=number(0.0), scale_up_latency=number(0.0), scale_up_bandwidth=number(1e30)
    )
    group = place(quiet, number(4), number(1))
    crossed = float(all_to_all_s(quiet, c, group, MEGABYTE, number(2.0)))
    assert crossed == pytest.approx(1e6 / 2 / (LINK_BYTES_PER_S / 2))
    assert (
        float(all_to_all_s(replace(quiet, flat_rings=number(0.0)), c, group, MEGABYTE, number(2.0))) < crossed
    )


@pytest.mark.parametrize("gbps", [0.05, 0.1, 0.2])
def test_the_link_between_nodes_is_the_overrides(gbps: float) -> None:
    x, _ = inputs(gbps=gbps, dp=4)
    assert float(x.scale_out_bandwidth) == pytest.approx(gbps * 1e9 / 8)


def test_on_a_slow_link_pipelines_across_beat_sharding_everywhere() -> None:
    """Measured with the reference trainer on two hosts: 3.8 s and 0.22 s."""
    plans = ({"dp": 4, "dp_shard": 4, "zero_stage": 3}, {"dp": 4}, {"pp": 2, "dp": 2})
    times = [_step_s(**plan) for plan in plans]
    assert times == sorted(times, reverse=True)
    assert times[0] > 4 * times[-1]


def _step_s(**plan: int) -> float:
    x, c = inputs(**plan)
    return float(np.asarray(step_breakdown(x, c).total))
