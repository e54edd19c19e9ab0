"""Makes a night from a folder of profiler traces or from a metrics file.

Means over ranks and the steps after warm-up, in the cost model's terms.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field, JsonValue

from tools.errors import InputError
from tools.model.logs import read_steps
from tools.model.predict import predict
from tools.nightly.night import (
    ENVIRONMENT_PARTS,
    Night,
    RunEnvironment,
    SlowRank,
    StatedWorkload,
    contract_of,
    parse_environment,
    read_environment,
    with_job_plan,
)
from tools.physics.memory import GIB
from tools.scenario import Scenario, parse_scenario
from tools.scenario.fields import Allowed, build
from tools.trace.alignment import align
from tools.trace.breakdown import add_breakdowns, count_warm_up
from tools.trace.folder import find_trace_files
from tools.trace.isolate import Check
from tools.trace.rank_profile import RankProfile, mean_parts
from tools.trace.report import TraceAnalysis, analyse_folder
from tools.trace.terms import measure_terms

NO_STEPS = "marks no steps; profile with torch.profiler's schedule and step(), as 'asap profile' does"
MAX_SLOW_RANKS = 16
MAX_PARTS = 100
"""The most that a night keeps, since years of nights are kept."""
EDGE_BYTES = 1 << 16
PLAIN_TERMS = ("compute", "exposed_communication", "memory", "idle")
MAX_METRICS_BYTES = 64 << 20
STEP, STEPS = "step_time_s", "step_times_s"
MIN_POSITIVE, MAX_NUMBER = 1e-12, 1e18
"""Beyond them ratios become infinite."""
PositiveNumber = Annotated[float, Field(strict=True, ge=MIN_POSITIVE, le=MAX_NUMBER, allow_inf_nan=False)]
Finite = Annotated[float, Field(strict=True, ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]
POSITIVE = Allowed(f"positive numbers up to {MAX_NUMBER:.0e}")


class MetricsFile(BaseModel):
    """What a job logs by itself; of a field that several lines have, the last one counts."""

    step_times_s: Annotated[list[PositiveNumber], Field(min_length=1), POSITIVE]
    warmup: JsonValue = None
    """How many of the first steps do not count; anything but such a number is found out from the steps."""
    rank_times_s: Annotated[list[PositiveNumber], Field(min_length=1), POSITIVE] | None = None
    """What each rank's own work takes."""
    mfu: (
        Annotated[PositiveNumber, Field(le=1), Allowed("a ratio above 0 and at most 1, not percent")] | None
    ) = None
    breakdown_s: Annotated[dict[str, Finite], Allowed("parts of the step with seconds each")] | None = None
    peak_memory_bytes: Annotated[PositiveNumber | list[PositiveNumber], POSITIVE] | None = None
    versions: JsonValue = None
    plan: JsonValue = None
    nodes: JsonValue = None
    data: JsonValue = None
    """As in a job.yaml, which they outrank."""
    fingerprint: JsonValue = None
    """What a result.json has in place of versions and data."""

    def steady_times_s(self) -> list[float]:
        times_s, warmup = self.step_times_s, self.warmup
        if isinstance(warmup, int) and not isinstance(warmup, bool) and 0 <= warmup < len(times_s):
            return times_s[warmup:]
        return times_s[count_warm_up(times_s) :]


def read_profile_night(
    stated: StatedWorkload, folder: Path, check: Check | None = None
) -> tuple[Night, TraceAnalysis]:
    """The night, and the analysis it was made from. Raises InputError if there is nothing to measure."""
    environment = read_environment(folder)
    scenario = parse_scenario(with_job_plan(stated, environment.plan), need_plan=False)
    analysis = analyse_folder(folder, check=check)
    unreadable = analysis.profile.unreadable
    ranks = [rank for rank in analysis.profile.ranks if rank.steady_steps]
    if not ranks:
        unread = "" if analysis.profile.ranks else f"{unreadable[0].file}: {unreadable[0].reason}"
        raise InputError("traces", str(folder), f"no trace could be read; {unread}" if unread else NO_STEPS)
    terms_s = _profile_terms(scenario, ranks)
    step_s = sum(terms_s.values())
    # Compute and copies: what a rank does before it can wait for others.
    totals = {rank.rank: (rank.steady_breakdown, len(rank.steady_steps)) for rank in ranks}
    own_s = {rank: (total.compute_ns + total.memory_ns) * 1e-9 / n for rank, (total, n) in totals.items()}
    num_steps = min(len(rank.steady_steps) for rank in ranks)
    step_times = [[step.breakdown.total_ns for step in rank.steady_steps[:num_steps]] for rank in ranks]
    peaks = [rank.memory.peak_allocated_bytes for rank in ranks if rank.memory]
    night = Night(
        key=profile_key(folder),
        at=profile_time(folder),
        contract=contract_of(scenario),
        num_devices=scenario.cluster.num_devices,
        num_steps=num_steps,
        step_time_s=step_s,
        step_error_ratio=error_ratio(np.mean(step_times, axis=0).tolist()),
        mfu=mfu_of(scenario, step_s),
        terms_s=terms_s,
        rank_spread_ratio=spread(list(own_s.values()), step_s),
        peak_memory_bytes=float(max(peaks)) if peaks else None,
        slow_ranks=slow_ranks(own_s, environment.nodes, scenario.cluster.devices_per_node),
        parts=mean_parts(ranks, most=MAX_PARTS),
        environment=_with_whole_plan(environment, scenario),
        source="/".join(folder.absolute().parts[-2:]),
        notes=[f"{len(unreadable)} of {len(unreadable) + len(ranks)} traces could not be read"]
        if unreadable
        else [],
    )
    return night, analysis


def profile_key(folder: Path) -> str:
    """By names, sizes and both ends of the files: a profile that is copied or touched keeps it."""
    digest = hashlib.sha256()
    for path in find_trace_files(folder):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(EDGE_BYTES))
            file.seek(max(0, size - EDGE_BYTES))
            digest.update(file.read(EDGE_BYTES))
    return digest.hexdigest()[:32]


def profile_time(folder: Path) -> float:
    return max(path.stat().st_mtime for path in find_trace_files(folder))


def _profile_terms(scenario: Scenario, ranks: list[RankProfile]) -> dict[str, float]:
    """The cost model's terms if the plan is known, else what every trace has."""
    if scenario.plan is not None:
        measured = measure_terms(ranks, align(ranks), scenario.plan)
        return {name: value for name, value in measured.terms_s.items() if value}
    steps = sum(len(rank.steady_steps) for rank in ranks)
    whole = add_breakdowns([rank.steady_breakdown for rank in ranks])
    return {name: getattr(whole, f"{name}_ns") * 1e-9 / steps for name in PLAIN_TERMS}


def error_ratio(times_s: Sequence[float]) -> float | None:
    """Standard error of the mean of some steps, over it; None for a single step."""
    if len(times_s) < 2:
        return None
    return float(np.std(times_s, ddof=1) / np.sqrt(len(times_s)) / np.mean(times_s))


def spread(own_s: Sequence[float], step_s: float) -> float | None:
    """None for a single rank."""
    if len(own_s) < 2 or step_s <= 0:
        return None
    return float((max(own_s) - np.median(own_s)) / step_s)


def slow_ranks(own_s: Mapping[int, float], nodes: Sequence[str], devices_per_node: int) -> list[SlowRank]:
    """Those slower than the median rank, the slowest first; a pipeline's stages may differ by design."""
    median = float(np.median(list(own_s.values())))
    if median <= 0:
        return []
    slowest = sorted(own_s, key=lambda rank: -own_s[rank])[:MAX_SLOW_RANKS]
    return [
        SlowRank(
            rank=rank,
            node=nodes[rank // devices_per_node] if rank // devices_per_node < len(nodes) else None,
            ratio=own_s[rank] / median - 1,
        )
        for rank in slowest
        if own_s[rank] > median
    ]


def mfu_of(scenario: Scenario, step_time_s: float) -> float | None:
    """The floating-point work of a step is the model's, whatever the plan: MFU goes with 1 / step time."""
    if scenario.plan is None or step_time_s <= 0:
        return None
    (predicted,) = predict([scenario])
    mfu, predicted_s = predicted.mfu, predicted.step_time_s
    return float(mfu) * float(predicted_s) / step_time_s


def _with_whole_plan(environment: RunEnvironment, scenario: Scenario) -> RunEnvironment:
    """The whole plan that ran, with its defaults."""
    plan = scenario.plan.model_dump(mode="json") if scenario.plan else {}
    return environment.model_copy(update={"plan": plan})


def read_metrics_night(stated: StatedWorkload, path: Path) -> Night:
    """Raises InputError that names what is wrong in the file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_METRICS_BYTES + 1)
    except OSError as error:
        raise InputError("metrics", str(path), f"cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_METRICS_BYTES:
        raise InputError("metrics", str(path), f"must be at most {MAX_METRICS_BYTES >> 20} MiB")
    try:
        metrics = _parse_metrics(content, path)
    except InputError:
        logged = read_steps(content, parse_scenario(with_job_plan(stated, {}), need_plan=False))
        if logged.times_s is None:
            raise
        peak_gib = logged.peak_memory_gib
        peak_bytes = peak_gib * GIB if peak_gib else None
        metrics = MetricsFile(step_times_s=logged.times_s, warmup=0, peak_memory_bytes=peak_bytes)
    environment = _stated_environment(metrics, path)
    scenario = parse_scenario(with_job_plan(stated, environment.plan), need_plan=False)
    times_s, peak = metrics.steady_times_s(), metrics.peak_memory_bytes
    step_s = float(np.mean(times_s))
    own_s = dict(enumerate(metrics.rank_times_s or ()))
    return Night(
        key=hashlib.sha256(content).hexdigest()[:32],
        at=path.stat().st_mtime,
        contract=contract_of(scenario),
        num_devices=scenario.cluster.num_devices,
        num_steps=len(times_s),
        step_time_s=step_s,
        step_error_ratio=error_ratio(times_s),
        mfu=metrics.mfu or mfu_of(scenario, step_s),
        terms_s=metrics.breakdown_s or {},
        rank_spread_ratio=spread(list(own_s.values()), step_s),
        peak_memory_bytes=max(peak) if isinstance(peak, list) else peak,
        slow_ranks=slow_ranks(own_s, environment.nodes, scenario.cluster.devices_per_node) if own_s else [],
        environment=_with_whole_plan(environment, scenario),
        source=path.name,
    )


def _parse_metrics(content: bytes, path: Path) -> MetricsFile:
    """One object, or the lines of a log as one: its steps, and the last value of every other field."""
    try:
        records = [json.loads(content)]
    except (ValueError, RecursionError):
        records = []
        for number, line in enumerate(content.splitlines(), 1):
            try:
                records += [json.loads(line)] if line.strip() else []
            except (ValueError, RecursionError) as error:
                near = line[:60].decode(errors="replace")
                raise InputError(f"{path.name} line {number}", near, f"{error}") from None
    if not records or not all(isinstance(record, dict) for record in records):
        raise InputError("metrics", str(path), f"must hold a JSON object, or one per line with {STEP}")
    logged = {name: value for record in records for name, value in record.items()}
    steps = [record[STEP] for record in records if STEP in record]
    if STEPS not in logged and not steps:
        raise InputError("metrics", str(path), f"must hold {STEPS}, or lines with {STEP}")
    return build(MetricsFile, {STEPS: steps, **logged}, "")


def _stated_environment(metrics: MetricsFile, path: Path) -> RunEnvironment:
    """The file itself comes before a job.yaml beside it; the fingerprint of a result.json counts too."""
    stated = metrics.model_dump(include={*ENVIRONMENT_PARTS}, exclude_unset=True)
    if isinstance(metrics.fingerprint, dict):
        stack = metrics.fingerprint.get("versions")
        versions = {"stack": ", ".join(map(str, stack))} if isinstance(stack, list) else {}
        stated = {"versions": versions, "data": metrics.fingerprint.get("data"), **stated}
    logged, beside = parse_environment(stated), read_environment(path.parent)
    return RunEnvironment(
        versions={**beside.versions, **logged.versions},
        plan={**beside.plan, **logged.plan},
        nodes=logged.nodes or beside.nodes,
        data=logged.data or beside.data,
    )
