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
    words = {"framework": "torchtitan", "zero_stage": 3, "sequence_parallel": False}
    x, c = bare(scene("llama-3.1-8b", devices=8, tp=4, pp=2, **words))
    assert float(pipeline_s(x, c)) == pytest.approx(2 * 4096 * 4096 * 2 / NVLINK)


@pytest.mark.parametrize("zero", [0, 1])
def test_plain_and_stage_1_data_parallelism_send_once_per_step_whatever_the_micro_batches(zero: int) -> None:
    sent = [data(scene("llama-3.1-8b", zero_stage=zero, batch=b)) for b in (64, 512)]
    assert float(sent[0].every_micro_batch) == float(sent[1].every_micro_batch) == 0.0
    assert float(sent[0].end_scatter) == float(sent[1].end_scatter) > 0.0
    assert float(sent[0].end_gather) == float(sent[1].end_gather)


def test_zero_3_gathers_twice_and_scatters_once_in_each_micro_batch() -> None:
    end = data(scene("llama-3.1-8b", zero_stage=1))
    every = data(scene("llama-3.1-8b", zero_stage=3)).every_micro_batch
    assert float(every) == pytest.approx(float(2 * end.end_gather + end.end_scatter))


def test_gradients_are_sent_in_the_bytes_that_the_framework_reduces_them_in() -> None:
    sent = data(scene("llama-3.1-8b", zero_stage=1))
    assert float(sent.end_scatter) == pytest.approx(2 * float(sent.end_gather))
    narrow = data(scene("llama-3.1-8b", zero_stage=1, precision="fp8"))
    assert float(narrow.end_scatter) == pytest.approx(float(narrow.end_gather))


def test_deepspeed_s_zero_3_leaves_each_node_by_one_card() -> None:
    words = {"zero_stage": 3, "devices": 64}
    usual, flat = (data(scene("llama-3.1-8b", framework=f, **words)) for f in ("torch-fsdp", "deepspeed"))
    assert float(flat.every_micro_batch / usual.every_micro_batch) == pytest.approx(
        8 * 63 / 64 / (7 / 8) / 0.7
    )


def test_megatron_scatters_pipeline_messages_over_its_tensor_ranks_without_sequence_parallelism_too() -> None:
    """And gathers them again over the fast links."""
    x, c = bare(scene(tp=8, pp=8, sequence_parallel=False))
    message_bytes = 4096 * 8192 * 2
    gathered_s = message_bytes * (7 / 8) / NVLINK
    assert float(pipeline_s(x, c)) == pytest.approx(2 * (message_bytes / 8 / NETWORK + gathered_s))


def test_hops_between_interleaved_stages_of_one_domain_hide_under_compute() -> None:
    words = {"devices": 8, "tp": 2, "pp": 4, "sequence_parallel": True}
    plain, interleaved = (pipeline_s(*bare(scene("llama-3.1-8b", vpp=v, **words))) for v in (1, 2))
    assert float(plain) > 0.0 == float(interleaved)


def test_plain_data_parallelism_sends_what_stage_1_sends() -> None:
    """An all-reduce is the reduce-scatter and the all-gather of the sharded optimizer."""
    plain, sharded = (data(scene("llama-3.1-8b", zero_stage=z, precision="fp8")) for z in (0, 1))
    assert float(plain.end_scatter + plain.end_gather) == pytest.approx(
        float(sharded.end_scatter + sharded.end_gather)
    )


def test_hybrid_sharding_keeps_the_gathers_inside_the_node() -> None:
    words = {"zero_stage": 3, "framework": "torchtitan"}
    flat, hybrid = (data(scene("llama-3.1-8b", dp_shard=n, **words)) for n in (64, 8))
    assert float(hybrid.every_micro_batch) < float(flat.every_micro_batch)
    assert float(flat.end_scatter) == 0.0
    assert float(hybrid.end_scatter) > 0.0


def test_a_single_data_rank_sends_nothing() -> None:
    sent = data(scene("llama-3.1-8b", devices=8, tp=8))
    assert float(sent.end_scatter) == float(sent.end_gather) == float(sent.every_micro_batch) == 0.0


def data(s: Scene) -> DataTraffic:
    x, c = bare(s)
    return data_s(x, c, number(8e9) / x.tp, number(0.0), x.layers)
