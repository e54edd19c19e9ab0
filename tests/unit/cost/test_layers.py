"""What one layer costs a rank: how parallelism divides it, and what each part adds."""

import numpy as np
import pytest

from tests.unit.cost.scenes import MODELS, number, scene
from tools.cost.layers import attention_block, expert_block, head_block, mlp_block
from tools.cost.stage import layer_time


def test_tensor_parallelism_divides_the_routed_tokens() -> None:
    one, two = (scene("mixtral-8x7b", tp=tp, ep=8, seq_len=32768, batch=64) for tp in (1, 2))
    whole, half = (float(expert_block(s.x, s.c).forward) for s in (one, two))
    assert half == pytest.approx(whole / 2, rel=0.1)


def test_expert_parallelism_leaves_a_rank_s_arithmetic_and_shrinks_its_weights() -> None:
    """As many tokens, to fewer experts: only the weights to read become fewer."""
    times = [float(expert_block(s.x, s.c).forward) for s in (scene("mixtral-8x7b", ep=ep) for ep in (1, 8))]
    assert times[1] < times[0] < 1.5 * times[1]


def test_tensor_parallel_experts_do_a_part_of_each_token_s_work() -> None:
    """etp 2 gathers twice the tokens and does half of each."""
    apart, split = (scene("mixtral-8x7b", tp=2, etp=etp, seq_len=32768, batch=64) for etp in (1, 2))
    one, other = (float(expert_block(s.x, s.c).forward) for s in (apart, split))
    assert other == pytest.approx(one, rel=0.1)


def test_shared_experts_cost_a_dense_part_of_their_width() -> None:
    model = MODELS["deepseek-v3"]
    plain = scene({**model, "num_shared_experts": 0}, ep=64)
    shared = scene(model, ep=64)
    extra = expert_block(shared.x, shared.c).forward - expert_block(plain.x, plain.c).forward
    assert float(extra) == pytest.approx(float(mlp_block(shared.x, shared.c, number(2048)).forward))


def test_memory_bound_work_of_backward_is_twice_that_of_forward() -> None:
    s = scene()
    for work in (attention_block(s.x, s.c)[0], mlp_block(s.x, s.c, s.x.ffn)):
        assert float(work.backward_elementwise) == pytest.approx(2 * float(work.forward_elementwise))


def test_sequence_parallelism_divides_the_work_between_the_products() -> None:
    split, whole = (
        float(mlp_block(s.x, s.c, number(0.0)).forward_elementwise)
        for s in (scene(tp=8, sequence_parallel=flag) for flag in (True, False))
    )
    assert split == pytest.approx(whole / 8)


def test_low_precision_pays_for_casts() -> None:
    low, half = (scene(precision=p) for p in ("fp8", "bf16"))
    casts = [float(mlp_block(s.x, half.c, s.x.ffn).forward_elementwise) for s in (low, half)]
    assert casts[0] > casts[1]


@pytest.mark.parametrize(("fused", "passes"), [(False, (3, 3)), (True, (1, 2))])
def test_the_loss_passes_over_the_logits_in_fp32(fused: bool, passes: tuple[int, int]) -> None:
    s = scene(tp=4, fused_loss=fused)
    logits_s = 4096 * 128256 / 4 * 4 / 3.35e12
    head = head_block(s.x, s.c)
    found = (float(head.forward_elementwise), float(head.backward_elementwise))
    assert found == pytest.approx(tuple(number * logits_s for number in passes))


@pytest.mark.parametrize(("recompute", "pairs"), [("none", 4), ("full", 6)])
def test_a_dense_layer_has_two_tensor_exchanges_each_way_and_an_expert_layer_one(
    recompute: str, pairs: int
) -> None:
    s = scene("mixtral-8x7b", tp=4, recompute=recompute)
    dense, routed = (float(layer_time(s.x, s.c, number(share)).tp) for share in (0.0, 1.0))
    base = scene("mixtral-8x7b", tp=4)
    one = float(layer_time(base.x, base.c, number(0.0)).tp) / 4
    assert dense == pytest.approx(pairs * one)
    assert routed == pytest.approx(dense / 2)


def test_experts_exchange_half_as_often_again_with_full_recomputation() -> None:
    none, full = (scene("mixtral-8x7b", ep=8, recompute=r) for r in ("none", "full"))
    once, again = (float(layer_time(s.x, s.c, np.ones(())).ep) for s in (none, full))
    assert again == pytest.approx(1.5 * once)
