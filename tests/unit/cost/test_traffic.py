"""How many bytes each kind of parallelism sends, and over which links."""

from dataclasses import replace

import pytest

from tests.unit.cost.scenes import Scene, number, scene
from tools.cost.constants import Coefficients
from tools.cost.inputs import Inputs
from tools.cost.traffic import DataTraffic, context_s, data_s, expert_s, pipeline_s, tensor_pair_s

ONE, NOTHING = number(1.0), number(0.0)
NVLINK, NETWORK = 450e9, 50e9


def bare(s: Scene) -> tuple[Inputs, Coefficients]:
    """Inputs without latency, links at their full rate."""
    c = replace(s.c, fast_link_efficiency=ONE, slow_link_efficiency=ONE, rank_latency_s=NOTHING)
    return replace(s.x, scale_up_latency=NOTHING, scale_out_latency=NOTHING), c


def test_a_tensor_pair_moves_the_hidden_state_twice() -> None:
    x, c = bare(scene(tp=8, micro_batch_size=2))
    hidden_bytes = 2 * 4096 * 8192 * 2
    assert float(tensor_pair_s(x, c)) == pytest.approx(2 * hidden_bytes * (7 / 8) / NVLINK)


def test_sequence_parallelism_moves_the_same_bytes() -> None:
    times = [tensor_pair_s(*bare(scene(tp=8, sequence_parallel=flag))) for flag in (True, False)]
    assert times[0] == times[1]


def test_tensor_parallelism_beyond_the_node_takes_the_network() -> None:
    x, c = bare(scene(tp=16))
    hidden_bytes = 4096 * 8192 * 2
    slow = 2 * hidden_bytes * (1 / 2) / (8 * NETWORK)
    fast = 2 * hidden_bytes * (15 / 16) / NVLINK
    assert float(tensor_pair_s(x, c)) == pytest.approx(max(slow, fast))


def test_a_context_ring_passes_keys_and_values_and_backward_their_gradients_too() -> None:
    x, c = bare(scene(tp=2, cp=4, seq_len=32768))
    block_bytes = 32768 / 4 * (8 / 2) * 2 * 128 * 2
    assert float(context_s(x, c)) == pytest.approx(3 * 3 * block_bytes / NVLINK)


def test_a_context_ring_over_nodes_waits_for_the_network() -> None:
    inside, across = (context_s(*bare(scene(tp=tp, cp=4, seq_len=32768))) for tp in (2, 8))
    ratio = (8 / 2) / (8 / 8)
    assert float(across / inside) == pytest.approx(NVLINK / NETWORK / ratio)


def test_experts_are_sent_their_tokens_four_times() -> None:
    """Dispatch and combine, forward and backward."""
    x, c = bare(scene("mixtral-8x7b", ep=8))
    routed_bytes = 4096 * 2 * 4096 * 2
    assert float(expert_s(x, c)) == pytest.approx(4 * routed_bytes * (7 / 8) / NVLINK)


def test_no_expert_parallelism_sends_nothing() -> None:
    assert float(expert_s(*bare(scene("mixtral-8x7b", ep=1)))) == 0.0


def test_a_sharded_expert_gathers_its_tokens_inside() -> None:
    x, c = bare(scene("mixtral-8x7b", tp=2, etp=2, ep=1))
    routed_bytes = 4096 * 2 * 4096 * 2
    assert float(expert_s(x, c)) == pytest.approx(4 * routed_bytes * (1 / 2) / NVLINK)


def test_stages_exchange_a_hidden_state_each_way_for_each_chunk() -> None:
    x, c = bare(scene(tp=8, pp=8, vpp=5, sequence_parallel=True))
    message_bytes = 4096 * 8192 * 2 / 8
    assert float(pipeline_s(x, c)) == pytest.approx(2 * 5 * message_bytes / NETWORK)


def test_stages_of_one_node_use_its_links() -> None:
    x, c = bare(scene("llama-3.1-8b", devices=8, tp=4, pp=2, sequence_parallel=False))
    assert float(pipeline_s(x, c)) == pytest.approx(2 * 4096 * 4096 * 2 / NVLINK)


@pytest.mark.parametrize("zero", [0, 1])
def test_plain_and_stage_1_data_parallelism_send_once_a_step_whatever_the_micro_batches(zero: int) -> None:
    sent = [data(scene("llama-3.1-8b", zero_stage=zero, batch=b)) for b in (64, 512)]
    assert float(sent[0].every_micro_batch) == float(sent[1].every_micro_batch) == 0.0
    assert float(sent[0].step_end) == float(sent[1].step_end) > 0.0


def test_zero_3_gathers_twice_and_scatters_once_in_each_micro_batch() -> None:
    end = data(scene("llama-3.1-8b", zero_stage=1)).step_end
    every = data(scene("llama-3.1-8b", zero_stage=3)).every_micro_batch
    assert float(every) == pytest.approx(float(end) * 3 / 2)


def test_plain_data_parallelism_sends_what_stage_1_sends() -> None:
    """An all-reduce is the reduce-scatter and the all-gather of the sharded optimizer."""
    plain, sharded = (data(scene("llama-3.1-8b", zero_stage=z)) for z in (0, 1))
    assert float(plain.step_end) == pytest.approx(float(sharded.step_end))


def test_hybrid_sharding_keeps_the_gathers_inside_the_node() -> None:
    words = {"zero_stage": 3, "framework": "torchtitan"}
    flat, hybrid = (data(scene("llama-3.1-8b", dp_shard=n, **words)) for n in (64, 8))
    assert float(hybrid.every_micro_batch) < float(flat.every_micro_batch)
    assert float(flat.step_end) == 0.0
    assert float(hybrid.step_end) > 0.0


def test_a_single_data_rank_sends_nothing() -> None:
    sent = data(scene("llama-3.1-8b", devices=8, tp=8))
    assert float(sent.step_end) == float(sent.every_micro_batch) == float(sent.latency) == 0.0


def data(s: Scene) -> DataTraffic:
    x, c = bare(s)
    return data_s(x, c, number(8e9) / x.tp, number(0.0), x.layers)
