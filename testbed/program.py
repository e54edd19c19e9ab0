"""A rank's training program: its chunks built, sharded and initialised, the pipeline schedule, and the step.

`shard` before the weights exist, `initialise` after, DDP last.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

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
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer

from testbed.data_parallel import DataParallel, shard, wrap
from testbed.layout import Layout
from testbed.model import Chunk, Recipe
from testbed.plan import ChunkSpec, is_sharded
from testbed.tensor_parallel import sum_partial_gradients
from tools.scenario import Plan, Scenario

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
            output_args=_example_output(chunk, plan.micro_batch_size),
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


def _example_output(chunk: Chunk, micro_batch: int) -> Tensor:
    if chunk.spec.is_last:
        return torch.empty((), device="meta", requires_grad=True)
    return _hidden(chunk.recipe, micro_batch)


def _hidden(recipe: Recipe, micro_batch: int) -> Tensor:
    length = recipe.seq_len // recipe.layout.cp.size
    length //= recipe.layout.tp.size if recipe.sequence_parallel else 1
    shape = (length, micro_batch, recipe.model.hidden_size)
    return torch.empty(shape, dtype=recipe.dtype, device="meta", requires_grad=True)


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LEARNING_RATES = {"adamw": 1e-3, "sgd": 0.5}


def make_recipe(scenario: Scenario, plan: Plan, layout: Layout, *, balanced_routing: bool = False) -> Recipe:
    training = scenario.training
    return Recipe(
        model=scenario.model,
        layout=layout,
        seq_len=training.seq_len,
        sequence_parallel=plan.sequence_parallel and plan.tp > 1,
        recompute=plan.recompute or "none",
        flash=training.flash_attention,
        micro_batches=training.global_batch_size // (plan.dp * plan.micro_batch_size),
        dtype=DTYPES[training.precision],
        balanced_routing=balanced_routing,
    )


@dataclass(frozen=True)
class Program:
    """Everything one rank runs."""

    recipe: Recipe
    plan: Plan
    parts: list[DataParallel]
    schedule: Schedule | None
    optimizer: Optimizer

    @property
    def keeps_gradients(self) -> bool:
        """DDP holds them in its buckets from step to step; what stands in for it holds them too."""
        return self.recipe.layout.data_ranks > 1 and not is_sharded(self.plan)

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One optimizer step over all micro-batches; this rank's mean loss, zero off the last stage."""
        with self._precision():
            loss = self._pipeline(inputs, targets) if self.schedule else self._accumulate(inputs, targets)
        for part in self.parts:
            part.finish_gradients()
            sum_partial_gradients(part.chunk.modules(), self.recipe.region)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self.keeps_gradients)
        return loss

    def _pipeline(self, inputs: Tensor, targets: Tensor) -> Tensor:
        assert self.schedule is not None
        return run_schedule(self.schedule, inputs, targets, self.recipe)

    def _accumulate(self, inputs: Tensor, targets: Tensor) -> Tensor:
        part, total = self.parts[0], torch.zeros((), device=inputs.device)
        size, last = self.plan.micro_batch_size, self.recipe.micro_batches - 1
        for i, (micro_inputs, micro_targets) in enumerate(
            zip(torch.split(inputs, size), torch.split(targets, size), strict=True)
        ):
            with part.micro_batch(is_last=i == last):
                loss: Tensor = part.module(micro_inputs, micro_targets)
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def _precision(self) -> AbstractContextManager[object]:
        """`fully_shard` casts parameters itself; DDP and a single rank compute under autocast."""
        if self.recipe.dtype == torch.float32 or is_sharded(self.plan):
            return nullcontext()
        return torch.autocast(self.recipe.layout.device.type, self.recipe.dtype)


def make_chunks(recipe: Recipe, plan: Plan, specs: Sequence[ChunkSpec]) -> list[Chunk]:
    """This rank's chunks, sharded and without memory yet."""
    with torch.device("meta"):
        chunks = [Chunk(recipe, spec) for spec in specs]
    for chunk in chunks:
        shard(chunk, recipe.layout, plan, recipe.dtype)
    return chunks


def build_program(
    recipe: Recipe,
    plan: Plan,
    chunks: list[Chunk],
    optimizer: str,
    fill: Callable[[Chunk], None],
    *,
    ddp: bool = True,
) -> Program:
    """Gives the chunks memory and `fill`s it. Without `ddp` gradients are averaged after backward instead."""
    for chunk in chunks:
        chunk.to_empty(device=recipe.layout.device)
        chunk.tie()
        fill(chunk)
    parts = [wrap(chunk, recipe.layout, plan, ddp) for chunk in chunks]
    modules = [part.module for part in parts]
    schedule = make_schedule(modules, chunks, recipe, plan) if plan.pp > 1 else None
    return Program(recipe, plan, parts, schedule, make_optimizer(chunks, optimizer))


def make_optimizer(chunks: list[Chunk], name: str) -> Optimizer:
    """One group of parameters a mesh: the fused kernel takes no two meshes at once."""
    groups: dict[object, list[torch.nn.Parameter]] = {}
    for chunk in chunks:
        for parameter in chunk.parameters():
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            groups.setdefault(mesh, []).append(parameter)
    param_groups = [{"params": parameters} for parameters in groups.values()]
    if name == "sgd":
        return SGD(param_groups, lr=LEARNING_RATES[name])
    return AdamW(param_groups, lr=LEARNING_RATES[name], fused=True)
