"""One rank of the real plan on one device, the others faked: step and memory before the cluster is free.

Real tensors and kernels; collectives return at once (PyTorch's fake process group). The first, a middle and
the last stage are run with few layers and extrapolated. The cost model adds what one device does not show:
messages that nothing hides, and the pipeline's bubble as a share of the work that was measured.
"""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from testbed.dry_run import Run, agree_at_once, fake_world, run_stages
from testbed.expected import Figures, expected
from testbed.layout import make_layout
from testbed.plan import checked_plan
from testbed.program import build_program, make_chunks, make_recipe
from testbed.run import allocated_bytes, choose_device, read_peak, reset_peak
from testbed.weights import initialise
from tools.model.calibration import Calibration
from tools.model.predict import predict
from tools.physics.memory import GIB
from tools.scenario import Plan, Scenario

WARMUP, STEPS = 2, 7
LAYERS_APART = 3
WORK = ("compute", "recompute", "memory_bound_ops", "optimizer", "host_and_other")
"""Terms of the step that one device shows; the others are messages and the pipeline's bubble."""


@dataclass(frozen=True)
class OneRank:
    """Seconds of a step, and memory of the fullest stage's rank as its device counts it."""

    plan: Plan
    step_time_s: float
    rank_s: float
    """Measured: the work of the slowest stage's rank, without messages."""
    bubble_s: float
    messages_s: float
    peak_memory_gib: float
    stages_run: list[int]
    extrapolated: bool
    predicted_s: float
    """By the cost model alone."""
    took_s: float


def measure_rank(scenario: Scenario, calibration: Calibration | None = None) -> OneRank:
    """Raises InputError for what the trainer does not run."""
    start_s = time.perf_counter()
    plan = checked_plan(scenario, expected(scenario).recompute)
    ran = run_stages(scenario, plan, _in_new_process, LAYERS_APART)
    predicted = predict([scenario.model_copy(update={"plan": plan})], calibration)[0]
    terms = dict(predicted.breakdown_s)
    bubble, work_s = terms.pop("pipeline_bubble"), sum(terms[name] for name in WORK)
    rank_s = max(figures["seconds"] for figures in ran.figures)
    messages_s, bubble_s = sum(terms.values()) - work_s, rank_s * bubble / work_s
    return OneRank(
        plan=plan,
        step_time_s=rank_s + bubble_s + messages_s,
        rank_s=rank_s,
        bubble_s=bubble_s,
        messages_s=messages_s,
        peak_memory_gib=max(figures["peak_bytes"] for figures in ran.figures) / GIB,
        stages_run=ran.stages_run,
        extrapolated=ran.extrapolated_layers or ran.extrapolated_micro_batches,
        predicted_s=predicted.step_time_s,
        took_s=time.perf_counter() - start_s,
    )


def _in_new_process(scenario: Scenario, plan: Plan, run: Run) -> Figures:
    """So that the memory of one run is not that of those before it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(_figures, scenario, plan, run).result()


def _reduced_at_once(state: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The fake group's own reduction returns nothing, which DDP does not take."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _figures(scenario: Scenario, plan: Plan, run: Run) -> Figures:
    device = choose_device(scenario)
    with fake_world(plan, run.stage):
        before_bytes = allocated_bytes(device)
        layout = make_layout(scenario.model, plan, device)
        # Nobody sends tokens back: experts are chosen evenly.
        recipe = make_recipe(scenario, plan, layout, balanced_routing=True)
        recipe = replace(recipe, micro_batches=run.micro_batches)
        chunks = make_chunks(recipe, plan, run.specs)
        program = build_program(recipe, plan, chunks, "adamw", lambda chunk: initialise(chunk, 0))
        for part in program.parts:
            if isinstance(part.module, DistributedDataParallel):
                part.module.register_comm_hook(None, _reduced_at_once)
        agree_at_once(program.schedule)
        shape = (recipe.micro_batches * plan.micro_batch_size, recipe.seq_len // plan.cp)
        tokens = torch.randint(scenario.model.vocab_size, shape, device=device)
        seconds = []
        for step in range(WARMUP + STEPS):
            if step == WARMUP:
                reset_peak(device)
            start_s = time.perf_counter()
            program.step(tokens, tokens)
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start_s)
        peak = read_peak(device, before_bytes)
    base_bytes = before_bytes if device.type == "cpu" else 0  # of a process only what the model added
    return {"seconds": median(seconds[WARMUP:]), "peak_bytes": float(peak.peak_bytes - base_bytes)}
