"""One step of a pipeline, simulated event by event from the cost model's own stage times.

Each stage works through its chunks in the order of the schedule and waits for what its neighbours send:
GPipe (Huang et al., arXiv 1811.06965), 1F1B and interleaved (Narayanan et al., arXiv 2104.04473, section 2.2;
orders as in Megatron-LM's schedules.py), zero bubble (Qi et al., arXiv 2401.10241: weight gradients fill the
gaps, a third of a micro-batch each, as the cost model assumes). What no micro-batch shows, gradients reduced
at the end, optimizer and overhead, follows the last of them. Nothing here adds to a prediction.
"""

import heapq
from collections import deque
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple, get_args

import numpy as np

from tools.model.calibration import Calibration, shipped_calibration
from tools.model.constants import memory_settings
from tools.model.predict import resolve_recompute
from tools.physics.encode import encode
from tools.physics.inputs import Coefficients, Inputs
from tools.physics.layers import mixing_block, mlp_block
from tools.physics.memory import stage_memory
from tools.physics.stage import StageTime, head_time, layer_time, stage_time
from tools.physics.step import data_exposed, pace_of, sharded_parts, step_core, step_terms
from tools.physics.traffic import intra_node_hop_share, pipeline_s
from tools.scenario import Scenario

WorkKind = Literal["forward", "backward", "weights", "send", "reduce", "optimizer", "other"]
KINDS: tuple[WorkKind, ...] = get_args(WorkKind)
MAX_OPERATIONS = 150_000
"""Beyond, fewer micro-batches are simulated, and the page says so."""
WEIGHTS_SHARE = 1.0 / 3.0


class StageEvent(NamedTuple):
    stage: int
    kind: WorkKind
    micro_batch: int
    chunk: int
    start_s: float
    end_s: float


class ChunkWork(NamedTuple):
    """A chunk's work on one micro-batch, as a stage's order lists it."""

    kind: WorkKind
    micro_batch: int
    chunk: int


@dataclass(frozen=True)
class ChunkTime:
    """Seconds of one chunk on one stage for one micro-batch; what is sent keeps the stage busy."""

    forward_s: float
    backward_s: float
    send_s: float
    """After each of the two."""
    reduce_s: float
    """ZeRO-2's and -3's traffic that a micro-batch shows; no stage waits for it."""


@dataclass(frozen=True)
class SimulatedStep:
    """What every stage does when, and the memory that it holds meanwhile."""

    schedule: str
    micro_batches: int
    simulated_micro_batches: int
    stages: int
    events: list[StageEvent]
    pipeline_s: float
    """Until the last stage has done its last micro-batch."""
    makespan_s: float
    held_bytes: list[list[tuple[float, float]]]
    """Per stage, from when on it holds how much."""

    @cached_property
    def busy_ratio(self) -> list[float]:
        """Share of the pipeline's time in which each stage works."""
        busy = [0.0] * self.stages
        for event in self.events:
            if event.start_s < self.pipeline_s:
                busy[event.stage] += event.end_s - event.start_s
        return [seconds / self.pipeline_s for seconds in busy]

    @property
    def peak_bytes(self) -> list[float]:
        return [max(held for _, held in steps) for steps in self.held_bytes]


def simulate(scenario: Scenario, calibration: Calibration | None = None) -> SimulatedStep:
    """The scenario must have a plan."""
    x, keys = encode([scenario])
    settings = memory_settings(keys.framework, [scenario.training.precision])
    calibration = calibration or shipped_calibration()
    x, c = resolve_recompute(x, settings), calibration.coefficients(keys)
    factor = float(calibration.factor(x, keys)[0])
    schedule = scenario.plan.schedule if scenario.plan and scenario.plan.schedule else "1f1b"
    pp, vpp, micro_batches = (round(float(n)) for n in (x.pp, x.vpp, x.micro_batches))
    most = max(MAX_OPERATIONS // (2 * pp * vpp) // pp * pp, 2 * pp)
    simulated = min(micro_batches, most)
    core = step_core(x, c)
    exposed = data_exposed(x, c, pace_of(x, core), sharded_parts(x, c).traffic)
    times = [
        ChunkTime(*(factor * seconds for seconds in astuple(time)))
        for time in _chunk_times(x, c, vpp, float(exposed.every_micro_batch) / vpp)
    ]
    orders = [_order(schedule, stage, pp, vpp, simulated) for stage in range(pp)]
    events = _Pipeline(times, vpp, schedule == "zero_bubble", float(intra_node_hop_share(x))).run(orders)
    pipeline_s = makespan_s = max(event.end_s for event in events)
    # what follows the last micro-batch on every stage: gradients reduced, optimizer, overhead
    step, ending = step_terms(x, c), []
    parts: list[tuple[WorkKind, float]] = [
        ("reduce", float(exposed.end)),
        ("optimizer", float(step.optimizer)),
        ("other", float(step.host_and_other - core.stage.host * x.micro_batches)),
    ]
    for kind, seconds in parts:
        if seconds > 0:
            start_s, makespan_s = makespan_s, makespan_s + factor * seconds
            ending += [StageEvent(stage, kind, -1, 0, start_s, makespan_s) for stage in range(pp)]
    first, between, last = stage_memory(x, settings)
    held = [first, *[between] * (pp - 2), last][:pp]
    memory = [_held_bytes(events, stage, *held[stage], vpp) for stage in range(pp)]
    return SimulatedStep(
        schedule, micro_batches, simulated, pp, [*events, *ending], pipeline_s, makespan_s, memory
    )


def _chunk_times(x: Inputs, c: Coefficients, vpp: int, reduce_s: float) -> list[ChunkTime]:
    """By stage; its chunks are alike, as the cost model takes them."""
    lay = x.stages
    layer, head = layer_time(x, c, lay.moe_share), head_time(x, c)
    heads, none = 1.0 + x.prediction_heads, np.zeros(())
    sent_s = pipeline_s(x, c)
    inner = stage_time(x, c, layer, lay.inner, head, np.where(x.pp > 1, none, heads), sent_s)
    last = stage_time(x, c, layer, lay.last, head, heads, sent_s)
    share = WEIGHTS_SHARE
    if not x.has_schedule("zero_bubble"):
        # the forward pass, as of a layer's products and memory-bound work; backward has what is recomputed
        work = mixing_block(x, c)[0] + mlp_block(x, c, x.ffn, x.wide_mlp)
        forward, backward = work.forward + work.forward_elementwise, work.backward + work.backward_elementwise
        again = layer.recompute / np.maximum(layer.compute + layer.elementwise, 1e-12) * (forward + backward)
        share = float(forward / (forward + backward + again))

    def chunk(stage: StageTime) -> ChunkTime:
        work_s = (float(stage.total) - float(stage.pp)) / vpp
        return ChunkTime(work_s * share, work_s * (1.0 - share), float(stage.pp) / vpp / 2.0, reduce_s)

    return [chunk(inner)] * (round(float(x.pp)) - 1) + [chunk(last if x.pp > 1 else inner)]


def _order(schedule: str, stage: int, pp: int, vpp: int, micro_batches: int) -> list[ChunkWork]:
    """What a stage does, first to last. In each round as many micro-batches as there are stages (all of them
    under GPipe) go through each chunk in turn; backward from the last chunk."""

    def rounds(kind: WorkKind) -> list[ChunkWork]:
        size = micro_batches if schedule == "gpipe" else pp
        chunks = range(vpp) if kind == "forward" else range(vpp - 1, -1, -1)
        return [
            ChunkWork(kind, micro_batch, chunk)
            for start in range(0, micro_batches, size)
            for chunk in chunks
            for micro_batch in range(start, min(start + size, micro_batches))
        ]

    forward, backward = rounds("forward"), rounds("backward")
    if schedule == "gpipe":
        return [*forward, *backward]
    if vpp == 1:
        warm_up = min(pp - 1 - stage, micro_batches)
    else:
        warm_up = min(2 * (pp - 1 - stage) + (vpp - 1) * pp, len(forward))
    steady = [work for pair in zip(forward[warm_up:], backward, strict=False) for work in pair]
    return [*forward[:warm_up], *steady, *backward[len(forward) - warm_up :]]


class _Pipeline:
    """Runs the orders of all stages, each operation as soon as its stage is free and its input is there."""

    def __init__(self, times: list[ChunkTime], vpp: int, splits_backward: bool, intra_node: float) -> None:
        self.times, self.vpp, self.splits_backward = times, vpp, splits_backward
        self.pp = len(times)
        self.waited_for = 1.0 - intra_node
        """Share of a transfer that the next stage waits for."""
        self.ready: dict[tuple[int, ChunkWork], float] = {}
        self.events: list[StageEvent] = []
        self.deferred: list[deque[ChunkWork]] = [deque() for _ in times]
        self.waiting: dict[tuple[int, ChunkWork], int] = {}

    def run(self, orders: list[list[ChunkWork]]) -> list[StageEvent]:
        queues = [deque(order) for order in orders]
        # A stage holds the activations of no more chunks than without deferred weight gradients (ZB-H1).
        moves = ([1 if work.kind == "forward" else -1 for work in order] for order in orders)
        held, most = [0] * self.pp, [max(accumulate(move), default=0) for move in moves]
        free = [(0.0, stage) for stage in range(self.pp)]
        while free:
            now_s, stage = heapq.heappop(free)
            queue = queues[stage]
            needed = self._needed(stage, queue[0]) if queue else None
            ready_s = 0.0 if needed is None else self.ready.get(needed)
            is_full = bool(queue) and queue[0].kind == "forward" and held[stage] >= most[stage]
            if queue and ready_s is not None and ready_s <= now_s and not (is_full and self.deferred[stage]):
                work = queue.popleft()
                held[stage] += work.kind == "forward"
                held[stage] -= work.kind == "backward" and not self.splits_backward
                heapq.heappush(free, (self._work(stage, work, now_s), stage))
                waiter = self.waiting.pop((stage, work), None)
                if waiter is not None:
                    heapq.heappush(free, (max(now_s, self.ready[stage, work]), waiter))
            elif self.deferred[stage]:
                held[stage] -= 1
                work, time = self.deferred[stage].popleft(), self.times[stage]
                end_s = self._add(stage, work, now_s, time.backward_s / 2.0)
                end_s = self._add(stage, work._replace(kind="reduce"), end_s, time.reduce_s)
                heapq.heappush(free, (end_s, stage))
            elif queue and ready_s is not None:
                heapq.heappush(free, (ready_s, stage))
            elif queue and needed is not None:
                self.waiting[needed] = stage
        return self.events

    def _needed(self, stage: int, work: ChunkWork) -> tuple[int, ChunkWork] | None:
        """Whose output an operation takes; None for the first forward of all."""
        kind, micro_batch, chunk = work
        if kind == "forward":
            if stage > 0:
                return stage - 1, work
            return (self.pp - 1, ChunkWork(kind, micro_batch, chunk - 1)) if chunk else None
        if stage < self.pp - 1:
            return stage + 1, work
        if chunk < self.vpp - 1:
            return 0, ChunkWork(kind, micro_batch, chunk + 1)
        return stage, ChunkWork("forward", micro_batch, chunk)

    def _work(self, stage: int, work: ChunkWork, now_s: float) -> float:
        """Until when the stage is busy; what it made is there for others a little earlier."""
        time = self.times[stage]
        is_forward = work.kind == "forward"
        whole_s = time.forward_s if is_forward else time.backward_s
        work_s = whole_s / 2.0 if self.splits_backward and not is_forward else whole_s
        done_s = self._add(stage, work, now_s, work_s)
        end_s = self._add(stage, work._replace(kind="send"), done_s, time.send_s)
        self.ready[stage, work] = done_s + time.send_s * self.waited_for
        if is_forward:
            return end_s
        if self.splits_backward:
            self.deferred[stage].append(work._replace(kind="weights"))
            return end_s
        return self._add(stage, work._replace(kind="reduce"), end_s, time.reduce_s)

    def _add(self, stage: int, work: ChunkWork, start_s: float, seconds: float) -> float:
        if seconds > 0:
            self.events.append(StageEvent(stage, *work, start_s, start_s + seconds))
        return start_s + seconds


def _held_bytes(
    events: list[StageEvent], stage: int, fixed_bytes: float, kept_bytes: float, vpp: int
) -> list[tuple[float, float]]:
    """What a stage holds: its state, and the activations of each chunk from forward until no gradient needs
    them."""
    own = [event for event in events if event.stage == stage]
    releases = "weights" if any(event.kind == "weights" for event in own) else "backward"
    moves = [(event.start_s, kept_bytes / vpp) for event in own if event.kind == "forward"]
    moves += [(event.end_s, -kept_bytes / vpp) for event in own if event.kind == releases]
    held, steps = fixed_bytes, [(0.0, fixed_bytes)]
    for at_s, change in sorted(moves):
        held += change
        steps.append((at_s, held))
    return steps
