"""A context manager around `torch.profiler` with the settings that `asap diagnose` needs: one trace per
rank, and what the profiling itself cost.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from tools.errors import InputError
from tools.trace.classify import load_patterns
from tools.trace.folder import profile_file, write_summary
from tools.trace.record import UnreadableTraceError


@dataclass
class StepTimes:
    """Wall-clock seconds of steps with and without the profiler."""

    plain_s: list[float] = field(default_factory=list)
    profiled_s: list[float] = field(default_factory=list)


class Overhead(msgspec.Struct, frozen=True):
    """Medians of one rank; the ratio is None when either sort of step is missing."""

    plain_step_s: float | None
    profiled_step_s: float | None
    plain_steps: int
    profiled_steps: int
    overhead_ratio: float | None
    """0.1 means that profiled steps took 10% longer."""


def measure_overhead(times: StepTimes) -> Overhead:
    """Medians, because a step may be disturbed by anything."""
    plain_s = median(times.plain_s) if times.plain_s else None
    profiled_s = median(times.profiled_s) if times.profiled_s else None
    ratio = profiled_s / plain_s - 1 if plain_s and profiled_s is not None else None
    return Overhead(plain_s, profiled_s, len(times.plain_s), len(times.profiled_s), ratio)


def write_overhead(times: StepTimes, path: Path) -> None:
    """As JSON beside the summary."""
    path.write_bytes(msgspec.json.encode(measure_overhead(times)))


def read_overhead(path: Path) -> Overhead:
    """What `write_overhead` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Overhead)
    except (OSError, msgspec.DecodeError) as error:
        raise UnreadableTraceError(f"{path.name}: {error}") from error


SUMMARY_FOLDER = "summaries"


@dataclass(frozen=True)
class CaptureSchedule:
    """Which steps are profiled: after `wait` plain ones and `warmup` with the profiler's own start-up."""

    wait: int = 3
    warmup: int = 1
    active: int = 3

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1)):
            if getattr(self, name) < least:
                raise InputError(name, getattr(self, name), f"must be at least {least} steps")

    def is_plain(self, step: int) -> bool:
        """Whether the profiler is off in this step; the very first one is no measure of anything."""
        return 0 < step < self.wait or step >= self.wait + self.warmup + self.active

    def is_active(self, step: int) -> bool:
        first = self.wait + self.warmup
        return first <= step < first + self.active


class Capture:
    """What the training loop holds; only `step` matters to it."""

    def __init__(self, folder: Path, schedule: CaptureSchedule, keep_trace: bool) -> None:
        self.folder = folder
        self.schedule = schedule
        self.trace_path: Path | None = None
        self.times = StepTimes()
        self._keep_trace = keep_trace
        self._profiler: Any = None
        self._rank = 0
        self._step = 0
        self._step_start_s = time.perf_counter()

    def step(self) -> None:
        """Call once at the end of every training step."""
        now_s = time.perf_counter()
        if self.schedule.is_plain(self._step):
            self.times.plain_s.append(now_s - self._step_start_s)
        elif self.schedule.is_active(self._step):
            self.times.profiled_s.append(now_s - self._step_start_s)
        self._step += 1
        self._rank = find_rank()
        self._profiler.step()
        # Exporting happens inside the profiler's step and is no step of the training.
        self._step_start_s = time.perf_counter()

    def start(self, profiler: Any) -> None:  # noqa: ANN401 - torch's types are not imported here
        """Called by `capture`."""
        self._profiler = profiler
        self._step_start_s = time.perf_counter()

    def export(self, profiler: Any) -> None:  # noqa: ANN401 - torch's types are not imported here
        """Called by the profiler when the active steps are over, or the script is: its group may be gone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.trace_path = self.folder / f"rank{self._rank}.json.gz"
        profiler.export_chrome_trace(str(self.trace_path))

    def finish(self) -> None:
        """Writes the summary; a trace that cannot be summarised is kept as it is."""
        if self.trace_path is None:
            return
        summaries = self.folder / SUMMARY_FOLDER
        summaries.mkdir(exist_ok=True)
        name = self.trace_path.name.removesuffix(".json.gz")
        write_overhead(self.times, summaries / f"{name}.overhead.json")
        try:
            profile = profile_file(self.trace_path, load_patterns())
        except UnreadableTraceError:
            return
        write_summary(profile, summaries / f"{name}.summary.json")
        if not self._keep_trace:
            self.trace_path.unlink()


def find_rank() -> int:
    """Of the process group, or 0 where there is none."""
    from torch import distributed

    return int(distributed.get_rank()) if distributed.is_available() and distributed.is_initialized() else 0


@contextmanager
def capture(
    folder: str | Path, schedule: CaptureSchedule | None = None, *, keep_traces: bool = True
) -> Iterator[Capture]:
    """Profiles the steps of the schedule; everything before and after runs unprofiled."""
    from torch import profiler

    chosen = schedule or CaptureSchedule()
    session = Capture(Path(folder), chosen, keep_traces)
    steps = profiler.schedule(wait=chosen.wait, warmup=chosen.warmup, active=chosen.active, repeat=1)
    try:
        with profiler.profile(
            activities=_activities(),
            schedule=steps,
            on_trace_ready=session.export,
            record_shapes=True,
            profile_memory=True,
            with_stack=False,
        ) as running:
            session.start(running)
            yield session
    finally:
        session.finish()  # many a script ends by sys.exit


def _activities() -> list[Any]:
    from torch import cuda, profiler

    known = [profiler.ProfilerActivity.CPU]
    return known + ([profiler.ProfilerActivity.CUDA] if cuda.is_available() else [])
