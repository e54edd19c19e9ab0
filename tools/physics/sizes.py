"""How many parameters a rank holds, and how layers are distributed over pipeline stages."""

from dataclasses import dataclass
from functools import lru_cache

from tools.physics.arithmetic import clip, maximum, minimum, where
from tools.physics.inputs import Array, Inputs
from tools.physics.mixers import attention_weights, mixer_cost
from tools.scenario.model import ModelSpec


def attention_parameters(x: Inputs) -> Array:
    """One attention layer, all ranks together."""
    h, q, o = x.hidden, x.heads * x.qk_dim, x.heads * x.v_dim
    plain = h * (q + x.kv_heads * (x.qk_dim + x.v_dim)) + o * h
    q_path = where(x.q_lora > 0, h * x.q_lora + x.q_lora * q, h * q)
    kv_up = x.kv_lora * x.heads * (x.qk_dim - x.rope_dim + x.v_dim)
    latent = q_path + h * (x.kv_lora + x.rope_dim) + kv_up + o * h
    return where(x.kv_lora > 0, latent, plain) * x.projection_ratio


def mixing_parameters(x: Inputs) -> Array:
    """An average layer: attention and the other token mixer by their shares of the layers."""
    mixer = x.hidden * (x.mixer_in + x.mixer_out) + x.mixer_inner_weights
    return x.attention_share * attention_parameters(x) + x.mixer_share * mixer


def expert_parameters(x: Inputs) -> Array:
    return x.moe_hidden * x.moe_ffn * (x.up_matrices + 1.0)


def mlp_parameters(x: Inputs, width: Array) -> Array:
    return x.hidden * width * (x.up_matrices + 1.0)


def shared_parameters(x: Inputs) -> Array:
    """Shared experts, and products that bring tokens to a narrower width of the experts and back."""
    latent = where(x.moe_hidden < x.hidden, 2.0 * x.hidden * x.moe_hidden, 0.0)
    return mlp_parameters(x, x.shared_ffn) + latent


def dense_share(x: Inputs, moe_share: Array) -> Array:
    """Share of layers with a dense feed-forward part, which some models have beside experts or not at all."""
    return 1.0 - moe_share + x.dense_offset


def layer_parameters(x: Inputs, moe_share: Array) -> tuple[Array, Array]:
    """(dense, expert) parameters of an average layer on one rank before data-parallel sharding."""
    feed_forward = dense_share(x, moe_share) * mlp_parameters(x, x.ffn) + moe_share * shared_parameters(x)
    router = moe_share * x.hidden * x.experts
    split = (mixing_parameters(x) + feed_forward + x.other_weights) / x.tp
    dense = split + router + (2.0 + x.norm_offset) * x.hidden
    expert = moe_share * x.experts * expert_parameters(x) / (x.ep * x.etp)
    return dense, expert


def vocabulary_parameters(x: Inputs) -> Array:
    """One embedding or output matrix on one rank."""
    return x.vocab * x.hidden / x.tp


def expert_ranks(x: Inputs) -> Array:
    """Ranks that hold the same experts."""
    return maximum(x.dp * x.cp * x.tp / (x.ep * x.etp), 1.0)


def dense_shards(x: Inputs) -> Array:
    """Over how many ranks ZeRO divides what is not an expert."""
    return minimum(x.dp_shard, x.dp * x.cp)


def expert_shards(x: Inputs) -> Array:
    """Over how many ranks ZeRO divides an expert: the same share of its replicas."""
    return clip(x.dp_shard * x.tp / (x.ep * x.etp), 1.0, expert_ranks(x))


def total_parameters(x: Inputs) -> Array:
    norms = (2.0 + x.norm_offset) * x.hidden
    mixing = x.layers * (mixing_parameters(x) + x.other_weights + norms)
    dense = (x.layers - x.moe_layers + x.layers * x.dense_offset) * mlp_parameters(x, x.ffn)
    moe = x.moe_layers * (x.experts * (expert_parameters(x) + x.hidden) + shared_parameters(x))
    return mixing + dense + moe + (2.0 - x.tied) * x.vocab * x.hidden


@dataclass(frozen=True)
class ParameterCount:
    """`active` are the parameters that one token uses: of the routed experts only those it is sent to."""

    total: int
    active: int


@lru_cache(maxsize=256)
def count_parameters(m: ModelSpec) -> ParameterCount:
    """The exact count of the model, in integers: embedding and head, token mixers, MLPs, experts, router,
    norms and `other_parameters`. Published sizes leave layers of multi-token prediction out, so this does."""
    h, moe_layers = m.hidden_size, m.num_moe_layers
    latent = m.moe_latent_size
    parts = (
        m.layer_types or ("attention",) * m.num_hidden_layers,
        m.ffn_types or ("dense",) * m.num_hidden_layers,
    )
    norms = sum(kind != "none" for kinds in parts for kind in kinds)
    # the two latents of MLA have norms (DeepSeek-V3's modeling code)
    latent_norms = m.q_lora_rank + m.kv_lora_rank if m.is_mla or m.o_groups else 0
    shared = m.shared_expert_intermediate_size or round(m.num_shared_experts * m.moe_intermediate_size)
    matrices = 3 if m.gated_mlp else 2
    expert = matrices * (latent or h) * m.moe_intermediate_size
    every_token = (
        (1 if m.tie_word_embeddings else 2) * m.vocab_size * h
        + attention_weights(m)
        + m.num_attention_layers * latent_norms
        + (m.num_mixer_layers * mixer_cost(m.mixer).weights(h) if m.mixer else 0)
        + norms * h
        + m.num_dense_layers * matrices * h * m.intermediate_size
        + moe_layers * (matrices * h * shared + h * m.num_experts + 2 * h * latent)
        + h  # the norm before the head
        + m.other_parameters
    )
    return ParameterCount(
        total=every_token + moe_layers * m.num_experts * expert,
        active=every_token + moe_layers * m.num_experts_per_tok * expert,
    )


def causal_keys(x: Inputs) -> Array:
    """Keys that a query sees on average: half the document, at most the window on sliding-window layers."""
    tokens = x.document_tokens  # attention does not cross packed documents
    half = tokens / 2.0
    window = minimum(x.window, tokens)
    seen = half + x.window_share * (window - window * window / (2.0 * tokens) - half)
    return seen + x.compressed_keys


def model_flops_per_token(x: Inputs) -> Array:
    """Forward and backward, causal attention counted half, no recomputation (PaLM's convention, halved)."""
    routed = x.experts_per_token * expert_parameters(x) + shared_parameters(x) + x.hidden * x.experts
    active = x.moe_layers * routed
    dense_layers = x.layers - x.moe_layers + x.layers * x.dense_offset
    dense = x.layers * mixing_parameters(x) + dense_layers * mlp_parameters(x, x.ffn)
    attention = 2.0 * x.layers * x.heads * (x.qk_dim + x.v_dim) * causal_keys(x) * x.attention_share
    # the products inside a mixer are already counted with its parameters
    core = x.mixer_share * maximum(x.mixer_flops - 2.0 * x.mixer_inner_weights, 0.0)
    attention = attention + x.layers * (core + x.attention_share * x.index_flops)
    return 6.0 * (dense + active + x.vocab * x.hidden) + 3.0 * attention
