"""Mean cross-entropy over a vocabulary that tensor ranks divide; logits are never gathered.

After Megatron-LM's vocabulary-parallel loss (arXiv 1909.08053, section 3): the ranks exchange a maximum, a
sum and the target's logit for each token.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd import Function
from torch.nn import functional

from tools.trainer.layout import Axis


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
