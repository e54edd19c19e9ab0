"""One step of a pipeline, simulated event by event from the cost model's own stage times.

Each stage works through its chunks in the order of the schedule and waits for what its neighbours send:
GPipe (Huang et al., arXiv 1811.06965), 1F1B and interleaved (Narayanan et al., arXiv 2104.04473, section 2.2;
orders as in Megatron-LM's schedules.py), zero bubble (Qi et al., arXiv 2401.10241: weight gradients fill the
gaps, a third of a micro-batch each, as the cost model assumes). What no micro-batch shows, gradients reduced
at the end, optimizer and overhead, follows the last of them. Nothing here adds to a prediction.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.constants import Coefficients
from tools.cost.encode import encode
from tools.cost.inputs import Array, Inputs
from tools.cost.layers import mixing_block, mlp_block
from tools.cost.memory import memory_settings, stage_memory
from tools.cost.predict import resolve_recompute
from tools.cost.stage import StageTime, head_time, layer_time, stage_time
from tools.cost.step import data_exposed, pace_of, sharded_parts, step_breakdown, step_core
from tools.cost.traffic import intra_node_hop_share, pipeline_s
from tools.scenario import Scenario

Kind = Literal["forward", "backward", "weights", "send", "reduce", "optimizer", "other"]
KINDS: tuple[Kind, ...] = ("forward", "backward", "weights", "send", "reduce", "optimizer", "other")
MAX_OPERATIONS = 150_000
"""Beyond, fewer micro-batches are simulated, and the page says so."""
WEIGHTS_SHARE = 1.0 / 3.0


class StageEvent(NamedTuple):
    stage: int
    kind: Kind
    micro_batch: int
    chunk: int
    start_s: float
    end_s: float


class Operation(NamedTuple):
    """A chunk's work on one micro-batch, as a stage's order lists it."""

    kind: Kind
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
    """Of a scenario with a plan."""
    x, keys = encode([scenario])
    settings = memory_settings(keys.framework, [scenario.training.precision])
    x, c = resolve_recompute(x, settings), (calibration or shipped_calibration()).coefficients(keys)
    schedule = scenario.plan.schedule if scenario.plan and scenario.plan.schedule else "1f1b"
    pp, vpp, micro_batches = (round(float(n)) for n in (x.pp, x.vpp, x.micro_batches))
    most = max(MAX_OPERATIONS // (2 * pp * vpp) // pp * pp, 2 * pp)
    simulated = min(micro_batches, most)
    times = _chunk_times(x, c, vpp)
    orders = [_order(schedule, stage, pp, vpp, simulated) for stage in range(pp)]
    pipeline = _Pipeline(times, vpp, schedule == "zero_bubble", float(intra_node_hop_share(x)))
    events = pipeline.run(orders)
    pipeline_s = max(event.end_s for event in events)
    ending = [*_ending(x, c, pp, pipeline_s)]
    makespan_s = max((event.end_s for event in ending), default=pipeline_s)
    held = stage_memory(x, settings)
    memory = [
        _held_bytes(events, stage, *held[0 if stage == 0 else 2 if stage == pp - 1 else 1], vpp)
        for stage in range(pp)
    ]
    return SimulatedStep(
        schedule, micro_batches, simulated, pp, [*events, *ending], pipeline_s, makespan_s, memory
    )


def _chunk_times(x: Inputs, c: Coefficients, vpp: int) -> list[ChunkTime]:
    """By stage; its chunks are alike, as the cost model takes them."""
    lay = x.stages
    layer, head = layer_time(x, c, lay.moe_share), head_time(x, c)
    heads, none = 1.0 + x.prediction_layers, np.zeros(())
    sent_s = pipeline_s(x, c)
    inner = stage_time(x, c, layer, lay.inner, head, np.where(x.pp > 1, none, heads), sent_s)
    last = stage_time(x, c, layer, lay.last, head, heads, sent_s)
    share = WEIGHTS_SHARE if x.zero_bubble > 0 else _forward_share(x, c, layer)
    traffic = sharded_parts(x, c).traffic
    each_s = float(data_exposed(x, c, pace_of(x, step_core(x, c)), traffic).every_micro_batch) / vpp

    def chunk(stage: StageTime) -> ChunkTime:
        work_s = (float(stage.total) - float(stage.pp)) / vpp
        return ChunkTime(work_s * share, work_s * (1.0 - share), float(stage.pp) / vpp / 2.0, each_s)

    return [chunk(inner)] * (round(float(x.pp)) - 1) + [chunk(last if x.pp > 1 else inner)]


def _forward_share(x: Inputs, c: Coefficients, layer: StageTime) -> float:
    """Of a layer's time the forward pass, as of its products and memory-bound work; what is recomputed is
    part of the backward pass."""
    work = mixing_block(x, c)[0] + mlp_block(x, c, x.ffn)
    forward, backward = work.forward + work.forward_elementwise, work.backward + work.backward_elementwise
    again = layer.recompute / np.maximum(layer.compute + layer.elementwise, 1e-12) * (forward + backward)
    return float(forward / (forward + backward + again))


def _order(schedule: str, stage: int, pp: int, vpp: int, micro_batches: int) -> list[Operation]:
    """What a stage does, first to last."""
    forward = [*_rounds("forward", pp, vpp, micro_batches)]
    backward = [*_rounds("backward", pp, vpp, micro_batches)]
    if schedule == "gpipe":
        return [*_whole_chunks("forward", vpp, micro_batches), *_whole_chunks("backward", vpp, micro_batches)]
    if vpp == 1:
        warm_up = min(pp - 1 - stage, micro_batches)
    else:
        warm_up = min(2 * (pp - 1 - stage) + (vpp - 1) * pp, len(forward))
    steady = [operation for pair in zip(forward[warm_up:], backward, strict=False) for operation in pair]
    return [*forward[:warm_up], *steady, *backward[len(forward) - warm_up :]]


def _rounds(kind: Kind, pp: int, vpp: int, micro_batches: int) -> Iterator[Operation]:
    """As many micro-batches as there are stages through each chunk in turn; backward from the last chunk."""
    for start in range(0, micro_batches, pp):
        for place in range(vpp):
            chunk = place if kind == "forward" else vpp - 1 - place
            for micro_batch in range(start, min(start + pp, micro_batches)):
                yield Operation(kind, micro_batch, chunk)


def _whole_chunks(kind: Kind, vpp: int, micro_batches: int) -> Iterator[Operation]:
    for place in range(vpp):
        chunk = place if kind == "forward" else vpp - 1 - place
        for micro_batch in range(micro_batches):
            yield Operation(kind, micro_batch, chunk)


def _most_in_flight(order: list[Operation]) -> int:
    """Chunks whose activations a stage holds at once without deferred weight gradients: with them it holds
    no more (ZB-H1)."""
    held = most = 0
    for operation in order:
        held += 1 if operation.kind == "forward" else -1
        most = max(most, held)
    return most


class _Pipeline:
    """Runs the orders of all stages, each operation as soon as its stage is free and its input is there."""

    def __init__(self, times: list[ChunkTime], vpp: int, splits_backward: bool, intra_node: float) -> None:
        self.times, self.vpp, self.splits_backward = times, vpp, splits_backward
        self.pp = len(times)
        self.waited_for = 1.0 - intra_node
        """Share of a transfer that the next stage waits for."""
        self.ready: dict[tuple[int, Operation], float] = {}
        self.events: list[StageEvent] = []
        self.deferred: list[deque[Operation]] = [deque() for _ in times]
        self.waiting: dict[tuple[int, Operation], int] = {}

    def run(self, orders: list[list[Operation]]) -> list[StageEvent]:
        queues = [deque(order) for order in orders]
        held, most = [0] * self.pp, [_most_in_flight(order) for order in orders]
        free = [(0.0, stage) for stage in range(self.pp)]
        while free:
            now_s, stage = heapq.heappop(free)
            queue = queues[stage]
            needed = self._needed(stage, queue[0]) if queue else None
            ready_s = 0.0 if needed is None else self.ready.get(needed)
            is_full = bool(queue) and queue[0].kind == "forward" and held[stage] >= most[stage]
            if queue and ready_s is not None and ready_s <= now_s and not (is_full and self.deferred[stage]):
                operation = queue.popleft()
                held[stage] += operation.kind == "forward"
                held[stage] -= operation.kind == "backward" and not self.splits_backward
                heapq.heappush(free, (self._work(stage, operation, now_s), stage))
                waiter = self.waiting.pop((stage, operation), None)
                if waiter is not None:
                    heapq.heappush(free, (max(now_s, self.ready[stage, operation]), waiter))
            elif self.deferred[stage]:
                held[stage] -= 1
                heapq.heappush(free, (self._weights(stage, now_s), stage))
            elif queue and ready_s is not None:
                heapq.heappush(free, (ready_s, stage))
            elif queue and needed is not None:
                self.waiting[needed] = stage
        return self.events

    def _needed(self, stage: int, operation: Operation) -> tuple[int, Operation] | None:
        """Whose output an operation takes; None for the first forward of all."""
        kind, micro_batch, chunk = operation
        if kind == "forward":
            if stage > 0:
                return stage - 1, operation
            return (self.pp - 1, Operation(kind, micro_batch, chunk - 1)) if chunk else None
        if stage < self.pp - 1:
            return stage + 1, operation
        if chunk < self.vpp - 1:
            return 0, Operation(kind, micro_batch, chunk + 1)
        return stage, Operation("forward", micro_batch, chunk)

    def _work(self, stage: int, operation: Operation, now_s: float) -> float:
        """Until when the stage is busy; what it made is there for others a little earlier."""
        time = self.times[stage]
        is_forward = operation.kind == "forward"
        whole_s = time.forward_s if is_forward else time.backward_s
        work_s = whole_s / 2.0 if self.splits_backward and not is_forward else whole_s
        done_s = self._add(stage, operation, now_s, work_s)
        end_s = self._add(stage, operation._replace(kind="send"), done_s, time.send_s)
        self.ready[stage, operation] = done_s + time.send_s * self.waited_for
        if is_forward:
            return end_s
        if self.splits_backward:
            self.deferred[stage].append(operation._replace(kind="weights"))
            return end_s
        return self._add(stage, operation._replace(kind="reduce"), end_s, time.reduce_s)

    def _weights(self, stage: int, now_s: float) -> float:
        operation = self.deferred[stage].popleft()
        time = self.times[stage]
        end_s = self._add(stage, operation, now_s, time.backward_s / 2.0)
        return self._add(stage, operation._replace(kind="reduce"), end_s, time.reduce_s)

    def _add(self, stage: int, operation: Operation, start_s: float, seconds: float) -> float:
        if seconds > 0:
            self.events.append(
                StageEvent(
                    stage, operation.kind, operation.micro_batch, operation.chunk, start_s, start_s + seconds
                )
            )
        return start_s + seconds


def _ending(x: Inputs, c: Coefficients, pp: int, start_s: float) -> Iterator[StageEvent]:
    """What follows the last micro-batch on every stage: gradients reduced, optimizer, overhead."""
    step, core = step_breakdown(x, c), step_core(x, c)
    exposed = data_exposed(x, c, pace_of(x, core), sharded_parts(x, c).traffic)
    other_s = float(step.host_and_other - core.stage.host * x.micro_batches)
    parts: list[tuple[Kind, Array | float]] = [
        ("reduce", exposed.end),
        ("optimizer", step.optimizer),
        ("other", other_s),
    ]
    for kind, seconds in parts:
        if float(seconds) > 0:
            end_s = start_s + float(seconds)
            for stage in range(pp):
                yield StageEvent(stage, kind, -1, 0, start_s, end_s)
            start_s = end_s


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
