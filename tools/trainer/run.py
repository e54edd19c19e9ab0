"""A whole run on one rank: build, warm up, measure, profile, and on rank 0 write down what all measured.

A step's time is the slowest rank's. Ranks meet after every step to exchange loss and time, outside the
measured time; data is made before it too.
"""

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict

import torch
from torch import distributed as dist

from tools.profile import Capture, CaptureSchedule, capture
from tools.scenario import Plan, Scenario
from tools.trainer.data import batch, rank_sequences
from tools.trainer.layout import make_layout
from tools.trainer.memory import PeakMemory, held_bytes, read_peak, reset_peak
from tools.trainer.process import choose_device, join, rank_facts
from tools.trainer.program import Program, build_program, make_chunks, make_recipe
from tools.trainer.record import (
    TRACES,
    Json,
    Measurements,
    Progress,
    result,
    write_failure,
    write_result,
)
from tools.trainer.settings import RunSettings
from tools.trainer.stages import chunk_specs
from tools.trainer.weights import initialise


def run(scenario: Scenario, plan: Plan, settings: RunSettings) -> None:
    """Joins the other ranks, trains, and leaves result.json."""
    device = choose_device(scenario)
    join(scenario, device)
    try:
        train(scenario, plan, settings, device)
    except Exception as error:
        write_failure(settings.out, error, dist.get_rank())
        raise
    finally:
        dist.destroy_process_group()


def train(scenario: Scenario, plan: Plan, settings: RunSettings, device: torch.device) -> None:
    """With the process group there already; every rank calls it."""
    before = held_bytes(device)
    program = _build(scenario, plan, settings, device)
    measured, memory = _train(program, scenario, settings, before)
    _write(scenario, plan, settings, measured, memory, device)


def _build(scenario: Scenario, plan: Plan, settings: RunSettings, device: torch.device) -> Program:
    layout = make_layout(scenario.model, plan, device)
    recipe = make_recipe(scenario, plan, layout)
    specs = chunk_specs(scenario.model, plan)[layout.pp.rank :: plan.pp]
    chunks = make_chunks(recipe, plan, specs)
    return build_program(
        recipe, plan, chunks, settings.optimizer, lambda chunk: initialise(chunk, settings.seed)
    )


def _train(
    program: Program, scenario: Scenario, settings: RunSettings, before_bytes: int
) -> tuple[Measurements, PeakMemory]:
    device, measured, memory = program.recipe.layout.device, Measurements(), None
    progress = Progress(settings.out) if dist.get_rank() == 0 else None
    with _profiler(settings) as session:
        for step in range(settings.total_steps):
            if step == settings.warmup:
                reset_peak(device)
            step_s, loss = _timed_step(program, scenario, settings.seed, step)
            if not math.isfinite(loss):
                raise FloatingPointError(f"step {step}: the loss is {loss}")
            measured.step_times_s.append(step_s)
            measured.losses.append(loss)
            if progress:
                progress.add(step, settings.phase(step), step_s, loss)
            if step == settings.warmup + settings.steps - 1:
                memory = read_peak(device, before_bytes)
            if session:
                session.step()
    assert memory is not None
    return measured, memory


def _profiler(settings: RunSettings) -> AbstractContextManager[Capture | None]:
    if not settings.profile_steps:
        return nullcontext()
    schedule = CaptureSchedule(settings.warmup + settings.steps, 1, settings.profile_steps)
    return capture(settings.out / TRACES, schedule)


def _timed_step(program: Program, scenario: Scenario, seed: int, step: int) -> tuple[float, float]:
    """(slowest rank's seconds, mean loss over all tokens)."""
    layout, training = program.recipe.layout, scenario.training
    own = rank_sequences(training.global_batch_size, layout.dp_size, layout.dp_rank)
    inputs, targets = batch(scenario.model.vocab_size, training.seq_len, seed, step, own, layout.cp)
    inputs, targets = inputs.to(layout.device), targets.to(layout.device)
    dist.barrier()
    start_s = time.perf_counter()
    loss = program.step(inputs, targets)
    if layout.device.type == "cuda":
        torch.cuda.synchronize()
    own_s = time.perf_counter() - start_s
    # only the last stage has a loss; tensor ranks have the same one
    share = loss.double() / (layout.data_ranks * layout.tp.size)
    facts = torch.stack([torch.tensor(own_s, dtype=torch.float64, device=layout.device), share])
    gathered = [torch.empty_like(facts) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, facts)
    table = torch.stack(gathered)
    return float(table[:, 0].max()), float(table[:, 1].sum())


def _write(
    scenario: Scenario,
    plan: Plan,
    settings: RunSettings,
    measured: Measurements,
    memory: PeakMemory,
    device: torch.device,
) -> None:
    mine = (asdict(rank_facts(device)), asdict(memory))
    everyone: list[tuple[Json, Json]] = [mine] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if dist.get_rank() == 0:
        ranks, memories = zip(*everyone, strict=True)
        write_result(settings.out, result(scenario, plan, settings, measured, ranks, memories))
