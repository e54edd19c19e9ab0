"""A whole run on one rank: join, build, warm up, measure, profile; rank 0 records the result.

A step's time is the slowest rank's.
"""

import math
import platform
import resource
import socket
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import HashStore

from asap_client.capture import Capture, CaptureSchedule, capture
from testbed.layout import make_layout
from testbed.plan import chunk_specs
from testbed.program import Program, build_program, make_chunks, make_recipe
from testbed.record import (
    TRACES,
    JsonObject,
    Measurements,
    Progress,
    RunSettings,
    result,
    write_failure,
    write_result,
)
from testbed.weights import batch, initialise, rank_sequences
from tools.errors import InputError
from tools.hardware import get_device
from tools.scenario import Plan, Scenario

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""Linux, Documentation/filesystems/proc.rst: writing 5 to clear_refs resets the peak resident set."""


@dataclass(frozen=True)
class PeakMemory:
    peak_bytes: int
    before_model_bytes: int
    method: str


def allocated_bytes(device: torch.device) -> int:
    """What the process (CPU) or the allocator (GPU) holds now."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return _status_bytes("VmRSS") or _largest_ever_bytes()


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return


def read_peak(device: torch.device, before_model_bytes: int) -> PeakMemory:
    if device.type == "cuda":
        peak = int(torch.cuda.max_memory_allocated(device))
        return PeakMemory(peak, before_model_bytes, "torch.cuda.max_memory_allocated")
    peak = _status_bytes("VmHWM")
    if peak:
        method = "VmHWM of the process, reset before the measured steps where the kernel lets it"
        return PeakMemory(peak, before_model_bytes, method)
    return PeakMemory(_largest_ever_bytes(), before_model_bytes, "getrusage ru_maxrss since the start")


def _status_bytes(name: str) -> int:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def _largest_ever_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass(frozen=True)
class RankFacts:
    """What a comparison of two runs must know of each rank."""

    host: str
    device: str
    python: str
    torch: str
    backend: str


def choose_device(scenario: Scenario) -> torch.device:
    """From the scenario, not from what is present: a plan for GPUs must not be timed on a CPU by mistake."""
    name, precision = scenario.cluster.device, scenario.training.precision
    if get_device(name).vendor == "cpu":
        if precision != "fp32":
            raise InputError("training.precision", precision, "on a CPU the trainer runs fp32 only")
        torch.set_num_threads(1)
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError("cluster.device", name, "this machine has no GPU that PyTorch can use; give cpu")
    device = torch.device("cuda", dist.get_node_local_rank(fallback_rank=0))
    torch.cuda.set_device(device)
    return device


def join(scenario: Scenario, device: torch.device) -> None:
    """The process group of torchrun, or of this process alone for one device."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    if scenario.cluster.num_devices == 1 and not dist.is_torchelastic_launched():
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    else:
        _join_others(backend, scenario.cluster.num_devices)
    world, wanted = dist.get_world_size(), scenario.cluster.num_devices
    if world != wanted:
        dist.destroy_process_group()
        raise InputError("cluster.num_devices", wanted, f"{world} ranks were started; start as many ranks")


def _join_others(backend: str, wanted: int) -> None:
    try:
        dist.init_process_group(backend)
    except ValueError as error:  # the variables that torchrun sets are not there
        allowed = f"start as many ranks with torchrun ({error})"
        raise InputError("cluster.num_devices", wanted, allowed) from None


def rank_facts(device: torch.device) -> RankFacts:
    on_gpu = device.type == "cuda"
    return RankFacts(
        host=socket.gethostname(),
        device=torch.cuda.get_device_name(device) if on_gpu else _processor(),
        python=platform.python_version(),
        torch=torch.__version__,
        backend=dist.get_backend(),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


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
    before = allocated_bytes(device)
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
    everyone: list[tuple[JsonObject, JsonObject]] = [mine] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if dist.get_rank() == 0:
        ranks, memories = zip(*everyone, strict=True)
        write_result(settings.out, result(scenario, plan, settings, measured, ranks, memories))
