"""Who talks to whom: the device mesh of a plan, and this rank's place on each axis.

Ranks are ordered tensor → context → data → pipeline, tensor innermost, as in Megatron-Core and in the cost
model; expert ranks are consecutive. The ranks of a stage are laid out twice: as replicas × shards × tensor
for the dense parameters and as replicas × shards × experts for the routed ones.
"""

from dataclasses import dataclass

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tools.scenario import ModelSpec, Plan
from tools.trainer.stages import expert_shards, has_own_expert_mesh, is_sharded


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
