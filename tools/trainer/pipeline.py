"""Pipeline stages and schedules of torch.distributed.pipelining.

Shapes are stated, not inferred: inference would run the model once and, under data parallelism, send. The
loss is computed by the last chunk and already divided by the number of micro-batches.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle
from torch.distributed.pipelining.stage import _PipelineStageBase

from tools.scenario import Plan
from tools.trainer.model import Chunk, Recipe

Schedule = PipelineScheduleSingle | PipelineScheduleMulti

_ONE_CHUNK: dict[str, type[PipelineScheduleSingle]] = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
_MANY_CHUNKS: dict[str, type[PipelineScheduleMulti]] = {
    "interleaved": ScheduleInterleaved1F1B,
    "gpipe": ScheduleLoopedBFS,
    "zero_bubble": ScheduleInterleavedZeroBubble,
}


def make_schedule(
    modules: Sequence[nn.Module], chunks: Sequence[Chunk], recipe: Recipe, plan: Plan
) -> Schedule:
    """The plan's schedule over this rank's chunks; `modules` are the chunks under data parallelism."""
    layout = recipe.layout
    stages: list[_PipelineStageBase] = [
        PipelineStage(
            module,
            layout.pp.rank + number * layout.pp.size,
            plan.pp * plan.vpp,
            layout.device,
            input_args=_received(chunk, plan.micro_batch_size),
            output_args=_given(chunk, plan.micro_batch_size),
            group=layout.pp.group,
        )
        for number, (module, chunk) in enumerate(zip(modules, chunks, strict=True))
    ]
    if plan.vpp == 1:
        return _ONE_CHUNK[plan.schedule](stages[0], recipe.micro_batches, _loss, scale_grads=False)
    return _MANY_CHUNKS[plan.schedule](stages, recipe.micro_batches, _loss, scale_grads=False)


def run_schedule(schedule: Schedule, inputs: Tensor, targets: Tensor, recipe: Recipe) -> Tensor:
    """One step; the mean loss on the last stage, zero elsewhere."""
    layout = recipe.layout
    losses: list[Tensor] = []
    is_first, is_last = layout.pp.rank == 0, layout.pp.rank == layout.pp.size - 1
    step: Callable[..., object] = schedule.step
    step(
        *((inputs,) if is_first else ()),
        targets=targets,
        target=targets if is_last else None,
        losses=losses if is_last else None,
        return_outputs=False,
    )
    return torch.stack(losses).sum().detach() if is_last else torch.zeros((), device=layout.device)


def _loss(output: Tensor, targets: Tensor) -> Tensor:
    """The last chunk has computed it."""
    return output


def _received(chunk: Chunk, micro_batch: int) -> Tensor:
    recipe = chunk.recipe
    if chunk.spec.is_first:
        length = recipe.seq_len // recipe.layout.cp.size
        return torch.empty(micro_batch, length, dtype=torch.int64, device="meta")
    return _hidden(recipe, micro_batch)


def _given(chunk: Chunk, micro_batch: int) -> Tensor:
    if chunk.spec.is_last:
        return torch.empty((), device="meta", requires_grad=True)
    return _hidden(chunk.recipe, micro_batch)


def _hidden(recipe: Recipe, micro_batch: int) -> Tensor:
    length = recipe.seq_len // recipe.layout.cp.size
    length //= recipe.layout.tp.size if recipe.sequence_parallel else 1
    shape = (length, micro_batch, recipe.model.hidden_size)
    return torch.empty(shape, dtype=recipe.dtype, device="meta", requires_grad=True)
