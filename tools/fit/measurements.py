"""Published measurements, read from a JSONL file that lies outside the repo."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    lines = path.read_text().splitlines()
    return [_measurement(json.loads(line)) for line in lines if line.strip()]


def _measurement(row: dict[str, object]) -> Measurement:
    measured, source = row["measured"], row["source"]
    if not isinstance(measured, dict) or not isinstance(source, dict):
        raise InputError("measurements", row.get("id"), "'measured' and 'source' must be objects")
    return Measurement(
        id=str(row["id"]),
        source=str(source["key"]),
        group=str(row["group"]),
        scenario=parse_scenario(row["scenario"]),
        stated=_stated(row["scenario"]),
        step_time_s=float(measured["step_time_s"]),
        peak_memory_gib=measured.get("peak_memory_gib"),
    )


def _stated(scenario: object) -> frozenset[str]:
    plan = scenario.get("plan") if isinstance(scenario, dict) else None
    fields = {name for name, value in (plan or {}).items() if value is not None}
    return frozenset(fields if (plan or {}).get("zero_stage_known", True) else fields - {"zero_stage"})


def step_times(rows: Sequence[Measurement]) -> NDArray[np.float64]:
    return np.array([row.step_time_s for row in rows])
