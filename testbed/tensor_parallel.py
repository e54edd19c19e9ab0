"""Layers divided over tensor ranks, and the vocabulary-parallel cross-entropy.

After Megatron-LM (arXiv 1909.08053, section 3; sequence parallelism arXiv 2205.05198, section 4.2.2).
Activations are (sequence, batch, hidden), so sequences are gathered without reordering.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd import Function
from torch.distributed.tensor import DTensor
from torch.nn import functional

from testbed.layout import Axis, copy_to_ranks, gather_first, scatter_first, sum_over_ranks


@dataclass(frozen=True)
class Region:
    """The part of a layer that tensor ranks share: inside, every rank sees the whole sequence."""

    tp: Axis
    sequence_parallel: bool

    def enter(self, hidden: Tensor) -> Tensor:
        return (gather_first if self.sequence_parallel else copy_to_ranks)(hidden, self.tp)

    def leave(self, partial: Tensor) -> Tensor:
        """Adds up the ranks' partial results."""
        return (scatter_first if self.sequence_parallel else sum_over_ranks)(partial, self.tp)


class ColumnLinear(nn.Linear):
    """Its outputs are divided over the tensor ranks."""

    split_dimension = 0

    def __init__(self, inputs: int, outputs: int, tp: Axis) -> None:
        super().__init__(inputs, outputs // tp.size, bias=False)
        self.tp = tp


class RowLinear(nn.Linear):
    """Its inputs are divided over the tensor ranks: the result is a partial sum."""

    split_dimension = 1

    def __init__(self, inputs: int, outputs: int, tp: Axis) -> None:
        super().__init__(inputs // tp.size, outputs, bias=False)
        self.tp = tp


class VocabularyEmbedding(nn.Embedding):
    """Each tensor rank holds a part of the vocabulary and gives zeros for the rest."""

    split_dimension = 0

    def __init__(self, vocabulary: int, hidden: int, tp: Axis) -> None:
        super().__init__(vocabulary // tp.size, hidden)
        self.tp = tp

    def forward(self, tokens: Tensor) -> Tensor:
        if self.tp.size == 1:
            return super().forward(tokens)
        local = tokens - self.tp.rank * self.num_embeddings
        outside = (local < 0) | (local >= self.num_embeddings)
        embedded = super().forward(local.masked_fill(outside, 0))
        return embedded.masked_fill(outside.unsqueeze(-1), 0.0)


class Norm(nn.Module):
    """RMSNorm; under sequence parallelism each tensor rank sees a part of the sequence."""

    partial_gradients = True

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden))

    def forward(self, hidden: Tensor) -> Tensor:
        return functional.rms_norm(hidden, self.weight.shape, self.weight.to(hidden.dtype), 1e-5)


class Router(nn.Linear):
    """Scores of the experts for each token, the same weights on every tensor rank."""

    partial_gradients = True

    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__(hidden, experts, bias=False)


def sum_partial_gradients(modules: Iterable[nn.Module], region: Region) -> None:
    """Once a step, for weights that every tensor rank holds and that saw only its part of the sequence."""
    if not region.sequence_parallel or region.tp.size == 1:
        return
    gradients = [
        local_tensor(parameter.grad)
        for module in modules
        if getattr(module, "partial_gradients", False)
        for parameter in module.parameters(recurse=False)
        if parameter.grad is not None
    ]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=region.tp.group)
    copy_back(flat, gradients)


def copy_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Into the tensors what they were flattened to."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def local_tensor(tensor: Tensor) -> Tensor:
    """What this rank holds of a sharded tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class _Context(Protocol):
    saved_tensors: tuple[Tensor, Tensor, Tensor]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


def mean_cross_entropy(logits: Tensor, targets: Tensor, tp: Axis) -> Tensor:
    """`logits` are (sequence, batch, part of the vocabulary), `targets` (batch, sequence)."""
    flat, wanted = logits.flatten(0, 1).float(), targets.t().flatten()
    if tp.size == 1:
        return functional.cross_entropy(flat, wanted)
    split: Callable[..., Tensor] = _SplitCrossEntropy.apply
    return split(flat, wanted, tp).mean()


class _SplitCrossEntropy(Function):
    @staticmethod
    def forward(ctx: _Context, logits: Tensor, targets: Tensor, tp: Axis) -> Tensor:
        width = logits.shape[-1]
        highest = logits.amax(dim=-1, keepdim=True)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=tp.group)
        shifted = logits - highest
        local = targets - tp.rank * width
        here = (local >= 0) & (local < width)
        column = local.clamp(0, width - 1).unsqueeze(-1)
        wanted = shifted.gather(-1, column).squeeze(-1) * here
        shares = shifted.exp_()
        total = shares.sum(dim=-1)
        both = torch.stack([total, wanted])
        dist.all_reduce(both, group=tp.group)
        shares.div_(both[0].unsqueeze(-1))
        ctx.save_for_backward(shares, column, here)
        return both[0].log() - both[1]

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None, None]:
        shares, column, here = ctx.saved_tensors
        result = shares.clone()
        result.scatter_add_(-1, column, -here.to(shares.dtype).unsqueeze(-1))
        return result.mul_(gradient.unsqueeze(-1)), None, None
