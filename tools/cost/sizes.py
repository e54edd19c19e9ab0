"""How many parameters a rank holds, and how layers are distributed over pipeline stages."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tools.cost.inputs import Array, Inputs
from tools.scenario.spec import ModelSpec


@dataclass(frozen=True)
class Stages:
    """Layers of an inner stage and of the last one, which also holds the head."""

    inner: Array
    last: Array
    moe_share: Array


def stages(x: Inputs) -> Stages:
    """Even stages where the layers divide; else the last stage, which has the head, gets what remains."""
    inner = np.ceil(x.layers / x.pp)
    last = np.maximum(x.layers - inner * (x.pp - 1.0), 1.0)
    # leading dense layers stand on the first stage, so the others hold a larger share of experts
    staged = x.moe_layers / np.maximum(x.layers - x.leading_dense, 1.0)
    return Stages(inner, last, np.where(x.pp > 1, staged, x.moe_layers / x.layers))


def attention_parameters(x: Inputs) -> Array:
    """Of one layer, all ranks together."""
    h, q, o = x.hidden, x.heads * x.qk_dim, x.heads * x.v_dim
    plain = h * (q + x.kv_heads * (x.qk_dim + x.v_dim)) + o * h
    q_path = np.where(x.q_lora > 0, h * x.q_lora + x.q_lora * q, h * q)
    kv_up = x.kv_lora * x.heads * (x.qk_dim - x.rope_dim + x.v_dim)
    latent = q_path + h * (x.kv_lora + x.rope_dim) + kv_up + o * h
    return np.where(x.kv_lora > 0, latent, plain)


def mlp_parameters(x: Inputs, width: Array) -> Array:
    return x.hidden * width * (x.up_matrices + 1.0)


def layer_parameters(x: Inputs, moe_share: Array) -> tuple[Array, Array]:
    """(dense, expert) parameters of an average layer on one rank before data-parallel sharding."""
    feed_forward = (1.0 - moe_share) * mlp_parameters(x, x.ffn) + moe_share * mlp_parameters(x, x.shared_ffn)
    router = moe_share * x.hidden * x.experts
    dense = (attention_parameters(x) + feed_forward) / x.tp + router + 2.0 * x.hidden
    expert = moe_share * x.experts * mlp_parameters(x, x.moe_ffn) / (x.ep * x.etp)
    return dense, expert


def vocabulary_parameters(x: Inputs) -> Array:
    """One embedding or output matrix on one rank."""
    return x.vocab * x.hidden / x.tp


def expert_ranks(x: Inputs) -> Array:
    """Ranks that hold the same experts."""
    return np.maximum(x.dp * x.cp * x.tp / (x.ep * x.etp), 1.0)


def dense_shards(x: Inputs) -> Array:
    """Over how many ranks ZeRO divides what is not an expert."""
    return np.minimum(x.dp_shard, x.dp * x.cp)


def expert_shards(x: Inputs) -> Array:
    """Over how many ranks ZeRO divides an expert: the same share of its replicas."""
    return np.clip(x.dp_shard * x.tp / (x.ep * x.etp), 1.0, expert_ranks(x))


def total_parameters(x: Inputs) -> Array:
    """Of the whole model."""
    attention = x.layers * (attention_parameters(x) + 2.0 * x.hidden)
    dense = (x.layers - x.moe_layers) * mlp_parameters(x, x.ffn)
    moe = x.moe_layers * (
        x.experts * mlp_parameters(x, x.moe_ffn) + mlp_parameters(x, x.shared_ffn) + x.hidden * x.experts
    )
    return attention + dense + moe + (2.0 - x.tied) * x.vocab * x.hidden


@dataclass(frozen=True)
class ParameterCount:
    """`active` are the parameters that one token uses: of the routed experts only those it is sent to."""

    total: int
    active: int


@lru_cache(maxsize=256)
def count_parameters(m: ModelSpec) -> ParameterCount:
    """The exact count of the model, in integers.

    Counts what a `ModelSpec` knows: embedding and head, attention, MLPs, experts, router and norms. Biases
    and query/key norms are missing because it does not know them, and multi-token prediction layers because
    published sizes leave them out.
    """
    h, moe_layers = m.hidden_size, m.num_moe_layers
    shared = m.shared_expert_intermediate_size or round(m.num_shared_experts * m.moe_intermediate_size)
    matrices = 3 if m.gated_mlp else 2
    expert = matrices * h * m.moe_intermediate_size
    every_token = (
        (1 if m.tie_word_embeddings else 2) * m.vocab_size * h
        + m.num_hidden_layers * (_attention_count(m) + 2 * h)
        + m.num_dense_layers * matrices * h * m.intermediate_size
        + moe_layers * (matrices * h * shared + h * m.num_experts)
        + h  # the norm before the head
    )
    return ParameterCount(
        total=every_token + moe_layers * m.num_experts * expert,
        active=every_token + moe_layers * m.num_experts_per_tok * expert,
    )


def _attention_count(m: ModelSpec) -> int:
    """One layer; under MLA with the norms of the two latents (DeepSeek-V3's modeling code)."""
    h, heads = m.hidden_size, m.num_attention_heads
    if not m.is_mla:
        return 2 * h * m.head_dim * (heads + m.num_key_value_heads)
    query_dim = heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)
    query = m.q_lora_rank * (h + 1 + query_dim) if m.q_lora_rank else h * query_dim
    latent = h * (m.kv_lora_rank + m.qk_rope_head_dim) + m.kv_lora_rank
    return query + latent + heads * (m.kv_lora_rank * (m.qk_nope_head_dim + m.v_head_dim) + m.v_head_dim * h)


def causal_keys(x: Inputs) -> Array:
    """Keys that a query sees on average: half the sequence, at most the window on sliding-window layers."""
    half = x.seq / 2.0
    window = np.minimum(x.window, x.seq)
    return half + x.window_share * (window - window * window / (2.0 * x.seq) - half)


def model_flops_per_token(x: Inputs) -> Array:
    """Forward and backward, causal attention counted half, no recomputation (PaLM's convention, halved)."""
    active = x.moe_layers * (
        x.experts_per_token * mlp_parameters(x, x.moe_ffn)
        + mlp_parameters(x, x.shared_ffn)
        + x.hidden * x.experts
    )
    dense = x.layers * attention_parameters(x) + (x.layers - x.moe_layers) * mlp_parameters(x, x.ffn)
    attention = 2.0 * x.layers * x.heads * (x.qk_dim + x.v_dim) * causal_keys(x)
    return 6.0 * (dense + active + x.vocab * x.hidden) + 3.0 * attention
