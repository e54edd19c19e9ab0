"""Predicted peaks of memory as a log would show them: of the rank that was read, and of what was counted."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tools.model.calibration import Calibration, shipped_calibration
from tools.model.predict import resolve_recompute
from tools.model.runs import Measured
from tools.physics.arithmetic import where
from tools.physics.encode import encode
from tools.physics.inputs import Array
from tools.physics.memory import GIB, MemoryKind, Stage, read_bytes
from tools.scenario import Scenario

FIRST_RANK = re.compile(r"rank 0\b")


class PeakReading(NamedTuple):
    """A peak that was measured."""

    gib: float
    kind: MemoryKind
    stage: Stage


def peak_reading(measured: Measured) -> PeakReading | None:
    """The peak of the whole job where there is one, else of one stage; None: nothing was read. Without a
    kind it is what the allocator held, as most programs print it."""
    kind: MemoryKind = measured.peak_memory_kind or "reserved"
    if measured.peak_memory_gib is not None:
        is_first = FIRST_RANK.fullmatch(measured.peak_memory_of)
        return PeakReading(measured.peak_memory_gib, kind, "first" if is_first else "fullest")
    if measured.last_stage_memory_gib is not None:
        return PeakReading(measured.last_stage_memory_gib, kind, "last")
    return None


def predicted_gib(
    scenarios: Sequence[Scenario], readings: Sequence[PeakReading], calibration: Calibration | None = None
) -> Array:
    """What each reading should have shown."""
    x, keys = encode(scenarios)
    calibration = calibration or shipped_calibration()
    settings = calibration.memory_settings(keys, [s.training.precision for s in scenarios])
    x, found = resolve_recompute(x, settings), np.zeros(len(scenarios))
    for kind, stage in {(reading.kind, reading.stage) for reading in readings}:
        is_such = np.array([(reading.kind, reading.stage) == (kind, stage) for reading in readings])
        found = where(is_such, read_bytes(x, settings, kind, stage) / GIB, found)
    return found
