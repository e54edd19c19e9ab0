"""Parameters and FLOPs: published counts of published models, and examples counted by hand."""

import pytest

from tests.unit.physics.scenes import MODELS, scene
from tools.physics.encode import adapter_share
from tools.physics.kernels import attention_pairs
from tools.physics.mixers import mixer_cost, sparse_cost
from tools.physics.sizes import causal_keys, count_parameters, model_flops_per_token
from tools.scenario.model import MixerSpec
from tools.scenario.spec import LoraSpec

LLAMA_405B = MODELS["llama-3.1-70b"] | {
    "num_hidden_layers": 126,
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_attention_heads": 128,
}
SCOUT = {
    "num_hidden_layers": 48, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048,
    "num_local_experts": 16, "num_experts_per_tok": 1, "model_type": "llama4_text",
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "total", "active"),
    [
        ("llama-3.1-8b", 8_030_261_248, 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496, 70_553_706_496),
        (MODELS["llama-3.1-8b"] | {"tie_word_embeddings": True}, 7_504_924_672, 7_504_924_672),
        ("mixtral-8x7b", 46_702_792_704, 12_879_925_248),
        (SCOUT, 107_769_861_120, None),
        ("deepseek-v3", 671_026_404_352, 37_552_282_624),
    ],
    ids=["llama-8b", "llama-70b", "tied", "mixtral-8x7b", "llama-4-scout", "deepseek-v3"],
)
def test_published_models_have_their_published_size(model: object, total: int, active: int | None) -> None:
    """As transformers 5.23 builds them from their config.json on the meta device; of DeepSeek-V3 that leaves
    out its prediction layer. Its README says 671B and 37B activated, Mixtral's paper (arXiv 2401.04088) 47B
    and 13B."""
    count = count_parameters(scene(model, framework="other").scenario.model)
    assert (count.total, count.active) == (total, active or count.active)


def test_flops_of_gpt_3_are_narayanan_s() -> None:
    """arXiv 2104.04473, equation 3, without recomputation and with causal attention: 72 l h^2 (1 + s / 12 h +
    V / 12 l h) a token: 72 * 96 * 12288^2 * (1 + 0.0138889 + 0.0036169) = 1.06195e12."""
    x = scene("gpt-3-175b", seq_len=2048).x
    assert float(model_flops_per_token(x)) == pytest.approx(1.06195e12, rel=1e-5)


@pytest.mark.parametrize(
    ("model", "seq_len", "tokens", "published"),
    [("gpt-3-175b", 2048, 300e9, 3.14e23), (LLAMA_405B, 8192, 15.6e12, 3.8e25)],
)
def test_training_runs_took_their_published_flops(
    model: object, seq_len: int, tokens: float, published: float
) -> None:
    """Brown et al., arXiv 2005.14165, table D.1; Llama 3, arXiv 2407.21783, section 3.1. Both leave attention
    out, which is 1% and 4%."""
    x = scene(model, seq_len=seq_len, devices=1, batch=1).x
    assert float(model_flops_per_token(x)) * tokens == pytest.approx(published, rel=0.05)


@pytest.mark.parametrize(
    ("window", "every", "keys"), [(None, 1, 2048.0), (1024, 1, 896.0), (1024, 2, 1472.0)]
)
def test_a_query_sees_half_the_sequence_or_its_window(window: int | None, every: int, keys: float) -> None:
    """Counted by hand for 4,096 tokens: the first 1,024 queries see 512 keys on average, the other 3,072 see
    1,024: 896. On every second layer half of that and of 2,048."""
    fields = {"sliding_window": window, "sliding_window_every": every} if window else {}
    assert float(causal_keys(scene(MODELS["llama-3.1-70b"] | fields).x)) == pytest.approx(keys)


def test_flash_attention_computes_half_the_square() -> None:
    """FlashAttention-2, arXiv 2307.08691, section 4.1: 4 s^2 d heads FLOPs forward, half of that if causal.
    With 4,096 tokens and 64 heads of 128: 549.8e9, and 274.9e9."""
    assert float(attention_pairs(scene().x)) * 4 * 128 == pytest.approx(274.878e9, rel=1e-5)
    assert float(attention_pairs(scene(flash=False).x)) * 4 * 128 == pytest.approx(549.756e9, rel=1e-5)


@pytest.mark.parametrize(
    ("targets", "adapters"), [(("attention", "mlp"), 41_943_040), (("attention",), 13_631_488)]
)
def test_adapters_of_rank_16_have_their_published_size(targets: tuple[str, ...], adapters: int) -> None:
    """PEFT's print_trainable_parameters for Llama 3.1 8B: 41,943,040 on all seven products of a layer."""
    model = scene("llama-3.1-8b").scenario.model
    share = adapter_share(model, LoraSpec.model_validate({"rank": 16, "targets": targets}))
    assert share * 8_030_261_248 == pytest.approx(adapters)


@pytest.mark.parametrize(
    ("mixer", "weights", "flops"),
    [
        # Of the 64 layers of state-spaces/mamba2-2.7b: in 2,560 x 10,576, out 5,120 x 2,560, convolution, A,
        # D, dt, norm; per token scores of half a chunk of 256 (256 * 128) and their product with the values
        # (256 * 5,120), states written and read (4 * 128 * 5,120)
        (
            {"kind": "mamba2", "inner_size": 5120, "key_size": 128, "state_size": 128, "num_heads": 80},
            40_214_000,
            3_964_928.0,
        ),
        # Of state-spaces/mamba-2.8b: dt and B, C of rank 160 and 16, and a scan of 9 FLOPs a state
        (
            {"kind": "mamba", "inner_size": 5120, "key_size": 0, "state_size": 16, "low_rank": 160},
            41_241_600,
            4_341_760.0,
        ),
    ],
    ids=["mamba2", "mamba"],
)
def test_token_mixers_are_counted_by_hand(mixer: dict[str, object], weights: int, flops: float) -> None:
    cost = mixer_cost(MixerSpec.model_validate({"conv_kernel": 4, **mixer}))
    assert (cost.weights(2560), cost.flops) == (weights, flops)


def test_the_lightning_indexer_of_deepseek_v3_2_is_counted_by_hand() -> None:
    """arXiv 2512.02556, section 2: 64 heads of 128 from a latent of 1,536, one key head and a weight per head
    from 7,168: 64 * (1536 * 128 + 7168) + 7168 * 128 on each of 61 layers; a query scores half the keys."""
    fields = MODELS["deepseek-v3"] | {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
    sparse = sparse_cost(scene(fields).scenario.model, 4096)
    assert sparse.weights == 61 * (64 * (196_608 + 7_168) + 917_504)
    assert sparse.index_flops == 61 * 2 * 64 * 128 * 2048


def test_an_nvfp4_run_keeps_a_sixth_of_its_linear_layers_in_16_bits() -> None:
    """NVIDIA, arXiv 2509.25149, the 12B model: of its 62 blocks the first two and the last eight
    stay in BF16, 16% of the linear layers. Without a scope none would."""
    words = {"device": "b200", "precision": "nvfp4", "precision_scope": {"bf16_last_layers": 10}}
    x = scene(MODELS["llama-3.1-8b"] | {"num_hidden_layers": 62}, **words).x
    assert (float(x.wide_qkv), float(x.wide_mlp)) == pytest.approx((0.16, 0.16), abs=0.005)
