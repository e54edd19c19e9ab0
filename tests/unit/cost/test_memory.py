"""Peak memory: what sharding, recomputation and the schedule change, and which stage counts."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cost.scenes import MODELS, Scene, number, scene
from tools.cost.memory import GIB, Memory, memory_bytes
from tools.cost.sizes import total_parameters

FRAMEWORKS = ["megatron-core", "torchtitan", "torch-fsdp2", "other"]


def parts(s: Scene) -> Memory:
    return memory_bytes(s.x, s.settings)


def total(s: Scene) -> float:
    return float(parts(s).total)


@pytest.mark.parametrize("model", ["llama-3.1-70b", "deepseek-v3", "gpt-3-175b"])
def test_the_parts_add_up_to_the_peak(model: str) -> None:
    costs = scene(model, pp=4, tp=2).costs()
    added = sum(float(getattr(costs.memory, f.name)[0]) for f in fields(Memory))
    assert float(costs.memory_bytes[0]) == pytest.approx(added, rel=1e-12)


def test_one_rank_holds_two_bytes_of_weight_four_of_gradient_and_twelve_of_optimizer() -> None:
    s = scene("llama-3.1-8b", devices=1, zero_stage=0, dp_shard=1)
    memory, count = parts(s), float(total_parameters(s.x))
    assert float(memory.parameters) == pytest.approx(2 * count)
    assert float(memory.gradients) == pytest.approx(4 * count)
    assert float(memory.optimizer) == pytest.approx(12 * count)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b"])
def test_each_zero_stage_divides_one_kind_of_state_more(model: str) -> None:
    states = [parts(scene(model, devices=8, zero_stage=z)) for z in range(4)]
    for part, first_sharded in (("optimizer", 1), ("gradients", 2), ("parameters", 3)):
        whole = float(getattr(states[0], part))
        for zero, state in enumerate(states):
            expected = whole / 8 if zero >= first_sharded else whole
            assert float(getattr(state, part)) == pytest.approx(expected), (part, zero)


@pytest.mark.parametrize("model", ["llama-3.1-70b", "deepseek-v3"])
@pytest.mark.parametrize("framework", ["megatron-core", "other"])
def test_a_higher_zero_stage_never_needs_more_memory(model: str, framework: str) -> None:
    peaks = [total(scene(model, tp=8, framework=framework, zero_stage=z)) for z in range(4)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[3] < peaks[2] < peaks[1] < peaks[0]


@given(power=st.integers(0, 5))
def test_hybrid_sharding_over_more_ranks_never_needs_more(power: int) -> None:
    words = {"framework": "torchtitan", "zero_stage": 3, "tp": 1, "recompute": "full"}
    narrow, wide = (total(scene(dp_shard=2**p, **words)) for p in (power, power + 1))
    assert wide < narrow


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model", ["llama-3.1-70b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("pp", [1, 4])
def test_recomputing_more_never_keeps_more(framework: str, model: str, pp: int) -> None:
    stage = 1 if framework == "megatron-core" else 3  # Megatron has no ZeRO 3 with a pipeline
    words = {"framework": framework, "tp": 4, "pp": pp, "zero_stage": stage, "sequence_parallel": True}
    none, selective, full = (
        float(parts(scene(model, recompute=r, **words)).activations) for r in ("none", "selective", "full")
    )
    assert none >= selective > full
    # Megatron's switch repeats core attention, which keeps nothing with fused attention
    assert (none == selective) == (framework == "megatron-core")


def test_recomputing_some_layers_keeps_their_inputs_and_all_of_the_others() -> None:
    words = {"tp": 4, "pp": 4}
    none, full, part = (
        float(parts(scene(recompute=r, **words, **more)).activations)
        for r, more in (("none", {}), ("full", {}), ("full", {"recompute_layers": 5}))
    )
    assert part == pytest.approx(none + (full - none) * 5 / 20)


@pytest.mark.parametrize("modules", [["mlp"], ["layernorm"], ["mlp", "layernorm"]])
def test_modules_that_are_recomputed_save_their_inner_values(modules: list[str]) -> None:
    none, stated = (
        float(parts(scene(tp=4, recompute=r, **more)).activations)
        for r, more in (("none", {}), ("selective", {"recompute_modules": modules}))
    )
    assert 0.2 * none < stated < none


def test_an_offloaded_optimizer_takes_no_memory_of_the_device() -> None:
    assert float(parts(scene("llama-3.1-8b", optimizer_offload=True)).optimizer) == 0.0


def test_weights_of_four_bits_take_a_quarter_but_for_the_embedding_and_the_output_matrix() -> None:
    """Of Llama 3.1 8B 6.98e9 weights in 4.127 bits, and twice 128,256 x 4,096 in 16."""
    words = {"devices": 8, "tp": 1, "zero_stage": 0, "framework": "megatron-core"}
    whole, four = (
        float(parts(scene("llama-3.1-8b", lora={"rank": 1, "weight_bits": bits}, **words)).parameters)
        for bits in (16, 4)
    )
    assert whole == pytest.approx(2 * 8.03e9, rel=0.001)
    assert four == pytest.approx(6.98e9 * 4.127 / 8 + 2 * 2 * 128256 * 4096, rel=0.002)


def test_weights_of_four_bits_cost_time_to_open() -> None:
    """Read in 4 bits and written in 16 for each product, three times with full recomputation."""
    words = {"devices": 8, "tp": 1, "recompute": "full", "framework": "megatron-core"}
    plain, four = (scene("llama-3.1-8b", lora={"rank": 16, "weight_bits": bits}, **words) for bits in (16, 4))
    opened_s = 3 * 6.98e9 * (4.127 / 8 + 2) / float(four.x.memory_bandwidth) * float(four.x.micro_batches)
    added_s = float(four.costs().step_time_s[0] - plain.costs().step_time_s[0])
    assert added_s == pytest.approx(opened_s, rel=0.05)


def test_adapters_alone_have_gradients_and_optimizer_state() -> None:
    full, adapted = (parts(scene("llama-3.1-8b", **more)) for more in ({}, {"lora": {"rank": 16}}))
    assert float(adapted.parameters) == float(full.parameters)
    assert float(adapted.gradients) < 0.01 * float(full.gradients)
    assert float(adapted.optimizer) < 0.01 * float(full.optimizer)


def test_maxtext_s_selective_policy_offloads_and_so_keeps_less_than_full() -> None:
    words = {"framework": "maxtext", "device": "tpu-v5p", "zero_stage": 3}
    selective, full = (parts(scene(recompute=r, **words)) for r in ("selective", "full"))
    assert float(selective.activations) < float(full.activations)


def test_full_recomputation_keeps_the_inputs_of_the_layers() -> None:
    memory = parts(scene("llama-3.1-8b", devices=8, seq_len=4096, micro_batch_size=2, recompute="full"))
    assert float(memory.activations) == pytest.approx(32 * 2 * 4096 * 4096 * 2)


def test_without_flash_selective_recomputation_drops_the_scores() -> None:
    words = {"tp": 8, "pp": 8, "flash": False, "framework": "other", "vpp": 1}
    none, selective = (parts(scene("gpt-3-175b", recompute=r, **words)) for r in ("none", "selective"))
    in_flight, layers = 8, 96 / 8
    scores = 5 * 4096 * (96 / 8) * 4096 * layers * in_flight
    assert float(none.activations) - float(selective.activations) == pytest.approx(1.25 * scores, rel=1e-9)


def test_tensor_parallelism_with_sequence_parallelism_divides_the_activations() -> None:
    one, four = (parts(scene("llama-3.1-8b", tp=tp, sequence_parallel=True)) for tp in (1, 4))
    assert float(four.activations) == pytest.approx(float(one.activations) / 4, rel=1e-9)
    apart = parts(scene("llama-3.1-8b", tp=4, sequence_parallel=False))
    assert float(apart.activations) > float(four.activations)


def test_context_parallelism_divides_the_activations() -> None:
    one, four = (parts(scene("llama-3.1-8b", cp=cp)) for cp in (1, 4))
    assert float(four.activations) == pytest.approx(float(one.activations) / 4, rel=1e-9)


def test_the_first_stage_of_1f1b_holds_as_many_micro_batches_as_there_are_stages() -> None:
    activations = [float(parts(scene(tp=4, pp=pp, batch=256, vpp=1)).activations) for pp in (1, 2, 4, 8)]
    assert activations == pytest.approx([activations[0]] * 4, rel=1e-9)


def test_fewer_micro_batches_than_stages_hold_no_more_than_there_are() -> None:
    many, two = (parts(scene(tp=4, pp=8, batch=b, framework="other", vpp=1)) for b in (128, 4))
    assert float(two.activations) == pytest.approx(float(many.activations) * 2 / 8, rel=1e-9)


def test_interleaving_holds_more_by_narayanan_s_share() -> None:
    plain, chunked = (parts(scene(tp=4, pp=4, vpp=vpp)) for vpp in (1, 5))
    share = 1 + (4 - 1) / (4 * 5)
    assert float(chunked.activations) == pytest.approx(float(plain.activations) * share, rel=1e-9)


def test_gpipe_holds_every_micro_batch() -> None:
    words = {"tp": 4, "pp": 4, "framework": "other", "vpp": 1, "batch": 128}
    plain, all_kept = (parts(scene(schedule=name, **words)) for name in ("1f1b", "gpipe"))
    assert float(all_kept.activations) == pytest.approx(float(plain.activations) * 32 / 4, rel=1e-9)


@pytest.mark.parametrize(("vpp", "chunks"), [(1, 1), (2, 5), (5, 17)])
def test_the_last_stage_holds_the_chunks_that_warm_up_the_interleaved_schedule(vpp: int, chunks: int) -> None:
    """(vpp - 1) * pp chunks of warm-up and the one at work (Megatron-LM, get_pp_rank_microbatches). The
    vocabulary is so large that the last stage, with the logits, is the fullest."""
    model = MODELS["llama-3.1-70b"] | {"vocab_size": 30_000_000}
    s = scene(model, tp=4, pp=4, vpp=vpp, batch=256)
    alone = scene(model, tp=4, pp=1, batch=256)
    whole_stage = float(parts(alone).activations) / 4
    assert float(parts(s).activations) == pytest.approx(whole_stage * chunks / vpp, rel=1e-9)


def test_logits_count_on_the_last_stage_only() -> None:
    small = MODELS["llama-3.1-70b"] | {"vocab_size": 1000}
    large = MODELS["llama-3.1-70b"] | {"vocab_size": 3_000_000}
    words = {"tp": 4, "pp": 4, "recompute": "none"}
    extra = float(parts(scene(large, **words)).buffers - parts(scene(small, **words)).buffers)
    assert extra == pytest.approx(6.0 * 4096 * 3_000_000 / 4, rel=1e-9)


def test_experts_are_divided_over_expert_parallel_ranks() -> None:
    held = [float(parts(scene("mixtral-8x7b", devices=8, ep=ep)).parameters) for ep in (1, 2, 4, 8)]
    experts = 2.0 * 32 * 8 * 3 * 4096 * 14336
    for ep, whole in zip((2, 4, 8), [held[0]] * 3, strict=True):
        saved = whole - held[int(np.log2(ep))]
        assert saved == pytest.approx(experts * (1 - 1 / ep), rel=1e-9)


def test_zero_3_gathers_whole_layers_ahead_of_use() -> None:
    two, three = (parts(scene("llama-3.1-8b", zero_stage=z)) for z in (2, 3))
    layer = 4096 * (48 * 128 + 4096) + 3 * 4096 * 14336 + 2 * 4096
    gathered = 2 * (2 * layer + 128256 * 4096)
    assert float(three.buffers - two.buffers) == pytest.approx(gathered, rel=1e-9)


def test_fp8_keeps_the_inputs_of_products_in_one_byte() -> None:
    low, half = (parts(scene(tp=4, precision=p)) for p in ("fp8", "bf16"))
    assert float(half.activations) / 2 < float(low.activations) < float(half.activations)


@given(
    micro=st.sampled_from([1, 2, 4]), tp=st.sampled_from([1, 2, 4, 8]), model=st.sampled_from(["8b", "70b"])
)
def test_a_larger_micro_batch_never_needs_less(micro: int, tp: int, model: str) -> None:
    name = f"llama-3.1-{model}"
    small, large = (total(scene(name, tp=tp, micro_batch_size=m, batch=512)) for m in (micro, micro * 2))
    assert large > small


def test_a_plan_fits_when_its_peak_is_below_the_device_s_memory() -> None:
    s = scene("llama-3.1-8b", devices=8)
    peak = float(s.costs().memory_bytes[0])
    for capacity, fits in ((peak - 1.0, False), (peak, True)):
        costs = replace(s, x=replace(s.x, memory_bytes=number(capacity))).costs()
        assert bool(costs.fits[0]) is fits


def test_training_8b_with_adam_on_one_80_gb_device_does_not_fit() -> None:
    s = scene("llama-3.1-8b", devices=1, recompute="full")
    assert not s.costs().fits[0]
    assert total(s) / GIB > 8.03e9 * 18 / GIB
