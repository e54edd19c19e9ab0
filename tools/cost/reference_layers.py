"""Layers that are not uniform transformer layers, for the reference cost model: counted one layer at a time.

Plain Python, written from docs/cost-model.md; shares no formula with `mixers.py`.
"""

from typing import NamedTuple

from tools.scenario.model import MixerSpec, ModelSpec


class Mixer(NamedTuple):
    """A token mixer: the shapes of its matrices, what else it has, and the FLOPs between its outer
    matrices."""

    columns: int
    rows: int
    inner: int
    small: int
    flops: float


class Layers(NamedTuple):
    """Averages over the layers of a model."""

    attention: float
    mixed: float
    dense: float
    norms: float
    weights: float
    """Of an average layer's attention, with indexers and compressors."""
    ratio: float
    """Those over what the plain formula counts."""
    index_flops: float
    compressed_keys: float
    sublayers: float
    """Attention, mixers and feed-forward parts that reduce over tensor ranks, without experts."""


def mixer_of(s: MixerSpec) -> Mixer:
    v, k, n, heads, conv, r = (
        s.inner_size, s.key_size, s.state_size, s.num_heads, s.conv_kernel, s.low_rank,
    )  # fmt: skip
    delta = 64 * (3 * heads * n + 2 * v) + 6 * n * v
    chunked = 256 * k + 256 * v + 4 * n * v
    if s.kind == "mamba":
        return Mixer(2 * v, v, v * (2 * r + 2 * n), v * (conv + n + 3), 9 * v * n + 2 * v * (2 * r + 2 * n))
    if s.kind == "mamba2":
        return Mixer(2 * (v + k) + heads, v, 0, (v + 2 * k) * (conv + 1) + 3 * heads + v, chunked)
    if s.kind == "gated_delta_net":
        small = conv * (v + 2 * k) + 2 * heads + v // heads
        return Mixer(2 * (k + v + heads), v, 0, small, delta)
    if s.kind == "kimi_delta_attention":
        small = conv * (v + 2 * k) + heads + k + v // heads
        forget_and_output = 2 * r if r else k + v
        return Mixer(2 * k + v + heads + forget_and_output, v, r * (k + v), small, delta + 2 * r * (k + v))
    if s.kind == "linear_attention":
        return Mixer(2 * (k + v), v, 0, v, chunked)
    if s.kind == "short_conv":
        return Mixer(3 * v, v, 0, v * conv, 2 * v * conv + 4 * v)
    gates = 2 * v * v // heads
    return Mixer(2 * v, v, gates, v * (conv + 4), 10 * v + 2 * gates)


def attention_matrices(m: ModelSpec, sliding: bool) -> int:
    """Elements of the matrices of one attention layer."""
    heads = (sliding and m.sliding_num_attention_heads) or m.num_attention_heads
    groups = (sliding and m.sliding_num_key_value_heads) or m.num_key_value_heads
    dim = (sliding and m.sliding_head_dim) or m.head_dim
    h, rank = m.hidden_size, m.q_lora_rank
    if m.kv_lora_rank:
        dim = m.qk_nope_head_dim + m.qk_rope_head_dim
    out = m.v_head_dim or dim
    queries = heads * dim * (1 + m.attn_output_gate)
    shapes = [(h, rank), (rank, queries)] if rank else [(h, queries)]
    if m.kv_lora_rank:
        up = heads * (m.qk_nope_head_dim + out)
        shapes += [(h, m.kv_lora_rank), (h, m.qk_rope_head_dim), (m.kv_lora_rank, up)]
    elif m.o_groups:
        shapes += [(h, groups * dim)]
    else:
        shapes += [(h, groups * dim), (h, groups * out)]
    if m.o_groups:
        shapes += [(heads * dim // m.o_groups, m.o_groups * m.o_lora_rank), (m.o_groups * m.o_lora_rank, h)]
    else:
        shapes.append((heads * out, h))
    return sum(rows * columns for rows, columns in shapes)


def layers_of(m: ModelSpec, seq_len: int) -> Layers:
    count, h = m.num_hidden_layers, m.hidden_size
    kinds = m.layer_types or ("attention",) * count
    attending = [i for i, kind in enumerate(kinds) if kind in ("attention", "parallel")]
    sliding = min(m.num_sliding_layers, len(attending))
    total = sum(attention_matrices(m, position < sliding) for position in range(len(attending)))
    scored = read = 0.0
    query_from = m.q_lora_rank or h
    indexed = m.num_index_layers or len(attending)
    if m.index_n_heads and not m.compress_ratios:
        heads, dim = m.index_n_heads, m.index_head_dim
        total += indexed * (query_from * heads * dim + h * dim + h * heads)
        scored = heads * dim * seq_len * indexed
    for ratio in m.compress_ratios[:count]:
        if not ratio:
            continue
        keys, per_head = seq_len / ratio / 2, 2 * h + ratio
        if ratio > 16:
            total, read = total + per_head * m.head_dim, read + keys
            continue
        total += 2 * per_head * (m.head_dim + m.index_head_dim)
        if m.index_n_heads:
            total += m.index_n_heads * (query_from * m.index_head_dim + h)
            scored += 2 * m.index_n_heads * m.index_head_dim * keys
        read += min(keys, m.index_topk or keys)
    mixing = count - kinds.count("none")
    fed = m.ffn_types or ("moe",) * count
    dense_and_moe = m.num_dense_layers + m.num_moe_layers
    plain = attention_matrices(m.model_copy(update=_PLAIN), False)
    if not m.kv_lora_rank:
        plain = attention_matrices(m.model_copy(update={**_PLAIN, "q_lora_rank": 0}), False)
    attention = len(attending)
    return Layers(
        attention=attention / count,
        mixed=(len([k for k in kinds if k in ("mixer", "parallel")])) / count,
        dense=dense_and_moe / count - 1,
        norms=(mixing + count - fed.count("none")) / count,
        weights=total / count,
        ratio=total / (plain * attention) if attention else 1.0,
        index_flops=scored / attention if attention else 0.0,
        compressed_keys=read / len(m.compress_ratios[:count]) if m.compress_ratios else 0.0,
        sublayers=mixing / count + dense_and_moe / count,
    )


_PLAIN = {"attn_output_gate": False, "o_groups": 0}
