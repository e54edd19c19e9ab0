"""What one layer costs a rank: how parallelism divides it, and what each part adds."""

import pytest

from tests.unit.physics.scenes import MODELS, number, scene
from tools.physics.collectives import PROXY_START_S
from tools.physics.encode import PROXY_MESSAGE_S
from tools.physics.kernels import attention_s, linear_s, recurrence_s
from tools.physics.layers import expert_block, head_block, mixer_block, mlp_block, projections, routed
from tools.physics.stage import head_time, layer_time


def test_a_capacity_pads_the_rows_of_the_experts() -> None:
    free, padded = (scene("mixtral-8x7b", ep=8, **more).x for more in ({}, {"capacity_factor": 1.25}))
    assert float(routed(padded)[1]) == 1.25 * float(routed(free)[1]) == 1.25 * 4096 * 2


def test_shared_experts_cost_a_dense_part_of_their_width() -> None:
    model = MODELS["deepseek-v3"]
    plain = scene({**model, "num_shared_experts": 0}, ep=64)
    shared = scene(model, ep=64)
    extra = expert_block(shared.x, shared.c).forward - expert_block(plain.x, plain.c).forward
    assert float(extra) == pytest.approx(
        float(mlp_block(shared.x, shared.c, number(2048), number(0.0)).forward)
    )


@pytest.mark.parametrize(("fused", "passes"), [(False, (3, 3)), (True, (1, 2))])
def test_the_loss_passes_over_the_logits_in_fp32(fused: bool, passes: tuple[int, int]) -> None:
    s = scene(tp=4, fused_loss=fused)
    logits_s = 4096 * 128256 / 4 * 4 / 3.35e12
    head = head_block(s.x, s.c)
    found = (float(head.forward_elementwise), float(head.backward_elementwise))
    assert found == pytest.approx(tuple(number * logits_s for number in passes))


@pytest.mark.parametrize("module", ["layernorm", "mlp", "moe", "core_attn", "mla_up_proj"])
def test_a_named_module_takes_its_own_forward_pass_again(module: str) -> None:
    """Norms read and write the hidden state twice; the others are the blocks of the layer."""
    s = scene("deepseek-v3", ep=8, recompute="selective", recompute_modules=[module])
    x, c, share = s.x, s.c, float(s.x.stages.moe_share)
    mlp, experts = mlp_block(x, c, x.ffn, x.wide_mlp), expert_block(x, c)
    repeated_s = {
        "layernorm": 4 * 4096 * 7168 * 2 * float(c.elementwise_traffic) / 3.35e12,
        "mlp": (1 - share) * float(mlp.forward + mlp.forward_elementwise),
        "moe": share * float(experts.forward + experts.forward_elementwise),
        "core_attn": float(attention_s(x, c)[0]),
        "mla_up_proj": sum(float(linear_s(x, c, x.tokens, *projections(x)[n])[0]) for n in (2, 3)),
    }
    assert float(layer_time(x, c, s.x.stages.moe_share).recompute) == pytest.approx(repeated_s[module])


def test_a_proxy_posts_each_token_for_itself() -> None:
    """16 ranks on two nodes: every token of 4,096 goes across once, four times in a layer, and each exchange
    starts through the proxy."""
    words = {"devices": 16, "ep": 16, "moe_dispatcher": "deepep"}
    posted = scene("gpt-oss-120b", moe_transport="host-proxy", **words)
    exchange_s = float(layer_time(posted.x, posted.c, number(1.0)).ep) / 4
    domains_hit = 2 * (1 - 0.5**4) / 2
    assert exchange_s == pytest.approx(4096 * domains_hit * PROXY_MESSAGE_S + PROXY_START_S, rel=0.01)


def test_memory_bound_work_moves_the_hidden_state_and_the_inner_values() -> None:
    """Of Llama 3.1 70B: five passes over 8,192, two over queries, keys and values with their outputs, three
    over the inner width; twice that backward. A fused loss passes once and twice over the logits."""
    s = scene(fused_loss=True)
    byte_s = 4096 * 2 * float(s.c.elementwise_traffic) / 3.35e12
    elements = (5 * 8192 + 2 * (64 + 8) * 256) + (5 * 8192 + 3 * 28672)
    assert float(layer_time(s.x, s.c, number(0.0)).elementwise) == pytest.approx(3 * elements * byte_s)
    assert float(head_time(s.x, s.c).elementwise) == pytest.approx(3 * 4096 * 128256 * 4 / 3.35e12)


def test_a_token_mixer_is_two_products_and_its_recurrence() -> None:
    s = scene("mamba2", framework="other")
    x, c = s.x, s.c
    parts = (
        linear_s(x, c, x.tokens, x.mixer_in, x.hidden),
        linear_s(x, c, x.tokens, x.hidden, x.mixer_out),
        recurrence_s(x),
    )
    work, (forward, backward) = mixer_block(x, c), zip(*parts, strict=True)
    assert (float(work.forward), float(work.backward)) == pytest.approx((sum(forward), sum(backward)))
    assert float(recurrence_s(x)[0]) == pytest.approx(4096 * float(x.mixer_flops) / (132 * 0.5e12), rel=1e-3)
