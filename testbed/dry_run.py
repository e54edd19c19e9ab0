"""A plan's dry run beside the cost model: few small runs on fake tensors, extrapolated to the whole plan.

Every figure of a rank is linear in its layers of each kind and in its micro-batches.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache

import torch
from torch import distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import InferenceMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from testbed.expected import AXES, Expected, Figures, along, axis_wire_bytes, expected, plus, traffic_of
from testbed.layout import make_layout
from testbed.model import Chunk
from testbed.plan import ChunkSpec, checked_plan, chunk_specs
from testbed.program import Program, Schedule, build_program, make_chunks, make_recipe
from testbed.recorders import FlopRecorder, MemoryRecorder, TrafficRecorder, Watch
from testbed.tensor_parallel import local_tensor
from tools.errors import InputError
from tools.scenario import Plan, Scenario


@dataclass(frozen=True)
class Run:
    """What a rank runs: its chunks, and how many micro-batches."""

    stage: int
    specs: Sequence[ChunkSpec]
    micro_batches: int


def run_rank(scenario: Scenario, plan: Plan, run: Run) -> Figures:
    """The figures of one step of the first rank of a stage, after one step to warm up."""
    with fake_world(plan, run.stage):
        layout = make_layout(scenario.model, plan, torch.device("cpu"))
        recipe = make_recipe(scenario, plan, layout, balanced_routing=True)
        recipe = replace(recipe, micro_batches=run.micro_batches)
        chunks = make_chunks(recipe, plan, run.specs)
        with FakeTensorMode(allow_non_fake_inputs=True), MemoryRecorder() as memory, Watch(memory) as watch:
            program = build_program(recipe, plan, chunks, "adamw", _leave_empty, ddp=False)
            agree_at_once(program.schedule)
            return _measured(program, memory, watch)


@contextmanager
def fake_world(plan: Plan, stage: int) -> Iterator[None]:
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
    gradient_bytes = _GradientBytes(program)
    program.optimizer.register_step_pre_hook(gradient_bytes)
    traffic, flops = TrafficRecorder(recipe.layout), FlopRecorder()
    watch.recorders += [traffic, flops]
    program.step(tokens, tokens)
    return {
        "flops": float(flops.flops),
        "memory.parameters": _bytes(_parameters(program)),
        "memory.gradients": gradient_bytes.max_bytes,
        "memory.optimizer": _bytes(_optimizer_state(program)),
        "memory.peak": float(memory.peak_bytes),
        **traffic.figures(),
    }


class _GradientBytes:
    """A hook before the optimizer's step, when all gradients are there."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.max_bytes = 0.0

    def __call__(self, *arguments: object) -> None:
        gradients = (p.grad for p in _parameters(self._program) if p.grad is not None)
        self.max_bytes = _bytes(gradients)


def _parameters(program: Program) -> Iterator[torch.nn.Parameter]:
    return (parameter for part in program.parts for parameter in part.chunk.parameters())


def _optimizer_state(program: Program) -> Iterator[torch.Tensor]:
    """Without the step counters, one number a parameter."""
    for state in program.optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor) and value.dim() > 0)


def _bytes(tensors: Iterator[torch.Tensor]) -> float:
    return float(sum(local_tensor(tensor).nbytes for tensor in tensors))


def _leave_empty(chunk: Chunk) -> None:
    """Weights need no values here."""


def agree_at_once(schedule: Schedule | None) -> None:
    def warm_up(stages: list[PipelineStage], has_backward: bool, p2p_done: bool) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    if schedule is not None:
        schedule._warmup_p2p = warm_up  # type: ignore[method-assign,assignment]


LAYERS_RUN_WHOLE = 4
"""Up to so many layers a chunk nothing is extrapolated."""


@dataclass(frozen=True)
class Stages:
    """Figures of every stage's first rank, and how they were got."""

    figures: list[Figures]
    stages_run: list[int]
    extrapolated_layers: bool
    extrapolated_micro_batches: bool


RunRank = Callable[[Scenario, Plan, Run], Figures]


def run_stages(scenario: Scenario, plan: Plan, run: RunRank = run_rank, layers_apart: int = 1) -> Stages:
    """What is timed is better known from runs that are more than one layer apart."""
    probe = _Probe(scenario, plan, run, layers_apart)
    return Stages(
        figures=[probe.stage(stage) for stage in range(plan.pp)],
        stages_run=sorted({probe.stand_in(stage) for stage in range(plan.pp)}),
        extrapolated_layers=probe.few_layers,
        extrapolated_micro_batches=len(probe.micro_batches) > 1,
    )


class _Probe:
    def __init__(self, scenario: Scenario, plan: Plan, run: RunRank, layers_apart: int) -> None:
        self.scenario, self.plan, self._run = scenario, plan, run
        self.specs = chunk_specs(scenario.model, plan)
        self.few_layers = max(len(spec.layers) for spec in self.specs) > LAYERS_RUN_WHOLE
        wanted = scenario.training.global_batch_size // (plan.dp * plan.micro_batch_size)
        low, high = _micro_batch_points(plan)
        self.wanted = wanted
        self.micro_batches = (wanted,) if wanted <= high else (low, high)
        # Peak memory grows evenly from the third layer on, on a pipeline's stage from the second.
        first = 2 if plan.pp > 1 else 3
        self.layers = (first, first + layers_apart)
        self._linear = cache(self._few)

    def stage(self, stage: int) -> Figures:
        if self.few_layers:
            return self._from_few_layers(stage)
        return self._at_micro_batches(stage, tuple(self.specs[stage :: self.plan.pp]))

    def stand_in(self, stage: int) -> int:
        """The stage that is run for it: inner stages differ in their layers only."""
        inner = 0 < stage < self.plan.pp - 1
        return self.plan.pp // 2 if inner and self.few_layers else stage

    def _from_few_layers(self, stage: int) -> Figures:
        low, high = self.layers
        own = self.specs[stage :: self.plan.pp]
        counts = Counter(experts for spec in own for experts in spec.layers.values())
        base, steps = self._linear(self.stand_in(stage))
        figures = base
        for kind, step in steps.items():
            figures = plus(
                figures, step, (counts[kind] - low * self.plan.vpp) / ((high - low) * self.plan.vpp)
            )
        return figures

    def _few(self, stage: int) -> tuple[Figures, dict[bool, Figures]]:
        """With `low` layers of each kind in each chunk, and what `high` instead of `low` of a kind adds."""
        low, high = self.layers
        kinds = sorted({experts for spec in self.specs for experts in spec.layers.values()})
        base = self._at_micro_batches(stage, self._chunks(stage, dict.fromkeys(kinds, low)))
        steps = {}
        for kind in kinds:
            more = self._chunks(stage, dict.fromkeys(kinds, low) | {kind: high})
            steps[kind] = plus(self._at_micro_batches(stage, more), base, -1.0)
        return base, steps

    def _chunks(self, stage: int, counts: dict[bool, int]) -> tuple[ChunkSpec, ...]:
        layers = dict(enumerate(kind for kind, count in counts.items() for _ in range(count)))
        last = self.plan.pp * self.plan.vpp - 1
        numbers = range(stage, last + 1, self.plan.pp)
        return tuple(ChunkSpec(layers, number == 0, number == last) for number in numbers)

    def _at_micro_batches(self, stage: int, specs: tuple[ChunkSpec, ...]) -> Figures:
        runs = [Run(stage, specs, count) for count in self.micro_batches]
        points = [self._run(self.scenario, self.plan, run) for run in runs]
        if len(points) == 1:
            return points[0]
        low, high = self.micro_batches[0], self.micro_batches[-1]
        return along(points[0], points[1], (self.wanted - low) / (high - low))


def _micro_batch_points(plan: Plan) -> tuple[int, int]:
    """From where on all is linear: accumulation from the third, a pipeline once its first stage was full and
    ran on. Interleaved schedules take whole rounds of pp."""
    if plan.pp == 1:
        return 3, 4
    return (plan.pp + 1, plan.pp + 2) if plan.vpp == 1 else (2 * plan.pp, 3 * plan.pp)


MAX_RANKS = 1024


@dataclass(frozen=True)
class Compared:
    """One figure of the program and of the cost model; no ratio where the cost model says zero."""

    program: float
    cost_model: float

    @property
    def ratio(self) -> float | None:
        return self.program / self.cost_model if self.cost_model else None

    def as_json(self) -> dict[str, float | None]:
        return {"program": self.program, "cost_model": self.cost_model, "ratio": self.ratio}


@dataclass(frozen=True)
class DryRun:
    """Memory and traffic are of the rank that has most of them, FLOPs of all ranks together."""

    scenario: Scenario
    plan: Plan
    stages: Stages
    flops: Compared
    wire_bytes: dict[str, Compared]
    memory_bytes: dict[str, Compared]
    fullest_stage: int
    took_s: float

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.scenario.id,
            "plan": self.plan.model_dump(mode="json"),
            "world_size": self.scenario.cluster.num_devices,
            "stages_run": self.stages.stages_run,
            "extrapolated_layers": self.stages.extrapolated_layers,
            "extrapolated_micro_batches": self.stages.extrapolated_micro_batches,
            "took_s": self.took_s,
            "flops": self.flops.as_json(),
            "wire_bytes": {axis: figure.as_json() for axis, figure in self.wire_bytes.items()},
            "memory_bytes": {part: figure.as_json() for part, figure in self.memory_bytes.items()},
            "fullest_stage": self.fullest_stage,
            "collectives": [
                {"stage": stage, **asdict(row)}
                for stage in self.stages.stages_run
                for row in traffic_of(self.stages.figures[stage])
            ],
        }


def dry_run(scenario: Scenario) -> DryRun:
    """Runs the plan's program without devices; raises InputError for what the trainer does not run."""
    if scenario.cluster.num_devices > MAX_RANKS:
        allowed = f"a dry run plays at most {MAX_RANKS} ranks"
        raise InputError("cluster.num_devices", scenario.cluster.num_devices, allowed)
    start_s = time.perf_counter()
    cost = expected(scenario)
    plan = checked_plan(scenario, cost.recompute)
    ran = run_stages(scenario, plan)
    return _compared(scenario, plan, ran, cost, time.perf_counter() - start_s)


def _compared(scenario: Scenario, plan: Plan, ran: Stages, cost: Expected, took_s: float) -> DryRun:
    ranks = plan.tp * plan.cp * plan.dp
    fullest = max(range(plan.pp), key=lambda stage: ran.figures[stage]["memory.peak"])
    memory = _memory(ran.figures[fullest])
    return DryRun(
        scenario=scenario,
        plan=plan,
        stages=ran,
        flops=Compared(ranks * sum(figures["flops"] for figures in ran.figures), cost.flops),
        wire_bytes={
            axis: Compared(
                max(axis_wire_bytes(figures, axis) for figures in ran.figures), cost.wire_bytes[axis]
            )
            for axis in AXES
        },
        memory_bytes={part: Compared(memory[part], cost.memory_bytes[part]) for part in memory},
        fullest_stage=fullest,
        took_s=took_s,
    )


def _memory(figures: Figures) -> dict[str, float]:
    state = {part: figures[f"memory.{part}"] for part in ("parameters", "gradients", "optimizer")}
    peak = figures["memory.peak"]
    return {**state, "activations_and_buffers": peak - sum(state.values()), "peak": peak}
