"""A rank's training program: its chunks built, sharded and filled, and the step they run.

`shard` before the weights exist, `initialise` after, DDP last: no rank ever holds more than its own part.
The dry run builds the same program on tensors without data.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer

from tools.scenario import Plan, Scenario
from tools.trainer.data_parallel import DataParallel, shard, wrap
from tools.trainer.layout import Layout
from tools.trainer.model import Chunk, Recipe
from tools.trainer.pipeline import Schedule, make_schedule, run_schedule
from tools.trainer.stages import ChunkSpec, is_sharded
from tools.trainer.tensor_parallel import sum_partial_gradients

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
        for i, (given, wanted) in enumerate(
            zip(torch.split(inputs, size), torch.split(targets, size), strict=True)
        ):
            with part.micro_batch(is_last=i == last):
                loss: Tensor = part.module(given, wanted)
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
    given = [{"params": parameters} for parameters in groups.values()]
    if name == "sgd":
        return SGD(given, lr=LEARNING_RATES[name])
    return AdamW(given, lr=LEARNING_RATES[name], fused=True)
