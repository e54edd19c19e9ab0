"""The plan's data parallelism around a chunk: DDP, or `fully_shard` as ZeRO-2, ZeRO-3 and hybrid (HSDP)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from testbed.feed_forward import ExpertSet
from testbed.layout import Layout
from testbed.model import Chunk
from testbed.plan import is_sharded
from testbed.tensor_parallel import copy_back
from tools.scenario import Plan

BUCKET_BYTES = 25 * 2**20
"""DDP's own default."""


@dataclass(frozen=True)
class DataParallel:
    """A chunk as data parallelism sees it; `module` is what is called."""

    module: nn.Module
    chunk: Chunk
    layout: Layout
    keeps_gathered: bool

    def micro_batch(self, is_last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of one micro-batch."""
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_all_reduce(is_last)
            self.module.set_reshard_after_backward(is_last or not self.keeps_gathered)
        elif isinstance(self.module, DistributedDataParallel) and not is_last:
            return cast("AbstractContextManager[None]", self.module.no_sync())
        return nullcontext()

    def finish_gradients(self) -> None:
        """Once per step, after the last backward: what neither DDP nor `fully_shard` has averaged."""
        if isinstance(self.module, FSDPModule):
            return
        routed = self.layout.routed
        apart = [p for experts in expert_sets(self.chunk) for p in experts.parameters()] if routed else []
        if routed and apart:
            _average(apart, routed.get_group("replicate"), self.layout.data_ranks)
        if self.layout.data_ranks > 1 and not isinstance(self.module, DistributedDataParallel):
            ours = {id(parameter) for parameter in apart}
            rest = [parameter for parameter in self.chunk.parameters() if id(parameter) not in ours]
            _average(rest, self.layout.dense.get_group("replicate"), self.layout.data_ranks)


def _average(parameters: list[nn.Parameter], group: dist.ProcessGroup, data_ranks: int) -> None:
    """Gradients summed over the group and divided by the ranks that the loss is averaged over."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        if dist.get_world_size(group) > 1:
            dist.all_reduce(flat, group=group)
        copy_back(flat.div_(data_ranks), bucket)


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Few messages without a second copy of all gradients at once."""
    bucket: list[Tensor] = []
    for gradient in gradients:
        bucket.append(gradient)
        if sum(parameter.nbytes for parameter in bucket) >= BUCKET_BYTES:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def shard(chunk: Chunk, layout: Layout, plan: Plan, compute: torch.dtype) -> None:
    """Before the weights exist: `fully_shard` over every layer, the embedding and the head."""
    if not is_sharded(plan):
        return
    lower = compute != torch.float32
    policy = MixedPrecisionPolicy(compute, torch.float32) if lower else MixedPrecisionPolicy()
    reshard = plan.zero_stage >= 3
    if layout.routed is not None:
        for experts in expert_sets(chunk):
            _shard_experts(experts, layout, policy, reshard)
    mesh = _mesh(layout.dense)
    for part in _parts(chunk):
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(chunk, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)


def wrap(chunk: Chunk, layout: Layout, plan: Plan, ddp: bool) -> DataParallel:
    """After the weights exist: DDP where the plan does not shard, unless the caller does without."""
    module: nn.Module = chunk
    # a backward split into inputs and weights does not call DDP's hooks
    splits_backward = plan.pp > 1 and plan.schedule == "zero_bubble"
    if not is_sharded(plan) and layout.data_ranks > 1 and ddp and not splits_backward:
        _leave_experts_to_us(chunk, layout)
        group = layout.dense.get_group("replicate")
        module = DistributedDataParallel(chunk, process_group=group, gradient_as_bucket_view=True)
    return DataParallel(module, chunk, layout, keeps_gathered=plan.zero_stage == 2)


def expert_sets(chunk: nn.Module) -> Iterator[ExpertSet]:
    return (module for module in chunk.modules() if isinstance(module, ExpertSet))


def _parts(chunk: Chunk) -> Iterator[nn.Module | list[nn.Module]]:
    """What is gathered together; tied embedding and head stay with the chunk, which gathers them once."""
    yield from chunk.layers.values()
    tied = chunk.recipe.model.tie_word_embeddings
    if chunk.embedding is not None and not tied:
        yield chunk.embedding
    if chunk.norm is not None and chunk.head is not None and not tied:
        yield [chunk.norm, chunk.head]


def _shard_experts(experts: ExpertSet, layout: Layout, policy: MixedPrecisionPolicy, reshard: bool) -> None:
    assert layout.routed is not None
    module = fully_shard(experts, mesh=_mesh(layout.routed), reshard_after_forward=reshard, mp_policy=policy)
    module.set_gradient_divide_factor(float(layout.data_ranks))
    # gloo has no reduction that multiplies first; a single shard is divided in any case, and would be twice
    module.set_force_sum_reduction_for_comms(layout.routed.size(1) > 1)


def _mesh(both: DeviceMesh) -> DeviceMesh:
    """One dimension where there are no replicas, two for hybrid sharding."""
    return both if both.size(0) > 1 else both["shard"]


def _leave_experts_to_us(chunk: Chunk, layout: Layout) -> None:
    if layout.routed is None:
        return
    owned = {id(p) for experts in expert_sets(chunk) for p in experts.parameters()}
    names = [name for name, parameter in chunk.named_parameters() if id(parameter) in owned]
    ignore: Callable[..., None] = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(chunk, names)
