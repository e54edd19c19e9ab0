"""`torch.profiler` as `asap diagnose` needs it: one trace per rank, and the overhead of profiling."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from statistics import median
from typing import Protocol

from asap_client.errors import CaptureError, InputError

log = logging.getLogger("asap.profile")

SUMMARY_FOLDER = "summaries"
SUMMARISERS = "asap_client.summarise"
"""Entry-point group: `summarise(trace, summary) -> bool` writes a summary of a trace, or returns False if the
trace cannot be read. The server's distribution registers one."""
Summariser = Callable[[Path, Path], bool]


class TorchProfiler(Protocol):
    """What is used of `torch.profiler.profile`."""

    def step(self) -> None: ...

    def export_chrome_trace(self, path: str) -> None: ...


@dataclass(frozen=True)
class Overhead:
    """Medians of one rank: single steps may be disturbed by anything. None where there are no such steps."""

    plain_step_s: float | None
    profiled_step_s: float | None
    plain_steps: int
    profiled_steps: int
    overhead_ratio: float | None
    """0.1: profiled steps took 10% longer."""

    @classmethod
    def of_steps(cls, plain_s: Sequence[float], profiled_s: Sequence[float]) -> "Overhead":
        """From wall-clock seconds of steps without and with the profiler."""
        plain, profiled = (median(steps_s) if steps_s else None for steps_s in (plain_s, profiled_s))
        ratio = profiled / plain - 1 if plain and profiled is not None else None
        return cls(plain, profiled, len(plain_s), len(profiled_s), ratio)


def read_overhead(path: Path) -> Overhead:
    """What a capture wrote."""
    try:
        return Overhead(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise CaptureError(f"{path.name}: {error}") from error


@dataclass(frozen=True)
class CaptureSchedule:
    """Which steps are profiled: `active` ones, after `wait` plain steps and `warmup` for the profiler."""

    wait: int = 3
    warmup: int = 1
    active: int = 3

    def __post_init__(self) -> None:
        for name, minimum in (("wait", 0), ("warmup", 0), ("active", 1)):
            if getattr(self, name) < minimum:
                raise InputError(name, getattr(self, name), f"must be at least {minimum} steps")

    @property
    def total(self) -> int:
        return self.wait + self.warmup + self.active

    def is_plain(self, step: int) -> bool:
        """Whether the profiler is off in this step. Not the very first: it compiles and allocates."""
        return 0 < step < self.wait or step >= self.total

    def is_active(self, step: int) -> bool:
        first = self.wait + self.warmup
        return first <= step < first + self.active


class Capture:
    """The training loop calls `step`; the rest is for `capture`."""

    def __init__(self, folder: Path, schedule: CaptureSchedule, keep_trace: bool) -> None:
        self.folder = folder
        self.schedule = schedule
        self.trace_path: Path | None = None
        self._plain_s: list[float] = []
        self._profiled_s: list[float] = []
        self._keep_trace = keep_trace
        self._profiler: TorchProfiler | None = None
        self._rank = 0
        self._step = 0
        self._step_start_s = time.perf_counter()

    def step(self) -> None:
        """Call once at the end of every training step."""
        now_s = time.perf_counter()
        if self.schedule.is_plain(self._step):
            self._plain_s.append(now_s - self._step_start_s)
        elif self.schedule.is_active(self._step):
            self._profiled_s.append(now_s - self._step_start_s)
        self._step += 1
        self._rank = find_rank()
        if self._profiler:
            self._profiler.step()
        # The profiler exports inside its step: that is not time of the training step.
        self._step_start_s = time.perf_counter()

    def start(self, profiler: TorchProfiler) -> None:
        """Called by `capture`."""
        self._profiler = profiler
        self._step_start_s = time.perf_counter()

    def export(self, profiler: TorchProfiler) -> None:
        """Called by the profiler after the active steps, or at the script's end: its group may be gone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.trace_path = self.folder / f"rank{self._rank}.json.gz"
        profiler.export_chrome_trace(str(self.trace_path))

    def finish(self) -> None:
        """Writes the overhead and, if possible, a summary; without a summary the trace is always kept."""
        if self.trace_path is None:
            return
        summaries = self.folder / SUMMARY_FOLDER
        summaries.mkdir(exist_ok=True)
        name = self.trace_path.name.removesuffix(".json.gz")
        overhead = asdict(Overhead.of_steps(self._plain_s, self._profiled_s))
        (summaries / f"{name}.overhead.json").write_text(json.dumps(overhead), encoding="utf-8")
        summarise = find_summariser()
        is_summarised = summarise and summarise(self.trace_path, summaries / f"{name}.summary.json")
        if is_summarised and not self._keep_trace:
            self.trace_path.unlink()


def find_summariser() -> Summariser | None:
    """That of the server's distribution, if it is installed here; else traces are uploaded whole."""
    plugin = next(iter(entry_points(group=SUMMARISERS)), None)
    if plugin is None:
        return None
    try:
        summarise: Summariser = plugin.load()
    except Exception:  # a training repo's own `tools` may shadow the server's
        log.warning("%s cannot be loaded: traces are kept whole", plugin.value, exc_info=True)
        return None
    return summarise


def find_rank() -> int:
    """The rank in the process group, or 0 if there is none."""
    from torch import distributed

    return int(distributed.get_rank()) if distributed.is_available() and distributed.is_initialized() else 0


@contextmanager
def capture(
    folder: str | Path, schedule: CaptureSchedule | None = None, *, keep_traces: bool = True
) -> Iterator[Capture]:
    """Profiles the steps of the schedule; everything before and after runs unprofiled."""
    try:
        from torch import cuda, profiler
    except ImportError as error:
        raise CaptureError(f"profile capture needs PyTorch in this environment ({error})") from error

    chosen = schedule or CaptureSchedule()
    session = Capture(Path(folder), chosen, keep_traces)
    activities = [profiler.ProfilerActivity.CPU]
    activities += [profiler.ProfilerActivity.CUDA] if cuda.is_available() else []
    steps = profiler.schedule(wait=chosen.wait, warmup=chosen.warmup, active=chosen.active, repeat=1)
    try:
        with profiler.profile(
            activities=activities,
            schedule=steps,
            on_trace_ready=session.export,
            record_shapes=True,
            profile_memory=True,
            with_stack=False,
        ) as running:
            session.start(running)
            yield session
    finally:
        session.finish()  # scripts may end with sys.exit
