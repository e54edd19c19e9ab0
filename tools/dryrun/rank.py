"""One rank's step without devices: the reference program on tensors that have shapes only.

The pipeline's start-up vote is answered here, since no other rank is there to vote; DDP's reducer is C++
that wants memory, so that the trainer's own averaging stands in for it, with the same bytes in the same
buckets.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import InferenceMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from tools.dryrun.figures import Figures
from tools.dryrun.flops import FlopRecorder
from tools.dryrun.memory import MemoryRecorder
from tools.dryrun.traffic import TrafficRecorder
from tools.dryrun.watching import Watch
from tools.scenario import Plan, Scenario
from tools.trainer.layout import make_layout
from tools.trainer.model import Chunk
from tools.trainer.pipeline import Schedule
from tools.trainer.program import Program, build_program, make_chunks, make_recipe
from tools.trainer.stages import ChunkSpec
from tools.trainer.tensor_parallel import local_tensor


@dataclass(frozen=True)
class Run:
    """What a rank runs: its chunks, and how many micro-batches."""

    stage: int
    specs: Sequence[ChunkSpec]
    micro_batches: int


def run_rank(scenario: Scenario, plan: Plan, run: Run) -> Figures:
    """The figures of one step of the first rank of a stage, after one step to warm up."""
    with _world(plan, run.stage):
        layout = make_layout(scenario.model, plan, torch.device("cpu"))
        recipe = make_recipe(scenario, plan, layout, balanced_routing=True)
        recipe = replace(recipe, micro_batches=run.micro_batches)
        chunks = make_chunks(recipe, plan, run.specs)
        with FakeTensorMode(allow_non_fake_inputs=True), MemoryRecorder() as memory, Watch(memory) as watch:
            program = build_program(recipe, plan, chunks, "adamw", _leave_empty, ddp=False)
            _agree_at_once(program.schedule)
            return _measured(program, memory, watch)


@contextmanager
def _world(plan: Plan, stage: int) -> Iterator[None]:
    """A process group in which this process is the first rank of the stage and sends to nobody."""
    ranks = plan.tp * plan.cp * plan.dp
    dist.init_process_group("fake", store=FakeStore(), rank=stage * ranks, world_size=ranks * plan.pp)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _measured(program: Program, memory: MemoryRecorder, watch: Watch) -> Figures:
    recipe, plan = program.recipe, program.plan
    shape = (recipe.micro_batches * plan.micro_batch_size, recipe.seq_len // plan.cp)
    tokens = torch.zeros(shape, dtype=torch.int64)
    program.step(tokens, tokens)
    memory.restart_peak()
    held = _GradientBytes(program)
    program.optimizer.register_step_pre_hook(held)
    traffic, flops = TrafficRecorder(recipe.layout), FlopRecorder()
    watch.recorders += [traffic, flops]
    program.step(tokens, tokens)
    return {
        "flops": float(flops.flops),
        "memory.parameters": _bytes(_parameters(program)),
        "memory.gradients": held.most_bytes,
        "memory.optimizer": _bytes(_optimizer_state(program)),
        "memory.peak": float(memory.peak_bytes),
        **traffic.figures(),
    }


class _GradientBytes:
    """A hook before the optimizer's step, when all gradients are there."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.most_bytes = 0.0

    def __call__(self, *arguments: object) -> None:
        gradients = (p.grad for p in _parameters(self._program) if p.grad is not None)
        self.most_bytes = _bytes(gradients)


def _parameters(program: Program) -> Iterator[torch.nn.Parameter]:
    return (parameter for part in program.parts for parameter in part.chunk.parameters())


def _optimizer_state(program: Program) -> Iterator[torch.Tensor]:
    """Without the step counters, one number a parameter."""
    for state in program.optimizer.state.values():
        yield from (one for one in state.values() if isinstance(one, torch.Tensor) and one.dim() > 0)


def _bytes(tensors: Iterator[torch.Tensor]) -> float:
    return float(sum(local_tensor(tensor).nbytes for tensor in tensors))


def _leave_empty(chunk: Chunk) -> None:
    """Weights need no values here."""


def _agree_at_once(schedule: Schedule | None) -> None:
    def warm_up(stages: list[PipelineStage], has_backward: bool, p2p_done: bool) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    if schedule is not None:
        schedule._warmup_p2p = warm_up  # type: ignore[method-assign,assignment]
