"""Peak memory: what sharding, recomputation and the schedule change, and which stage counts."""

from dataclasses import replace

import pytest

from tests.unit.physics.scenes import (
    MODELS,
    Scene,
    number,
    scene,
)
from tools.physics.memory import Memory, memory_bytes, read_bytes


def parts(s: Scene) -> Memory:
    return memory_bytes(s.x, s.settings)


def total(s: Scene) -> float:
    return float(parts(s).total)


def test_recomputing_some_layers_keeps_their_inputs_and_all_of_the_others() -> None:
    words = {"tp": 4, "pp": 4}
    none, full, part = (
        float(parts(scene(recompute=r, **words, **more)).activations)
        for r, more in (("none", {}), ("full", {}), ("full", {"recompute_layers": 5}))
    )
    assert part == pytest.approx(none + (full - none) * 5 / 20)


@pytest.mark.parametrize(
    ("module", "width"),
    [
        ("moe", 9 * 3 * 2048),
        ("shared_experts", 3 * 2048),
        ("moe_act", 8 * 2048),
        ("mla_up_proj", 128 * (192 + 192 + 128)),
    ],
)
def test_a_module_of_an_expert_layer_saves_its_inner_values(module: str, width: int) -> None:
    """Of DeepSeek-V3, 4,096 tokens in 2 bytes: of 8 routed experts and a shared one on 58 layers two inputs
    and their product; of 128 heads on 61 layers queries of 192, keys of 192 and values of 128."""
    plan = {"ep": 8, "framework": "other", "devices": 8, "batch": 8}
    none, stated = (
        float(parts(scene("deepseek-v3", recompute=r, **plan, **more)).activations)
        for r, more in (("none", {}), ("selective", {"recompute_modules": [module]}))
    )
    layers = 61 if module == "mla_up_proj" else 58
    assert none - stated == pytest.approx(layers * 4096 * 2 * width, rel=1e-9)


def test_an_offloaded_optimizer_takes_no_memory_of_the_device() -> None:
    assert float(parts(scene("llama-3.1-8b", optimizer_offload=True)).optimizer) == 0.0


def test_weights_of_four_bits_cost_time_to_open() -> None:
    """Read in 4 bits and written in 16 for each product, three times with full recomputation."""
    words = {"devices": 8, "tp": 1, "recompute": "full", "framework": "megatron-core"}
    plain, four = (scene("llama-3.1-8b", lora={"rank": 16, "weight_bits": bits}, **words) for bits in (16, 4))
    dequantize_s = 3 * 6.98e9 * (4.127 / 8 + 2) / float(four.x.memory_bandwidth) * float(four.x.micro_batches)
    added_s = float(four.costs().step_time_s[0] - plain.costs().step_time_s[0])
    assert added_s == pytest.approx(dequantize_s, rel=0.05)


def test_adapters_alone_have_gradients_and_optimizer_state() -> None:
    words = {"gradient_dtype": "fp32"}
    full, adapted = (parts(scene("llama-3.1-8b", **words, **more)) for more in ({}, {"lora": {"rank": 16}}))
    assert float(adapted.parameters) == float(full.parameters)
    assert float(adapted.gradients) < 0.01 * float(full.gradients)
    assert float(adapted.optimizer) < 0.01 * float(full.optimizer)


def test_fewer_micro_batches_than_stages_hold_no_more_than_there_are() -> None:
    many, two = (parts(scene(tp=4, pp=8, batch=b, framework="other", vpp=1)) for b in (128, 4))
    assert float(two.activations) == pytest.approx(float(many.activations) * 2 / 8, rel=1e-9)


def test_gpipe_holds_every_micro_batch() -> None:
    words = {"tp": 4, "pp": 4, "framework": "other", "vpp": 1, "batch": 128}
    plain, all_kept = (parts(scene(schedule=name, **words)) for name in ("1f1b", "gpipe"))
    assert float(all_kept.activations) == pytest.approx(float(plain.activations) * 32 / 4, rel=1e-9)


def test_logits_count_on_the_last_stage_only() -> None:
    small = MODELS["llama-3.1-70b"] | {"vocab_size": 1000}
    large = MODELS["llama-3.1-70b"] | {"vocab_size": 30_000_000}
    words = {"tp": 4, "pp": 4, "recompute": "none"}
    extra = float(parts(scene(large, **words)).buffers - parts(scene(small, **words)).buffers)
    assert extra == pytest.approx(4.0 * 4096 * 30_000_000 / 4, rel=1e-9)


LLAMA_8B_LAYER = 4096 * (48 * 128 + 4096) + 3 * 4096 * 14336 + 2 * 4096
LLAMA_8B_VOCABULARY = 128256 * 4096


def test_zero_3_gathers_two_layers_and_reduces_one() -> None:
    """In 2 bytes; a gradient of 2 bytes beside the copy that is reduced, of 4; so for the vocabulary."""
    words = {"framework": "torchtitan", "recompute": "full"}
    none, three = (parts(scene("llama-3.1-8b", zero_stage=z, **words)) for z in (0, 3))
    gathered = (2 * 2 + 2 + 4) * LLAMA_8B_LAYER + (2 + 2 + 4) * LLAMA_8B_VOCABULARY
    assert float(three.buffers - none.buffers) == pytest.approx(gathered, rel=1e-9)


@pytest.mark.parametrize(
    "words", [{"zero_stage": 3, "reshard_after_forward": False}, {"zero_stage": 2}], ids=str
)
def test_weights_that_are_not_resharded_stay_gathered(words: dict[str, object]) -> None:
    """FSDP's ZeRO 2 is that: shards of the fp32 masters, and all layers in 16 bits until backward."""
    resharded, kept = (
        parts(scene("llama-3.1-8b", framework="torchtitan", **more)) for more in ({"zero_stage": 3}, words)
    )
    assert float(kept.parameters) == float(resharded.parameters)
    assert float(kept.buffers - resharded.buffers) == pytest.approx(2 * 30 * LLAMA_8B_LAYER, rel=1e-9)


def test_activations_on_the_host_leave_at_least_two_layers_on_the_device() -> None:
    none, half, every = (
        float(parts(scene("llama-3.1-8b", **more)).activations)
        for more in ({}, {"activation_offload": 20}, {"activation_offload": True})
    )
    assert [half / none, every / none] == pytest.approx([12 / 32, 2 / 32])


def test_a_product_with_frozen_weights_keeps_no_input() -> None:
    """Adapters on attention alone: per token of a layer 14,336 products of the MLP and its input of 4,096 go,
    in 2 bytes; the inputs of the activation stay."""
    every, attention = (
        float(parts(scene("llama-3.1-8b", lora={"rank": 1, "targets": targets})).activations)
        for targets in (["attention", "mlp"], ["attention"])
    )
    assert every - attention == pytest.approx(32 * 4096 * 2 * (14336 + 4096), rel=1e-9)


def test_the_busiest_rank_of_experts_keeps_more() -> None:
    """Of DeepSeek-V3 8 routed copies on 58 layers: two inputs and a product of 2,048, and 7,168 of input."""
    words = {"ep": 8, "devices": 8, "batch": 8, "framework": "other"}
    even, uneven = (parts(scene("deepseek-v3", **words, **more)) for more in ({}, {"expert_imbalance": 1.5}))
    copies = 0.5 * 8 * 4096 * 2
    more = float(uneven.activations - even.activations)
    assert more == pytest.approx(58 * copies * (3 * 2048 + 7168), rel=1e-9)
    assert float(uneven.buffers - even.buffers) == pytest.approx(copies * 7168, rel=1e-9)


def test_compiled_blocks_and_losses_keep_less() -> None:
    words = {"framework": "torchtitan", "zero_stage": 3}
    eager, compiled = (parts(scene("llama-3.1-8b", compile=c, **words)) for c in (False, True))
    assert float(compiled.activations) == pytest.approx(float(eager.activations) / 1.4)
    assert float(eager.buffers - compiled.buffers) == pytest.approx((14 - 8) * 4096 * 128256, rel=1e-9)


def test_a_log_shows_the_rank_and_the_kind_of_memory_that_was_read() -> None:
    s = scene(tp=4, pp=4, flash=False, framework="other", vpp=1)
    first, last = (memory_bytes(s.x, s.settings, stage) for stage in ("first", "last"))
    assert float(first.total) > float(last.total)
    device, reserved, allocated = (
        float(read_bytes(s.x, s.settings, kind)) for kind in ("device", "reserved", "allocated")
    )
    assert device == float(first.total)
    assert device - reserved == 0.8e9
    assert (reserved - 0.8e9) / (allocated - 0.8e9) == pytest.approx(1.25)
    assert float(read_bytes(s.x, s.settings, "device", "last")) == float(last.total)


def test_a_plan_fits_when_its_peak_is_below_the_device_s_memory() -> None:
    s = scene("llama-3.1-8b", devices=8)
    peak = float(s.costs().memory_bytes[0])
    for capacity, fits in ((peak - 1.0, False), (peak, True)):
        costs = replace(s, x=replace(s.x, memory_bytes=number(capacity))).costs()
        assert bool(costs.fits[0]) is fits


def test_depths_of_prediction_that_share_weights_hold_one_depth_s_and_run_all() -> None:
    """Megatron-LM, --mtp-use-repeated-layer."""
    plan = {"ep": 8, "zero_stage": 0}

    def deep(depths: int, **more: bool) -> Scene:
        return scene(model=MODELS["deepseek-v3"] | {"num_nextn_predict_layers": depths} | more, **plan)

    one, three, repeated = deep(1), deep(3), deep(3, mtp_use_repeated_layer=True)
    assert parts(repeated).optimizer == pytest.approx(parts(one).optimizer)
    assert parts(repeated).parameters == pytest.approx(parts(one).parameters)
    assert parts(repeated).parameters < parts(three).parameters
    assert parts(repeated).activations == pytest.approx(parts(three).activations)
    assert parts(repeated).activations > parts(one).activations
