"""How many bytes each kind of parallelism sends, and over which links."""

from dataclasses import replace

import pytest

from tests.unit.physics.scenes import Scene, number, scene
from tools.physics.inputs import Coefficients, Inputs
from tools.physics.traffic import (
    DataTraffic,
    data_s,
    expert_s,
    mixer_exchange_s,
    pipeline_s,
    tensor_pair_s,
)

ONE, NOTHING = number(1.0), number(0.0)
NVLINK, NETWORK = 450e9, 50e9


def bare(s: Scene) -> tuple[Inputs, Coefficients]:
    """Inputs without latency, links at their full rate."""
    c = replace(s.c, fast_link_efficiency=ONE, slow_link_efficiency=ONE, rank_latency_s=NOTHING)
    return replace(s.x, scale_up_latency=NOTHING, scale_out_latency=NOTHING), c


def test_tensor_parallelism_beyond_the_node_takes_the_network() -> None:
    x, c = bare(scene(tp=16))
    hidden_bytes = 4096 * 8192 * 2
    slow = 2 * hidden_bytes * (1 / 2) / (8 * NETWORK)
    fast = 2 * hidden_bytes * (15 / 16) / NVLINK
    assert float(tensor_pair_s(x, c)) == pytest.approx(max(slow, fast))


def test_token_mixers_exchange_heads_for_tokens_and_back_both_ways() -> None:
    """Mamba 2 of 4,096 channels in and out over 4 context ranks: an all-to-all of 3/4 of a rank's values."""
    x, c = bare(scene("mamba2", cp=4, seq_len=32768, framework="other"))
    sent_bytes = 32768 / 4 * float(x.mixer_in + x.mixer_out) * 2
    assert float(mixer_exchange_s(x, c)) == pytest.approx(2 * sent_bytes * (3 / 4) / NVLINK)


def test_experts_are_sent_their_tokens_four_times() -> None:
    """Dispatch and combine, forward and backward."""
    x, c = bare(scene("mixtral-8x7b", ep=8))
    routed_bytes = 4096 * 2 * 4096 * 2
    assert float(expert_s(x, c)) == pytest.approx(4 * routed_bytes * (7 / 8) / NVLINK)


def test_a_sharded_expert_gathers_its_tokens_inside() -> None:
    x, c = bare(scene("mixtral-8x7b", tp=2, etp=2, ep=1))
    routed_bytes = 4096 * 2 * 4096 * 2
    assert float(expert_s(x, c)) == pytest.approx(4 * routed_bytes * (1 / 2) / NVLINK)


def test_deepspeed_s_zero_3_leaves_each_node_by_one_card() -> None:
    words = {"zero_stage": 3, "devices": 64}
    usual, flat = (data(scene("llama-3.1-8b", framework=f, **words)) for f in ("torch-fsdp", "deepspeed"))
    assert float(flat.every_micro_batch / usual.every_micro_batch) == pytest.approx(
        8 * 63 / 64 / (7 / 8) / 0.7
    )


def test_hops_between_interleaved_stages_of_one_domain_hide_under_compute() -> None:
    words = {"devices": 8, "tp": 2, "pp": 4, "sequence_parallel": True}
    plain, interleaved = (pipeline_s(*bare(scene("llama-3.1-8b", vpp=v, **words))) for v in (1, 2))
    assert float(plain) > 0.0 == float(interleaved)


def data(s: Scene) -> DataTraffic:
    x, c = bare(s)
    return data_s(x, c, number(8e9) / x.tp, number(0.0), x.layers)
