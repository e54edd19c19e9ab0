"""Makes a night from a folder of profiler traces or from a metrics file.

Means over ranks and the steps after warm-up, in the cost model's terms.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.cost.predict import predict
from tools.errors import InputError
from tools.nightly.night import (
    PARTS,
    Described,
    Night,
    RunEnvironment,
    SlowRank,
    contract_of,
    parse_environment,
    read_environment,
    with_job_plan,
)
from tools.scenario import Scenario, parse_scenario
from tools.trace.alignment import align
from tools.trace.breakdown import add_breakdowns
from tools.trace.folder import find_trace_files
from tools.trace.isolate import Check
from tools.trace.rank_profile import RankProfile
from tools.trace.report import TraceAnalysis, analyse_folder
from tools.trace.terms import measure_terms

NO_STEPS = "marks no steps; profile with torch.profiler's schedule and step(), as 'asap profile' does"
MAX_SLOW_RANKS = 16
EDGE_BYTES = 1 << 16
PLAIN_TERMS = ("compute", "exposed_communication", "memory", "idle")


def read_profile_night(
    described: Described, folder: Path, check: Check | None = None
) -> tuple[Night, TraceAnalysis]:
    """The night, and the analysis it was made from. Raises InputError if there is nothing to measure."""
    environment = read_environment(folder)
    scenario = parse_scenario(with_job_plan(described, environment.plan), need_plan=False)
    analysis = analyse_folder(folder, check=check)
    ranks = [rank for rank in analysis.profile.ranks if rank.steady_steps]
    if not ranks:
        raise InputError("traces", str(folder), _reason(analysis))
    return _profile_night(scenario, environment, folder, ranks, analysis), analysis


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
    """When the last of its files was written."""
    return max(path.stat().st_mtime for path in find_trace_files(folder))


def _reason(analysis: TraceAnalysis) -> str:
    if analysis.profile.ranks:
        return NO_STEPS
    first = analysis.profile.unreadable[0]
    return f"no trace could be read; {first.file}: {first.reason}"


def _profile_night(
    scenario: Scenario,
    environment: RunEnvironment,
    folder: Path,
    ranks: list[RankProfile],
    analysis: TraceAnalysis,
) -> Night:
    terms_s = _profile_terms(scenario, ranks)
    step_s = sum(terms_s.values())
    own_s = {rank.rank: _own_work_s(rank) for rank in ranks}
    unread = len(analysis.profile.unreadable)
    return Night(
        key=profile_key(folder),
        at=profile_time(folder),
        contract=contract_of(scenario),
        num_devices=scenario.cluster.num_devices,
        num_steps=min(len(rank.steady_steps) for rank in ranks),
        step_time_s=step_s,
        step_error_ratio=_step_error(ranks),
        mfu=mfu_of(scenario, step_s),
        terms_s=terms_s,
        rank_spread_ratio=spread(list(own_s.values()), step_s),
        peak_memory_bytes=_peak_memory(ranks),
        slow_ranks=slow_ranks(own_s, environment.nodes, scenario.cluster.devices_per_node),
        environment=_with_whole_plan(environment, scenario),
        source="/".join(folder.absolute().parts[-2:]),
        notes=[f"{unread} of {unread + len(ranks)} traces could not be read"] if unread else [],
    )


def _profile_terms(scenario: Scenario, ranks: list[RankProfile]) -> dict[str, float]:
    """The cost model's terms if the plan is known, else what every trace has."""
    if scenario.plan is not None:
        measured = measure_terms(ranks, align(ranks), scenario.plan)
        return {name: value for name, value in measured.terms_s.items() if value}
    steps = sum(len(rank.steady_steps) for rank in ranks)
    whole = add_breakdowns([rank.steady_breakdown for rank in ranks])
    return {name: getattr(whole, f"{name}_ns") * 1e-9 / steps for name in PLAIN_TERMS}


def _step_error(ranks: list[RankProfile]) -> float | None:
    """By the scatter of the steps, each as the mean of its ranks."""
    count = min(len(rank.steady_steps) for rank in ranks)
    times = [[step.breakdown.total_ns for step in rank.steady_steps[:count]] for rank in ranks]
    return error_ratio(np.mean(times, axis=0).tolist())


def error_ratio(times_s: Sequence[float]) -> float | None:
    """Standard error of the mean of some steps, over it; None for a single step."""
    if len(times_s) < 2:
        return None
    return float(np.std(times_s, ddof=1) / np.sqrt(len(times_s)) / np.mean(times_s))


def _own_work_s(rank: RankProfile) -> float:
    """Compute and copies of one step: what a rank does before it can wait for others."""
    total = rank.steady_breakdown
    return (total.compute_ns + total.memory_ns) * 1e-9 / len(rank.steady_steps)


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
        SlowRank(rank=rank, node=_node(nodes, rank // devices_per_node), ratio=own_s[rank] / median - 1)
        for rank in slowest
        if own_s[rank] > median
    ]


def _node(nodes: Sequence[str], index: int) -> str | None:
    return nodes[index] if index < len(nodes) else None


def _peak_memory(ranks: list[RankProfile]) -> float | None:
    peaks = [rank.memory.peak_allocated_bytes for rank in ranks if rank.memory]
    return float(max(peaks)) if peaks else None


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


MAX_BYTES = 64 << 20
STEP, STEPS = "step_time_s", "step_times_s"
MIN_POSITIVE, MAX_NUMBER = 1e-12, 1e18
"""Beyond them ratios become infinite."""
WARM_UP_RATIO = 1.5
"""A leading step this much longer than the median of the later ones is warm-up, as in tools.trace."""


@dataclass(frozen=True)
class Metrics:
    """The checked content of a metrics file."""

    step_times_s: list[float]
    """Without warm-up."""
    rank_times_s: list[float]
    """Own work of each rank; empty if it was not logged."""
    mfu: float | None
    terms_s: dict[str, float]
    peak_memory_bytes: float | None
    environment: RunEnvironment


def read_metrics_night(described: Described, path: Path) -> Night:
    """Raises InputError that names what is wrong in the file."""
    content = _read(path)
    metrics = _parse_metrics(content, path)
    environment = metrics.environment
    scenario = parse_scenario(with_job_plan(described, environment.plan), need_plan=False)
    step_s = float(np.mean(metrics.step_times_s))
    own_s = dict(enumerate(metrics.rank_times_s))
    return Night(
        key=hashlib.sha256(content).hexdigest()[:32],
        at=path.stat().st_mtime,
        contract=contract_of(scenario),
        num_devices=scenario.cluster.num_devices,
        num_steps=len(metrics.step_times_s),
        step_time_s=step_s,
        step_error_ratio=error_ratio(metrics.step_times_s),
        mfu=metrics.mfu or mfu_of(scenario, step_s),
        terms_s=metrics.terms_s,
        rank_spread_ratio=spread(metrics.rank_times_s, step_s),
        peak_memory_bytes=metrics.peak_memory_bytes,
        slow_ranks=slow_ranks(own_s, environment.nodes, scenario.cluster.devices_per_node) if own_s else [],
        environment=_with_whole_plan(environment, scenario),
        source=path.name,
    )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError("metrics", str(path), f"cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise InputError("metrics", str(path), f"must be at most {MAX_BYTES >> 20} MiB")
    return content


def _parse_metrics(content: bytes, path: Path) -> Metrics:
    """The lines of a log become one object; of a field that several lines have, the last one counts."""
    records = _parse_records(content, path)
    steps = [record[STEP] for record in records if STEP in record]
    fields = {name: value for record in records for name, value in record.items()}
    if STEPS not in fields and not steps:
        raise InputError("metrics", str(path), f"must hold {STEPS}, or lines with {STEP}")
    environment = _parse_environment(fields, path)
    times_s = _without_warm_up(_numbers(fields.get(STEPS, steps), STEPS), fields.get("warmup"))
    ranks_s = fields.get("rank_times_s")
    return Metrics(
        step_times_s=times_s,
        rank_times_s=[] if ranks_s is None else _numbers(ranks_s, "rank_times_s"),
        mfu=_parse_mfu(fields.get("mfu")),
        terms_s=_parse_terms(fields.get("breakdown_s")),
        peak_memory_bytes=_parse_peak(fields.get("peak_memory_bytes")),
        environment=environment,
    )


def _parse_records(content: bytes, path: Path) -> list[dict[str, Any]]:
    try:
        records = [json.loads(content)]
    except (ValueError, RecursionError):
        lines = enumerate(content.splitlines(), 1)
        records = [_parse_line(line, number, path) for number, line in lines if line.strip()]
    if not records or not all(isinstance(record, dict) for record in records):
        raise InputError("metrics", str(path), f"must hold a JSON object, or one per line with {STEP}")
    return records


def _parse_line(line: bytes, number: int, path: Path) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        near = line[:60].decode(errors="replace")
        raise InputError(f"{path.name} line {number}", near, f"{error}") from None


def _parse_environment(fields: Mapping[str, object], path: Path) -> RunEnvironment:
    """The file itself comes before a job.yaml beside it; the fingerprint of a result.json counts too."""
    beside = read_environment(path.parent)
    stated = {name: fields[name] for name in PARTS if name in fields}
    fingerprint = fields.get("fingerprint")
    if isinstance(fingerprint, dict):
        stack = fingerprint.get("versions")
        versions = {"stack": ", ".join(map(str, stack))} if isinstance(stack, list) else {}
        stated = {"versions": versions, "data": fingerprint.get("data"), **stated}
    own = parse_environment(stated)
    return RunEnvironment(
        versions={**beside.versions, **own.versions},
        plan={**beside.plan, **own.plan},
        nodes=own.nodes or beside.nodes,
        data=own.data or beside.data,
    )


def _without_warm_up(times_s: list[float], warmup: object) -> list[float]:
    if isinstance(warmup, int) and not isinstance(warmup, bool) and 0 <= warmup < len(times_s):
        return times_s[warmup:]
    leading = 0
    while len(times_s) - leading > 2:
        if times_s[leading] <= WARM_UP_RATIO * float(np.median(times_s[leading + 1 :])):
            break
        leading += 1
    return times_s[leading:]


def _numbers(values: object, field: str) -> list[float]:
    if not isinstance(values, list) or not values:
        raise InputError(field, values, "must be a list of positive numbers")
    for value in values:
        if not _is_number(value) or value < MIN_POSITIVE:
            raise InputError(field, value, f"must be positive numbers up to {MAX_NUMBER:.0e}")
    return [float(value) for value in values]


def _number(value: Any, field: str) -> float | None:  # noqa: ANN401 - any JSON
    if value is None:
        return None
    if not _is_number(value) or value < MIN_POSITIVE:
        raise InputError(field, value, f"must be a positive number up to {MAX_NUMBER:.0e}")
    return float(value)


def _parse_mfu(value: object) -> float | None:
    """Some jobs log it in percent."""
    mfu = _number(value, "mfu")
    if mfu is not None and mfu > 1:
        raise InputError("mfu", mfu, "must be a ratio between 0 and 1")
    return mfu


def _parse_terms(value: object) -> dict[str, float]:
    terms = value or {}
    if not isinstance(terms, dict) or not all(_is_number(part) for part in terms.values()):
        raise InputError("breakdown_s", terms, "must be parts of the step with seconds each")
    return {str(name): float(part) for name, part in terms.items()}


def _parse_peak(value: object) -> float | None:
    name = "peak_memory_bytes"
    return max(_numbers(value, name)) if isinstance(value, list) else _number(value, name)


def _is_number(value: object) -> bool:
    """Not NaN, and not so large that the sum of several is infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER
