"""What parallelism sends and how long a pipeline idles: factors of nccl-tests, volumes and shares of papers.

Links are at their full rate and without latency: an H100's 450 GB/s of NVLink each way, 50 GB/s of network.
"""

from dataclasses import fields, replace

import pytest

from tests.unit.physics.scenes import Scene, number, scene
from tools.model.calibration import calibrated_to, shipped_calibration
from tools.model.operations import Message, list_messages
from tools.physics.inputs import Coefficients, Inputs
from tools.physics.sizes import dense_shards, expert_ranks, expert_shards
from tools.physics.stage import layer_time
from tools.physics.traffic import context_s, data_s, pipeline_s, tensor_pair_s

ZERO, ONE = number(0.0), number(1.0)


def bare(s: Scene) -> tuple[Inputs, Coefficients]:
    c = replace(s.c, fast_link_efficiency=ONE, slow_link_efficiency=ONE, rank_latency_s=ZERO, tp_exposed=ONE)
    return replace(s.x, scale_up_latency=ZERO, scale_out_latency=ZERO), c


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"),
    [("all_reduce", 8, 1.75), ("all_gather", 8, 0.875), ("all_to_all", 4, 0.75), ("send_recv", 2, 1.0)],
)
def test_bus_bandwidth_has_the_factors_of_nccl_tests(kind: str, ranks: int, factor: float) -> None:
    """nccl-tests, doc/PERFORMANCE.md: 2 (n - 1) / n, (n - 1) / n, (n - 1) / n and 1 of bytes over seconds."""
    message = Message("dp", kind, ranks, False, message_bytes=4e9, seconds=0.5)
    assert message.bus_bytes_per_s == factor * 8e9


def test_a_ring_reaches_the_bus_bandwidth_of_its_links_and_no_more() -> None:
    """The bus bandwidth of nccl-tests is that of the link that limits the ring, whatever the collective."""
    s = scene("mixtral-8x7b", tp=8, ep=8, seq_len=32768, batch=64)
    links = {"fast_link_efficiency": 1.0, "slow_link_efficiency": 1.0}
    ideal = calibrated_to(shipped_calibration(), s.keys, links)
    by_axis = {message.axis: message for message in list_messages(s.scenario, ideal)}
    assert by_axis["tp"].bus_bytes_per_s == pytest.approx(450e9, rel=0.05)
    assert all(message.bus_bytes_per_s <= 450e9 for message in by_axis.values())


@pytest.mark.parametrize(("recompute", "all_reduces"), [("none", 4), ("full", 6)])
def test_a_transformer_layer_has_two_all_reduces_each_way(recompute: str, all_reduces: int) -> None:
    """Shoeybi et al., arXiv 1909.08053, section 3; recomputation repeats the forward ones. An all-reduce of
    4,096 x 8,192 values of 2 bytes over 4 ranks moves 1.5 times its 67.1 MB: 0.2237 ms at 450 GB/s."""
    x, c = bare(scene(tp=4, recompute=recompute, overlap_tensor_communication=False))
    assert float(tensor_pair_s(x, c)) == pytest.approx(0.2237e-3, rel=1e-3)
    assert float(layer_time(x, c, ZERO).tp) == pytest.approx(all_reduces * 0.2237e-3, rel=1e-3)


@pytest.mark.parametrize(("zero", "volume"), [(0, 2.0), (1, 2.0), (2, 2.0), (3, 3.0)])
def test_zero_3_sends_half_as_much_again_as_data_parallelism(zero: int, volume: float) -> None:
    """Rajbhandari et al., arXiv 1910.02054, section 7: 2 Psi, and 3 Psi with sharded parameters. Here 8e9
    parameters in 2 bytes over 8 ranks, 7/8 of which cross each link, in one micro-batch."""
    x, c = bare(scene("llama-3.1-8b", devices=8, batch=8, zero_stage=zero, precision="fp8"))
    x = replace(x, stored_bytes=number(2.0), reduced_bytes=number(2.0))
    sent = data_s(x, c, number(8e9), ZERO, x.layers)
    total_s = float(sent.end_scatter + sent.end_gather + sent.every_micro_batch)
    assert total_s == pytest.approx(volume * 16e9 * 7 / 8 / 450e9)


def test_scattering_a_pipeline_message_divides_it_by_the_tensor_ranks() -> None:
    """Narayanan et al., arXiv 2104.04473, section 4.1, for GPT-3: b s h of 2 bytes is 50.3 MB, over 8 cards
    6.29 MB each: 0.1258 ms at 50 GB/s, both ways twice that; gathered again over NVLink in 0.0979 ms."""
    words = {"seq_len": 2048, "devices": 64, "tp": 8, "pp": 8, "batch": 8}
    split, whole = (scene("gpt-3-175b", sequence_parallel=flag, **words) for flag in (True, False))
    assert float(pipeline_s(*bare(split))) == pytest.approx(2 * 0.12583e-3, rel=1e-4)
    assert float(pipeline_s(*bare(whole))) == pytest.approx(2 * (0.12583e-3 + 0.09787e-3), rel=1e-4)


@pytest.mark.parametrize(
    ("pp", "vpp", "micro_batches", "share"),
    [(4, 1, 8, 0.375), (4, 2, 8, 0.1875), (8, 1, 64, 0.109375), (8, 5, 64, 0.021875)],
)
def test_the_bubble_is_narayanan_s_share(pp: int, vpp: int, micro_batches: int, share: float) -> None:
    """arXiv 2104.04473, section 2.2: (p - 1) / (v m) of the time that the micro-batches take. Without a
    vocabulary the last stage is no heavier than the others."""
    s = scene(tp=2, pp=pp, vpp=vpp, batch=micro_batches * 64 // (2 * pp))
    s = replace(s, x=replace(s.x, vocab=ZERO), c=replace(s.c, scale_jitter=ZERO))
    terms = s.costs().breakdown
    once_a_step = ("dp_comm_exposed", "pipeline_bubble", "optimizer")
    work_s = sum(float(getattr(terms, f.name)[0]) for f in fields(terms) if f.name not in once_a_step)
    work_s -= float(s.c.step_overhead_s)
    assert float(terms.pipeline_bubble[0]) / work_s == pytest.approx(share, rel=2e-3)


def test_a_zero_bubble_schedule_leaves_a_third_of_the_bubble() -> None:
    """ZB-H1: Qi et al., arXiv 2401.10241, section 2.1: a third of 1F1B's bubble if forward, input and
    weight gradient take as long, (p - 1)(F + B - W) of (p - 1)(F + B + W)."""
    words = {"pp": 4, "vpp": 2, "framework": "torch-fsdp2", "zero_stage": 2}
    plain_s, filled_s = (
        float(scene(schedule=name, **words).costs().breakdown.pipeline_bubble[0])
        for name in ("interleaved", "zero_bubble")
    )
    assert filled_s == pytest.approx(plain_s / 3, rel=1e-9)


@pytest.mark.parametrize(
    ("framework", "values"),
    [("megatron-core", 3 * 7 * 2 * 8), ("maxtext", 3 * 7 * 2 * 8), ("deepspeed", 2 * 7 / 8 * 2 * (64 + 8))],
)
def test_context_parallelism_sends_what_its_framework_exchanges(framework: str, values: float) -> None:
    """Heads of 128 values that a token of Llama 70B sends in a layer, over 8 ranks. A ring (Liu et al., arXiv
    2310.01889, section 3; Megatron-LM@d98e8a64, cp_comm_type p2p): 8 of keys and 8 of values to 7 ranks, and
    backward their gradients too. A gather (maxtext@e591f30c, base.yml, context_parallel_strategy; Llama 3,
    arXiv 2407.21783, section 3.3.2): the same. Ulysses (Jacobs et al., arXiv 2309.14509, section 3.2;
    DeepSpeed@edaa7221, sequence/layer.py): queries, keys, values and output, 7/8 of each, both ways: 0.375 of
    the ring's."""
    words = {"devices": 8, "cp": 8, "batch": 8, "seq_len": 32768, "framework": framework}
    x, c = bare(scene(**words, zero_stage=3 if framework == "maxtext" else 1))
    x, c = replace(x, memory_bandwidth=number(1e30)), replace(c, cp_exposed=ONE)  # nothing hidden or merged
    assert float(layer_time(x, c, ZERO).cp) == pytest.approx(values * 128 * 2 * 32768 / 8 / 450e9)


@pytest.mark.parametrize(("framework", "hidden"), [("megatron-core", True), ("torchtitan", False)])
def test_gathered_keys_and_values_are_waited_for_and_rings_are_not(framework: str, hidden: bool) -> None:
    """Llama 3, arXiv 2407.21783, section 3.3.2: rings "overlap communication and computation", with a gather
    "communication latency is exposed in the critical path". Hidden like a ring, it would cost a fifth."""
    words = {"devices": 8, "cp": 8, "batch": 8, "seq_len": 131072, "framework": framework}
    x, c = bare(scene(**words, zero_stage=1 if hidden else 3))
    x = replace(x, memory_bandwidth=number(1e30))  # without merging the ring's partial outputs
    share = float(layer_time(x, c, ZERO).cp / context_s(x, c))
    assert share == pytest.approx(float(c.cp_exposed) if hidden else 1.0)


@pytest.mark.parametrize(
    ("model", "words", "gradient_bytes"),
    [
        ("gpt-3-175b", {}, 4),
        ("gpt-3-175b", {"precision": "fp16"}, 2),
        ("llama-3.1-8b", {"software_date": "2025-11"}, 2),
        ("llama-3.1-8b", {"framework": "deepspeed"}, 2),
        ("llama-3.1-8b", {"framework": "torchtitan", "zero_stage": 3}, 4),
    ],
)
def test_gradients_travel_in_the_bytes_of_their_stack(
    model: str, words: dict[str, object], gradient_bytes: int
) -> None:
    """Megatron-LM@d98e8a64, training/arguments.py: fp32 with bf16, as they are with fp16. Megatron-Bridge
    v0.2.0, scripts/performance/configs/llama3/llama3_llm_pretrain.py: grad_reduce_in_fp32 = False.
    DeepSpeed@edaa7221, runtime/engine.py, communication_data_type: that of the training. torchtitan@b5bcd76c,
    config/configs.py: mixed_precision_reduce float32. All in 4 bytes would double the second to fourth."""
    x, c = bare(scene(model, devices=8, batch=8, **words))
    sent = data_s(x, c, number(8e9), ZERO, x.layers)
    scattered_s = sent.end_scatter + sent.every_micro_batch
    gathered_s = 2.0 * 2 * 8e9 * 7 / 8 / 450e9 if x.zero_stage >= 3 else 0.0
    assert float(scattered_s) - gathered_s == pytest.approx(gradient_bytes * 8e9 * 7 / 8 / 450e9)


def test_experts_lie_over_the_ranks_as_deepseek_v3_s_did() -> None:
    """arXiv 2412.19437, section 3.2: 2,048 GPUs, 16 stages, experts over 64 ranks of 8 nodes, ZeRO-1: each
    expert is held twice in a stage of 128 ranks, everything else 128 times."""
    x = scene("deepseek-v3", devices=2048, pp=16, ep=64, batch=15360, framework="other").x
    assert (float(expert_ranks(x)), float(expert_shards(x)), float(dense_shards(x))) == (2.0, 2.0, 128.0)
