"""Published measurements, read from a JSONL file that lies outside the repo."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.errors import InputError
from tools.scenario import Scenario, parse_scenario

SMALL_MODEL_SOURCE = "vtrain-single"
"""Tiny models on 2 to 8 devices, dominated by host time: fitted lightly and reported apart."""


@dataclass(frozen=True)
class Measurement:
    id: str
    source: str
    group: str
    scenario: Scenario
    stated: frozenset[str]
    """Plan fields that the source gave; the others were filled with defaults."""
    step_time_s: float
    peak_memory_gib: float | None


def read_measurements(path: Path) -> list[Measurement]:
    if not path.is_file():
        raise InputError("measurements", str(path), "a JSONL file of published measurements is needed")
    lines = path.read_bytes().splitlines()
    rows = [_read_line(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise InputError("measurements", str(path), "the file has no rows")
    return rows


def _read_line(number: int, line: bytes) -> Measurement:
    place = f"measurements, line {number}"
    try:
        return _measurement(json.loads(line))
    except InputError as error:
        raise InputError(f"{place}: {error.field}", error.given, error.allowed) from error
    except (KeyError, TypeError, ValueError) as error:
        says = f"a measured run is needed ({type(error).__name__}: {error})"
        raise InputError(place, line.decode(errors="replace"), says) from error


def _measurement(row: dict[str, Any]) -> Measurement:
    measured, source = row["measured"], row["source"]
    step_time_s = float(measured["step_time_s"])
    if not 0 < step_time_s < math.inf:
        raise ValueError(f"step_time_s is {step_time_s}")
    return Measurement(
        id=str(row["id"]),
        source=str(source["key"]),
        group=str(row["group"]),
        scenario=parse_scenario(row["scenario"]),
        stated=_stated(row["scenario"]),
        step_time_s=step_time_s,
        peak_memory_gib=measured.get("peak_memory_gib"),
    )


def _stated(scenario: dict[str, Any]) -> frozenset[str]:
    """Of a scenario that was parsed, so it has a plan."""
    plan = scenario["plan"]
    fields = {name for name, value in plan.items() if value is not None}
    return frozenset(fields if plan.get("zero_stage_known", True) else fields - {"zero_stage"})


def step_times(rows: Sequence[Measurement]) -> NDArray[np.float64]:
    return np.array([row.step_time_s for row in rows])
