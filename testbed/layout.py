"""The device mesh of a plan, this rank's place on each axis, and differentiable collectives over an axis.

Ranks are ordered tensor, context, data, pipeline, tensor innermost. Collective pairs follow Megatron-LM
(arXiv 1909.08053, section 3; sequence parallelism arXiv 2205.05198, section 4.2.2).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from testbed.plan import expert_shards, has_own_expert_mesh, is_sharded
from tools.scenario import ModelSpec, Plan


@dataclass(frozen=True)
class Axis:
    """One degree of a plan as this rank sees it; a single rank needs no group."""

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None

    @property
    def name(self) -> str:
        """Of the group, as functional collectives want it."""
        return self.group.group_name if self.group else ""


@dataclass(frozen=True)
class Layout:
    """This rank's place, and the meshes over which data parallelism shards."""

    device: torch.device
    tp: Axis
    cp: Axis
    ep: Axis
    pp: Axis
    dp_size: int
    dp_rank: int
    dense: DeviceMesh
    """Replicas × shards of what every tensor rank holds."""
    routed: DeviceMesh | None
    """Replicas × shards of the experts; None where experts are sharded like the rest."""

    @property
    def data_ranks(self) -> int:
        """Ranks over which the loss is averaged."""
        return self.dp_size * self.cp.size


def make_layout(model: ModelSpec, plan: Plan, device: torch.device) -> Layout:
    """Makes every process group of the plan: all ranks must call it."""
    data_ranks, shards = plan.dp * plan.cp, plan.dp_shard if is_sharded(plan) else 1
    mesh = _mesh(device, plan.pp, data_ranks // shards, shards, plan.tp, "tensor")
    context = init_device_mesh(
        device.type,
        (plan.pp, plan.dp, plan.cp, plan.tp),
        mesh_dim_names=("stage", "data", "context", "inner"),
    )
    routed = _routed_mesh(model, plan, device)
    return Layout(
        device=device,
        tp=_axis(mesh, "tensor"),
        cp=_axis(context, "context"),
        ep=_axis(routed, "expert") if routed else Axis(),
        pp=_axis(mesh, "stage"),
        dp_size=plan.dp,
        dp_rank=context.get_local_rank("data"),
        dense=mesh["replicate", "shard"],
        routed=routed["replicate", "shard"] if routed else None,
    )


def _routed_mesh(model: ModelSpec, plan: Plan, device: torch.device) -> DeviceMesh | None:
    if not has_own_expert_mesh(model, plan):
        return None
    copies, shards = plan.dp * plan.cp * plan.tp // plan.ep, expert_shards(plan)
    return _mesh(device, plan.pp, copies // shards, shards, plan.ep, "expert")


def _mesh(
    device: torch.device, stages: int, replicas: int, shards: int, inner: int, inner_name: str
) -> DeviceMesh:
    names = ("stage", "replicate", "shard", inner_name)
    return init_device_mesh(device.type, (stages, replicas, shards, inner), mesh_dim_names=names)


def _axis(mesh: DeviceMesh, name: str) -> Axis:
    group = mesh.get_group(name)
    size = dist.get_world_size(group)
    return Axis(size, mesh.get_local_rank(name), group if size > 1 else None)


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
