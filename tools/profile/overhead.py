"""What profiling costs: plain steps beside profiled ones of the same run."""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec

from tools.trace.errors import UnreadableTraceError


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
