"""Collectives that gradients flow through, over one axis of the layout; with one rank they do nothing.

The pairs are those of Megatron-LM (arXiv 1909.08053, section 3; with sequence parallelism arXiv 2205.05198,
section 4.2.2): what is copied forward is summed backward, what is gathered forward is scattered backward.
The gathered and scattered dimension is the first one, so that no message needs reordering.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from tools.trainer.layout import Axis

_OPERATORS = torch.ops._c10d_functional
"""Functional collectives: selective recomputation can keep what they give."""


class _Context(Protocol):
    axis: Axis
    sent: Sequence[int]
    received: Sequence[int]


def copy_to_ranks(tensor: Tensor, axis: Axis) -> Tensor:
    """The tensor itself; backward sums its gradients over the ranks."""
    return tensor if axis.size == 1 else _apply(_Copy, tensor, axis)


def sum_over_ranks(tensor: Tensor, axis: Axis) -> Tensor:
    """The sum of the ranks' tensors; backward hands every rank the same gradient."""
    return tensor if axis.size == 1 else _apply(_Sum, tensor, axis)


def gather_first(tensor: Tensor, axis: Axis) -> Tensor:
    """The ranks' tensors one after the other; backward sums and scatters."""
    return tensor if axis.size == 1 else _apply(_Gather, tensor, axis)


def scatter_first(tensor: Tensor, axis: Axis) -> Tensor:
    """This rank's part of the sum; backward gathers."""
    return tensor if axis.size == 1 else _apply(_Scatter, tensor, axis)


def exchange_rows(rows: Tensor, axis: Axis, sent: Sequence[int], received: Sequence[int]) -> Tensor:
    """Rows sorted by the rank they go to, `sent[r]` to rank r; gives those that came, in order of rank."""
    return rows if axis.size == 1 else _apply(_Exchange, rows, axis, sent, received)


def _apply(function: type[Function], *arguments: object) -> Tensor:
    call: Callable[..., Tensor] = function.apply
    return call(*arguments)


class _Copy(Function):
    @staticmethod
    def forward(ctx: _Context, tensor: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed(gradient, ctx.axis), None


class _Sum(Function):
    @staticmethod
    def forward(ctx: _Context, tensor: Tensor, axis: Axis) -> Tensor:
        return _summed(tensor, axis)

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Gather(Function):
    @staticmethod
    def forward(ctx: _Context, tensor: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return _gathered(tensor, axis)

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        return _scattered(gradient, ctx.axis), None


class _Scatter(Function):
    @staticmethod
    def forward(ctx: _Context, tensor: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return _scattered(tensor, axis)

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        return _gathered(gradient, ctx.axis), None


class _Exchange(Function):
    @staticmethod
    def forward(
        ctx: _Context, rows: Tensor, axis: Axis, sent: Sequence[int], received: Sequence[int]
    ) -> Tensor:
        ctx.axis, ctx.sent, ctx.received = axis, sent, received
        return _exchanged(rows, axis, sent, received)

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(gradient, ctx.axis, ctx.received, ctx.sent), None, None, None


def _summed(tensor: Tensor, axis: Axis) -> Tensor:
    return _wait(_OPERATORS.all_reduce(tensor.contiguous(), "sum", axis.name))


def _gathered(tensor: Tensor, axis: Axis) -> Tensor:
    return _wait(_OPERATORS.all_gather_into_tensor(tensor.contiguous(), axis.size, axis.name))


def _scattered(tensor: Tensor, axis: Axis) -> Tensor:
    return _wait(_OPERATORS.reduce_scatter_tensor(tensor.contiguous(), "sum", axis.size, axis.name))


def _exchanged(rows: Tensor, axis: Axis, sent: Sequence[int], received: Sequence[int]) -> Tensor:
    return _wait(_OPERATORS.all_to_all_single(rows.contiguous(), list(received), list(sent), axis.name))


def _wait(tensor: Tensor) -> Tensor:
    done: Tensor = _OPERATORS.wait_tensor(tensor)
    return done
