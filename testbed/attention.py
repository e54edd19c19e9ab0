"""Causal self-attention with rotary positions and grouped queries, over context and tensor ranks."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from testbed.layout import Axis, gather_first
from testbed.tensor_parallel import ColumnLinear, Region, RowLinear
from tools.scenario import ModelSpec

ROTARY_BASE = 500_000.0


def rank_positions(seq_len: int, cp: Axis) -> list[range]:
    """The pieces of the sequence that a context rank holds, in order."""
    if cp.size == 1:
        return [range(seq_len)]
    piece = seq_len // (2 * cp.size)
    return [range(i * piece, (i + 1) * piece) for i in (cp.rank, 2 * cp.size - 1 - cp.rank)]


class Rotary:
    """Cosines and sines of a rank's positions; made anew for every pass, since they are cheap."""

    def __init__(self, seq_len: int, head_dim: int, cp: Axis, device: torch.device) -> None:
        pieces = [torch.arange(p.start, p.stop, device=device) for p in rank_positions(seq_len, cp)]
        steps = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
        angles = torch.outer(torch.cat(pieces).float(), ROTARY_BASE**-steps)
        self.cos, self.sin = angles.cos()[:, None, None, :], angles.sin()[:, None, None, :]

    def turn(self, heads: Tensor) -> Tensor:
        """(sequence, batch, heads, head_dim) with each pair turned by its position."""
        first, second = heads.chunk(2, dim=-1)
        cos, sin = self.cos.to(heads.dtype), self.sin.to(heads.dtype)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    """Query, key, value and output projections around the attention core."""

    def __init__(self, model: ModelSpec, region: Region, cp: Axis, flash: bool) -> None:
        super().__init__()
        tp, hidden, self.head_dim = region.tp, model.hidden_size, model.head_dim
        self.query = ColumnLinear(hidden, model.num_attention_heads * model.head_dim, tp)
        self.key = ColumnLinear(hidden, model.num_key_value_heads * model.head_dim, tp)
        self.value = ColumnLinear(hidden, model.num_key_value_heads * model.head_dim, tp)
        self.output = RowLinear(model.num_attention_heads * model.head_dim, hidden, tp)
        self.region, self.cp, self.flash = region, cp, flash

    def forward(self, hidden: Tensor, rotary: Rotary) -> Tensor:
        whole = self.region.enter(hidden)
        query = rotary.turn(self._heads(self.query(whole)))
        key = rotary.turn(self._heads(self.key(whole)))
        value = self._heads(self.value(whole))
        mixed = self._attend(query, key, value)
        return self.region.leave(self.output(mixed.flatten(2)))

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:-1], -1, self.head_dim)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.cp.size == 1:
            return causal_attention(query, key, value, self.flash)
        both = natural_order(gather_first(torch.cat([key, value], dim=-1), self.cp), self.cp.size)
        keys, values = both.chunk(2, dim=-1)
        piece = query.shape[0] // 2
        ends = [(i + 1) * piece for i in (self.cp.rank, 2 * self.cp.size - 1 - self.cp.rank)]
        parts = [
            causal_attention(part, keys[:end], values[:end], self.flash)
            for part, end in zip(torch.split(query, piece), ends, strict=True)
        ]
        return torch.cat(parts)


def natural_order(gathered: Tensor, ranks: int) -> Tensor:
    """From rank by rank (the i-th piece and the i-th from the end) to the order of the sequence."""
    pieces = gathered.chunk(2 * ranks)
    return torch.cat([*pieces[0::2], *pieces[1::2][::-1]])


def causal_attention(query: Tensor, key: Tensor, value: Tensor, flash: bool) -> Tensor:
    """Each query sees the keys up to its own, counted from the end where there are more keys than queries."""
    query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
    queries, keys = query.shape[2], key.shape[2]
    same = queries == keys
    mask = None if same else _lower_right(queries, keys, query.device)
    kernels = list(SDPBackend.__members__.values()) if flash else [SDPBackend.MATH]
    with sdpa_kernel([kernel for kernel in kernels if kernel != SDPBackend.ERROR]):
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=same, enable_gqa=True
        )
    return mixed.permute(2, 0, 1, 3)


def _lower_right(queries: int, keys: int, device: torch.device) -> Tensor:
    """A subclass that CUDA's fused kernels know; elsewhere the mask itself."""
    if device.type == "cuda":
        return causal_lower_right(queries, keys)
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
