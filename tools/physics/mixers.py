"""What is not a uniform transformer layer: other token mixers, sparse and compressed attention, odd shapes.

`layer_facts` turns a model into averages over its layers, which the array model reads. A uniform
transformer gives shares and ratios of exactly 1 and nothing else.
"""

from dataclasses import dataclass
from functools import lru_cache

from tools.scenario.model import MixerSpec, ModelSpec

SSD_CHUNK = 256
"""Tokens per chunk of Mamba 2's kernel (state-spaces/mamba, chunk_size)."""
DELTA_CHUNK = 64
"""Tokens per chunk of the delta rule's kernels (fla-org/flash-linear-attention)."""
SCAN_FLOPS = 9.0
"""Per channel and state of Mamba's scan: discretise, multiply, add, read (arXiv 2312.00752, section 3.3)."""
SPARSE_RATIO = 16
"""DeepSeek-V4 indexes keys compressed up to this ratio (4) and reads all compressed further (128)."""


@dataclass(frozen=True, slots=True)
class MixerCost:
    """One layer's mixer: products from and to the hidden state, and the work between them per token."""

    in_width: int
    """Columns of the products that read the hidden state."""
    out_width: int
    """Rows of the product that returns to it."""
    inner_weights: int
    """Weights of products in between."""
    small_weights: int
    """Convolution, decay, step size and norm."""
    core_flops: float
    """Per token and forward: the recurrence in chunks."""

    def weights(self, hidden: int) -> int:
        return hidden * (self.in_width + self.out_width) + self.inner_weights + self.small_weights

    @property
    def flops(self) -> float:
        """Per token and forward, between the outer products."""
        return self.core_flops + 2.0 * self.inner_weights


def mixer_cost(s: MixerSpec) -> MixerCost:
    """Weights as in transformers' modeling files; FLOPs as the papers' chunked algorithms."""
    inner, keys, state, heads, rank = s.inner_size, s.key_size, s.state_size, s.num_heads, s.low_rank
    kernel = s.conv_kernel
    match s.kind:
        case "mamba":  # Gu and Dao, arXiv 2312.00752
            low = inner * (rank + 2 * state) + rank * inner
            small = inner * (kernel + 1) + inner * state + 2 * inner
            return MixerCost(2 * inner, inner, low, small, SCAN_FLOPS * inner * state)
        case "mamba2":  # Dao and Gu, arXiv 2405.21060, section 6
            small = (inner + 2 * keys) * (kernel + 1) + 3 * heads + inner
            core = SSD_CHUNK * (keys + inner) + 4 * state * inner
            return MixerCost(2 * inner + 2 * keys + heads, inner, 0, small, core)
        case "gated_delta_net":  # Yang et al., arXiv 2412.06464, section 3.3
            small = (2 * keys + inner) * kernel + 2 * heads + inner // max(heads, 1)
            return MixerCost(2 * keys + 2 * inner + 2 * heads, inner, 0, small, _delta_flops(s))
        case "kimi_delta_attention":  # Kimi Linear, arXiv 2510.26692, section 3
            low = rank * (keys + inner)
            gates = 2 * rank or keys + inner  # of low rank, or whole (Ling 3.0)
            small = (2 * keys + inner) * kernel + heads + keys + inner // max(heads, 1)
            return MixerCost(2 * keys + inner + heads + gates, inner, low, small, _delta_flops(s))
        case "linear_attention":  # lightning attention, arXiv 2401.04658, section 3
            core = SSD_CHUNK * (keys + inner) + 4 * state * inner
            return MixerCost(2 * keys + 2 * inner, inner, 0, inner, core)
        case "short_conv":  # LFM2's gated convolution
            return MixerCost(3 * inner, inner, 0, inner * kernel, 2.0 * inner * (kernel + 2))
        case "rg_lru":  # De et al., arXiv 2402.19427, section 2.4: gates are block-diagonal
            gates = 2 * inner * inner // max(heads, 1)
            return MixerCost(2 * inner, inner, gates, inner * (kernel + 1) + 3 * inner, 10.0 * inner)


def _delta_flops(s: MixerSpec) -> float:
    """The delta rule in chunks: products inside a chunk (with the triangular inverse), then with the
    state."""
    wide = max(s.num_heads, 1) * s.state_size  # keys, repeated for every value head
    return DELTA_CHUNK * (3 * wide + 2 * s.inner_size) + 6 * s.state_size * s.inner_size


@dataclass(frozen=True, slots=True)
class SparseCost:
    """What indexers and compressed keys add to attention (DeepSeek-V3.2, arXiv 2512.02556, section 2; the
    modeling file of DeepSeek-V4)."""

    weights: int
    """The sum over all layers."""
    index_flops: float
    """Per token and forward of all layers: each index head scores half the keys."""
    compressed_keys: float
    """Read by a query beside its window, on the average layer."""


def sparse_cost(m: ModelSpec, seq_len: int) -> SparseCost:
    h, heads, dim = m.hidden_size, m.index_n_heads, m.index_head_dim
    weights, flops, read = 0, 0.0, 0.0
    indexer = heads * ((m.q_lora_rank or h) * dim + h)  # queries from the latent, and a weight per head
    ratios = m.compress_ratios[: m.num_hidden_layers]
    if heads and not ratios:  # one key head of its own
        layers = m.num_index_layers or m.num_attention_layers
        weights = layers * (indexer + h * dim)
        flops = 2.0 * heads * dim * seq_len / 2.0 * layers
    for ratio in filter(None, ratios):
        keys, compressor = seq_len / (2.0 * ratio), 2 * h + ratio  # a key and a gate
        if ratio <= SPARSE_RATIO:  # overlapping blocks have two of each, and so does the indexer
            weights += 2 * compressor * (m.head_dim + dim) + indexer
            flops += 2.0 * heads * dim * keys
            read += min(keys, m.index_topk or keys)
        else:
            weights, read = weights + compressor * m.head_dim, read + keys
    return SparseCost(weights, flops, read / max(len(ratios), 1))


def attention_weights(m: ModelSpec) -> int:
    """Products of all attention layers, without norms and biases."""
    sliding = min(m.num_sliding_layers, m.num_attention_layers)
    whole = m.num_attention_layers - sliding
    products = sliding * _attention_products(m, sliding=True) + whole * _attention_products(m, sliding=False)
    return products + sparse_cost(m, 1).weights


def _attention_products(m: ModelSpec, sliding: bool) -> int:
    h, heads, kv_heads, dim = m.hidden_size, m.num_attention_heads, m.num_key_value_heads, m.head_dim
    if sliding:
        heads = m.sliding_num_attention_heads or heads
        kv_heads = m.sliding_num_key_value_heads or kv_heads
        dim = m.sliding_head_dim or dim
    if m.is_mla:
        dim = m.qk_nope_head_dim + m.qk_rope_head_dim
    value_dim = m.v_head_dim or dim
    columns = heads * dim * (2 if m.attn_output_gate else 1)
    query = m.q_lora_rank * (h + columns) if m.q_lora_rank else h * columns
    if m.o_groups:  # heads are mixed in groups of low rank; one head is key and value (DeepSeek-V4)
        output = heads * dim * m.o_lora_rank + m.o_groups * m.o_lora_rank * h
        return query + h * kv_heads * dim + output
    output = heads * value_dim * h
    if m.is_mla:
        expanded = m.kv_lora_rank * heads * (m.qk_nope_head_dim + value_dim)
        return query + h * (m.kv_lora_rank + m.qk_rope_head_dim) + expanded + output
    return query + h * kv_heads * (dim + value_dim) + output


@lru_cache(maxsize=256)
def layer_facts(m: ModelSpec, seq_len: int) -> dict[str, float]:
    """Averages over the layers, by the names of `Inputs`."""
    layers, attention = m.num_hidden_layers, m.num_attention_layers
    sparse, cost = sparse_cost(m, seq_len), mixer_cost(m.mixer) if m.mixer else None
    has_mixer = sum(kind != "none" for kind in m.layer_types) if m.layer_types else layers
    has_ffn = sum(kind != "none" for kind in m.ffn_types) if m.ffn_types else layers
    # an attention layer as the array model's own formula counts it
    plain = {"attn_output_gate": False, "o_groups": 0, "q_lora_rank": m.q_lora_rank if m.is_mla else 0}
    uniform = _attention_products(m.model_copy(update=plain), sliding=False)
    return {
        "attention_share": attention / layers,
        "projection_ratio": attention_weights(m) / (attention * uniform) if attention else 1.0,
        "mixer_share": m.num_mixer_layers / layers,
        "mixer_in": cost.in_width if cost else 0.0,
        "mixer_out": cost.out_width if cost else 0.0,
        "mixer_flops": cost.flops if cost else 0.0,
        "mixer_inner_weights": cost.inner_weights + cost.small_weights if cost else 0.0,
        "mixing_offset": has_mixer / layers - 1.0,
        "dense_offset": (m.num_dense_layers + m.num_moe_layers) / layers - 1.0,
        "norm_offset": (has_mixer + has_ffn) / layers - 2.0,
        "moe_hidden": m.moe_latent_size or m.hidden_size,
        "index_flops": sparse.index_flops / max(attention, 1),
        "compressed_keys": sparse.compressed_keys,
        "other_weights": m.other_parameters / layers,
    }
