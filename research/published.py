"""Published runs from runs/, and what the search offers for the experts' workloads."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from tools.errors import InputError
from tools.model.peaks import PeakReading, peak_reading, predicted_gib
from tools.model.runs import Run, parse_run
from tools.recommend.dial import with_dial
from tools.recommend.optimize import workload_of
from tools.recommend.score import family_of
from tools.recommend.workload import Workload
from tools.scenario import Scenario
from tools.scenario.fields import FromList, JsonObject, StrictModel, build
from tools.search.search import Search, SearchOutcome

REPO = Path(__file__).resolve().parents[1]
RUNS = REPO / "runs"
SOURCES = RUNS / "sources.toml"
SMALL_MODEL_SOURCE = "vtrain-single"
"""Tiny models on 2 to 8 devices, dominated by host time: fitted lightly and reported apart."""
SWEEP_SOURCE = "usp"
"""The Ultra-Scale Playbook's sweep; other sweeps are runs that the measurements have too."""
FROZEN = ("zero_stage", "recompute")


class RowLabel(StrictModel):
    """A field that rows were given after they were read: its value, in how many rows of the source it stands,
    and what says so."""

    field: str
    """In the scenario, or `measured.peak_memory_kind`."""
    value: JsonValue
    rows: int
    why: str

    def is_on(self, run: Run) -> bool:
        part, name = self.field.split(".")
        owner = run.measured if part == "measured" else getattr(run.scenario, part)
        stated: JsonObject = owner.model_dump(mode="json", exclude_defaults=True)
        return stated.get(name) == self.value


class PublishedSource(StrictModel):
    """A table of runs/sources.toml."""

    title: str
    licence: str
    read: str
    """How each figure was read."""
    uncertain: str
    repo: str = ""
    path: str = ""
    release: str = ""
    labels: Annotated[tuple[RowLabel, ...], FromList] = ()


def read_sources() -> dict[str, PublishedSource]:
    tables = tomllib.loads(SOURCES.read_text("utf-8"))
    return {key: build(PublishedSource, table, f"{key}.") for key, table in tables.items()}


def read_runs(path: Path = RUNS) -> list[Run]:
    """The rows of a JSONL file, or of every one in a folder."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not path.exists() or not files:
        raise InputError("runs", str(path), "a folder or a JSONL file of published runs is needed")
    runs = []
    for file in files:
        for number, line in enumerate(file.read_bytes().splitlines(), start=1):
            if not line.strip():
                continue
            place = f"{file.name}, line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(place, line.decode(errors="replace"), f"not JSON: {error}") from error
            runs.append(parse_run(row, f"{place}: ", published=True))
    if not runs:
        raise InputError("runs", str(path), "there are no rows")
    return runs


@dataclass(frozen=True)
class Measurement:
    """A run with its step time, as the fit and the benchmarks use it."""

    id: str
    source: str
    group: str
    scenario: Scenario
    stated: frozenset[str]
    """Plan fields that the source gave; the others were filled with defaults."""
    step_time_s: float
    peak: PeakReading | None
    is_headline: bool = True
    """Neither a very small model nor of low confidence."""

    @property
    def peak_memory_gib(self) -> float | None:
        return self.peak.gib if self.peak else None


def to_measurement(run: Run) -> Measurement:
    scenario, measured = run.scenario, run.measured
    if scenario.plan is None or measured.step_time_s is None:
        raise InputError(run.title, None, "a plan and its step time are needed")
    return Measurement(
        id=run.id,
        source=run.source,
        group=run.group or f"{run.source}|{scenario.cluster.device}|{scenario.model.name}",
        scenario=scenario,
        stated=frozenset(type(scenario.plan).model_fields) - set(run.left_open),
        step_time_s=measured.step_time_s,
        # what the sweep calls its last stage grows with the number of stages: not what one holds
        peak=peak_reading(measured) if measured.peak_memory_gib else None,
        is_headline=run.source != SMALL_MODEL_SOURCE and run.confidence != "low",
    )


def measurements(runs: Sequence[Run]) -> list[Measurement]:
    """What the model is fitted to and judged by: the sweep and older releases are apart."""
    chosen = [run for run in runs if run.source != SWEEP_SOURCE and not run.older_release]
    return [to_measurement(run) for run in chosen if run.measured.step_time_s is not None]


@dataclass(frozen=True)
class SweptPlan:
    """A plan of a sweep: measured, or crashed when it was tried."""

    workload: str
    scenario: Scenario
    measurement: Measurement | None


def sweep_plans(runs: Sequence[Run]) -> list[SweptPlan]:
    """Plans of workloads whose every plan was tried; those that the framework's rules refuse are left out."""
    return [
        SweptPlan(run.workload, run.scenario, None if run.crashed else to_measurement(run))
        for run in runs
        if run.workload and run.is_legal
    ]


def sweep_measurements(runs: Sequence[Run]) -> list[Measurement]:
    """The measured plans of sources that consist of nothing but a sweep."""
    return [to_measurement(run) for run in runs if run.source == SWEEP_SOURCE and not run.crashed]


def peaks_gib(rows: Sequence[Measurement]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Measured and predicted peaks of the rows with a published one."""
    peaks = [(row.scenario, row.peak) for row in rows if row.peak is not None]
    if not peaks:
        return np.zeros(0), np.zeros(0)
    scenarios, readings = zip(*peaks, strict=True)
    return np.array([reading.gib for reading in readings]), predicted_gib(scenarios, readings)


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


def offer(expert: Measurement, frozen: bool = False) -> Offer:
    """`frozen`: sharding stage and recomputation are the expert's, as in the evaluation of PROMPTS."""
    plan, hidden = expert.scenario.plan, expert.scenario.model_copy(update={"plan": None})
    if plan is None:
        raise ValueError(f"{expert.id} has no plan")
    kept = {name: getattr(plan, name) for name in FROZEN if frozen and name in expert.stated}
    workload = workload_of(hidden.model_copy(update={"constraints": kept}))
    found = Search(hidden, workload.constraints).run()
    return Offer(expert, workload, replace(found, best=with_dial(workload, found.best)))
