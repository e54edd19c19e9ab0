"""Published measurements from a JSONL file outside the repo, and what the search offers for the experts'
workloads.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.cost.encode import scenario_device
from tools.cost.predict import predict
from tools.errors import InputError
from tools.scenario import RECOMPUTES, Plan, Scenario, parse_scenario
from tools.search.constraints import Constraints
from tools.search.search import Search, SearchOutcome
from tools.search.space import Table

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


KEPT = 50_000
CLOSE = 0.02
"""Predicted times this near count as the same, where at most one field differs."""


@dataclass(frozen=True)
class Offer:
    """One workload: the expert's run, the search's best plans and how each differs from the expert's."""

    expert: Measurement
    found: SearchOutcome
    capacity_bytes: float
    differences: NDArray[np.int64]
    expert_time_s: float

    def agrees(self, row: int) -> bool:
        close = abs(self.found.best.step_time_s[row] / self.expert_time_s - 1.0) <= CLOSE
        return bool(self.differences[row] == 0 or (self.differences[row] == 1 and close))


def expert_runs(rows: Sequence[Measurement]) -> list[Measurement]:
    """The fastest run of each group (source, device and model)."""
    best: dict[str, Measurement] = {}
    for row in rows:
        if row.source != SMALL_MODEL_SOURCE and (
            row.group not in best or _rate(row) > _rate(best[row.group])
        ):
            best[row.group] = row
    return [best[group] for group in sorted(best)]


def _rate(row: Measurement) -> float:
    t = row.scenario.training
    return t.global_batch_size * t.seq_len / row.scenario.cluster.num_devices / row.step_time_s


def offers(experts: Sequence[Measurement]) -> Iterator[Offer]:
    """Two searches side by side; the expert's plan is hidden from them."""
    with get_context("spawn").Pool(2) as pool:
        yield from pool.imap(offer, experts)


def offer(expert: Measurement) -> Offer:
    scenario = expert.scenario
    found = Search(scenario, Constraints(), kept=KEPT).run()
    capacity = float(scenario_device(scenario.cluster).memory_bytes)
    plan = scenario.plan
    if plan is None:
        raise ValueError(f"{expert.id} has no plan")
    differences = count_differences(plan, expert.stated, found.best.plans)
    return Offer(expert, found, capacity, differences, predicted_s(scenario))


def predicted_s(scenario: Scenario) -> float:
    return predict([scenario])[0].step_time_s


def count_differences(expert: Plan, stated: frozenset[str], plans: Table) -> NDArray[np.int64]:
    """In how many of the fields that the source states each plan differs; sharding counts as one field."""
    fields = [name for name in ("tp", "pp", "cp", "ep", "micro_batch_size") if name in stated]
    different = sum(
        (plans[name] != getattr(expert, name) for name in fields), np.zeros(len(plans["tp"]), np.int64)
    )
    if "vpp" in stated and expert.pp > 1:
        different = different + (plans["vpp"] != expert.vpp)
    if "sequence_parallel" in stated and expert.tp > 1:
        different = different + (plans["sequence_parallel"] != expert.sequence_parallel)
    if "recompute" in stated and expert.recompute is not None:
        different = different + (plans["recompute"] != RECOMPUTES.index(expert.recompute))
    return different + _sharded_otherwise(expert, "zero_stage" in stated, plans)


def _sharded_otherwise(expert: Plan, stage_known: bool, plans: Table) -> NDArray[np.bool_]:
    ranks = expert.dp * expert.cp
    whole = (plans["zero_stage"] > 0) & (plans["dp_shard"] == plans["dp"] * plans["cp"])
    otherwise = whole != (expert.zero_stage > 0 and expert.dp_shard == ranks)
    if stage_known:
        otherwise = otherwise | (plans["zero_stage"] != expert.zero_stage)
    return np.asarray(otherwise & (ranks > 1))
