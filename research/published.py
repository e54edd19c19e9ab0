"""Published measurements from a JSONL file outside the repo, and what the search offers for the experts'
workloads.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.errors import InputError
from tools.recommend.dial import with_dial
from tools.recommend.optimize import workload_of
from tools.recommend.score import family_of
from tools.recommend.workload import Workload
from tools.scenario import Scenario, parse_scenario
from tools.search.search import Search, SearchOutcome

SMALL_MODEL_SOURCE = "vtrain-single"
"""Tiny models on 2 to 8 devices, dominated by host time: fitted lightly and reported apart."""
SWEEP_SOURCE = "usp"
"""The Ultra-Scale Playbook's sweep; other sweeps are runs that the measurements have too."""


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


@dataclass(frozen=True)
class SweptPlan:
    """A plan of a sweep: measured, or crashed when it was tried."""

    workload: str
    scenario: Scenario
    measurement: Measurement | None


def read_sweep_plans(path: Path) -> list[SweptPlan]:
    """Plans of workloads whose every plan was tried; those that the framework's rules refuse are left out."""
    plans = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        row = json.loads(line)
        try:
            scenario = parse_scenario(row["scenario"])
        except InputError:
            continue
        plans.append(SweptPlan(row["workload"], scenario, None if row.get("crashed") else _measurement(row)))
    return plans


def read_sweeps(path: Path) -> list[Measurement]:
    """The measured plans of sources that consist of nothing but a sweep."""
    measured = [plan.measurement for plan in read_sweep_plans(path) if plan.measurement]
    return [row for row in measured if row.source == SWEEP_SOURCE]


def peak_memory(rows: Sequence[Measurement]) -> NDArray[np.float64]:
    """GiB; NaN where none was published."""
    return np.array([np.nan if row.peak_memory_gib is None else row.peak_memory_gib for row in rows])


def step_times(rows: Sequence[Measurement]) -> NDArray[np.float64]:
    return np.array([row.step_time_s for row in rows])


@dataclass(frozen=True)
class Offer:
    """One published workload: the expert's run, and the plans that the search found without seeing it."""

    expert: Measurement
    workload: Workload
    found: SearchOutcome

    @property
    def family(self) -> tuple[int, ...]:
        plan = self.expert.scenario.plan
        return () if plan is None else family_of(plan)


def is_modern(row: Measurement) -> bool:
    """Run with FlashAttention, and not one of the tiny models."""
    return row.source != SMALL_MODEL_SOURCE and row.scenario.training.flash_attention


def expert_runs(rows: Sequence[Measurement]) -> list[Measurement]:
    """The fastest modern run of each group (source, device and model), per device."""
    best: dict[str, Measurement] = {}
    for row in filter(is_modern, rows):
        if row.group not in best or _rate(row) > _rate(best[row.group]):
            best[row.group] = row
    return [best[group] for group in sorted(best)]


def _rate(row: Measurement) -> float:
    t = row.scenario.training
    return t.global_batch_size * t.seq_len / row.scenario.cluster.num_devices / row.step_time_s


def offers(experts: Sequence[Measurement], *, frozen: bool = False) -> list[Offer]:
    """Two searches side by side; the expert's plan is hidden from them, but for what `frozen` keeps."""
    with get_context("spawn").Pool(2) as pool:
        found = pool.map(partial(offer, frozen=frozen), experts, chunksize=1)
    return [offer for offer in found if len(offer.found.best.step_time_s)]


FROZEN = ("zero_stage", "recompute")


def offer(expert: Measurement, frozen: bool = False) -> Offer:
    """`frozen`: sharding stage and recomputation are the expert's, as in the evaluation of PROMPTS."""
    plan, hidden = expert.scenario.plan, expert.scenario.model_copy(update={"plan": None})
    if plan is None:
        raise ValueError(f"{expert.id} has no plan")
    kept = {name: getattr(plan, name) for name in FROZEN if frozen and name in expert.stated}
    workload = workload_of(hidden.model_copy(update={"constraints": kept}))
    found = Search(hidden, workload.constraints).run()
    return Offer(expert, workload, replace(found, best=with_dial(workload, found.best)))
