"""Makes a night from a folder of profiler traces or from a metrics file.

Means over ranks and the steps after warm-up, in the cost model's terms.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.cost.predict import predict
from tools.errors import InputError
from tools.nightly.night import (
    PARTS,
    Night,
    SlowRank,
    Surroundings,
    as_run,
    contract_of,
    parse_surroundings,
    read_surroundings,
)
from tools.scenario import Scenario, parse_scenario
from tools.trace.alignment import align
from tools.trace.breakdown import add_breakdowns
from tools.trace.folder import find_trace_files
from tools.trace.rank_profile import RankProfile
from tools.trace.report import TraceAnalysis, analyse_folder
from tools.trace.terms import measure_terms

NO_STEPS = "marks no steps; profile with torch.profiler's schedule and step(), as 'asap profile' does"
MOST_SLOW_RANKS = 16
EDGE_BYTES = 1 << 16
PLAIN_TERMS = ("compute", "exposed_communication", "memory", "idle")


def read_profile_night(described: Mapping[str, Any], folder: Path) -> tuple[Night, TraceAnalysis]:
    """The night, and the analysis it was made from. Raises InputError where there is nothing to measure."""
    around = read_surroundings(folder)
    scenario = parse_scenario(as_run(described, around.plan), need_plan=False)
    analysis = analyse_folder(folder)
    ranks = [rank for rank in analysis.profile.ranks if rank.steady_steps]
    if not ranks:
        raise InputError("traces", str(folder), _reason(analysis))
    return _night(scenario, around, folder, ranks, analysis), analysis


def profile_key(folder: Path) -> str:
    """By names, sizes and both ends of the files: a profile that is copied or touched keeps it."""
    found = hashlib.sha256()
    for path in find_trace_files(folder):
        size = path.stat().st_size
        found.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            found.update(file.read(EDGE_BYTES))
            file.seek(max(0, size - EDGE_BYTES))
            found.update(file.read(EDGE_BYTES))
    return found.hexdigest()[:32]


def profile_time(folder: Path) -> float:
    """When the last of its files was written."""
    return max(path.stat().st_mtime for path in find_trace_files(folder))


def _reason(analysis: TraceAnalysis) -> str:
    if analysis.profile.ranks:
        return NO_STEPS
    first = analysis.profile.unreadable[0]
    return f"no trace could be read; {first.file}: {first.reason}"


def _night(
    scenario: Scenario, around: Surroundings, folder: Path, ranks: list[RankProfile], analysis: TraceAnalysis
) -> Night:
    terms_s = _terms(scenario, ranks)
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
        slow_ranks=slow_ranks(own_s, around.nodes, scenario.cluster.devices_per_node),
        surroundings=with_plan(around, scenario),
        source="/".join(folder.absolute().parts[-2:]),
        notes=[f"{unread} of {unread + len(ranks)} traces could not be read"] if unread else [],
    )


def _terms(scenario: Scenario, ranks: list[RankProfile]) -> dict[str, float]:
    """The cost model's terms where the plan is known, else what every trace tells."""
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
    """Computing and copying of one step: what a rank does before it can wait for others."""
    whole = rank.steady_breakdown
    return (whole.compute_ns + whole.memory_ns) * 1e-9 / len(rank.steady_steps)


def spread(own_s: Sequence[float], step_s: float) -> float | None:
    """None for a single rank."""
    if len(own_s) < 2 or step_s <= 0:
        return None
    return float((max(own_s) - np.median(own_s)) / step_s)


def slow_ranks(own_s: Mapping[int, float], nodes: Sequence[str], devices_per_node: int) -> list[SlowRank]:
    """Those slower than the middle one, the slowest first; a pipeline's stages may differ by design."""
    middle = float(np.median(list(own_s.values())))
    if middle <= 0:
        return []
    slowest = sorted(own_s, key=lambda rank: -own_s[rank])[:MOST_SLOW_RANKS]
    return [
        SlowRank(rank=rank, node=_node(nodes, rank // devices_per_node), ratio=own_s[rank] / middle - 1)
        for rank in slowest
        if own_s[rank] > middle
    ]


def _node(nodes: Sequence[str], place: int) -> str | None:
    return nodes[place] if place < len(nodes) else None


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


def with_plan(around: Surroundings, scenario: Scenario) -> Surroundings:
    """The whole plan that ran, with its defaults."""
    plan = scenario.plan.model_dump(mode="json") if scenario.plan else {}
    return Surroundings(versions=around.versions, plan=plan, nodes=around.nodes, data=around.data)


MOST_BYTES = 64 << 20
STEP, STEPS = "step_time_s", "step_times_s"
LEAST, MOST = 1e-12, 1e18
"""Of what must be positive, and of any number: beyond them ratios become infinite."""
WARM_UP_RATIO = 1.5
"""A leading step this much longer than the median of the later ones is warm-up, as in tools.trace."""


def read_metrics_night(described: Mapping[str, Any], path: Path) -> Night:
    """Raises InputError that names what is wrong in the file."""
    content = _read(path)
    given = _parse(content, path)
    around = _surroundings(given, path)
    scenario = parse_scenario(as_run(described, around.plan), need_plan=False)
    times_s = _steady(_numbers(given[STEPS], STEPS), given.get("warmup"))
    step_s = float(np.mean(times_s))
    ranks_s = given.get("rank_times_s")
    own_s = {} if ranks_s is None else dict(enumerate(_numbers(ranks_s, "rank_times_s")))
    return Night(
        key=hashlib.sha256(content).hexdigest()[:32],
        at=path.stat().st_mtime,
        contract=contract_of(scenario),
        num_devices=scenario.cluster.num_devices,
        num_steps=len(times_s),
        step_time_s=step_s,
        step_error_ratio=error_ratio(times_s),
        mfu=_mfu(given) or mfu_of(scenario, step_s),
        terms_s=_terms_metrics_night(given),
        rank_spread_ratio=spread(list(own_s.values()), step_s),
        peak_memory_bytes=_peak(given),
        slow_ranks=slow_ranks(own_s, around.nodes, scenario.cluster.devices_per_node) if own_s else [],
        surroundings=with_plan(around, scenario),
        source=path.name,
    )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError("metrics", str(path), f"cannot be read: {error.strerror or error}") from None
    if len(content) > MOST_BYTES:
        raise InputError("metrics", str(path), f"must be at most {MOST_BYTES >> 20} MiB")
    return content


def _parse(content: bytes, path: Path) -> dict[str, Any]:
    """The lines of a log become one object: what does not change from step to step is the last one's."""
    try:
        records = [json.loads(content)]
    except (ValueError, RecursionError):
        records = [
            _line(line, number, path) for number, line in enumerate(content.splitlines(), 1) if line.strip()
        ]
    if not records or not all(isinstance(one, dict) for one in records):
        raise InputError("metrics", str(path), f"must hold a JSON object, or one a line with {STEP}")
    steps = [one[STEP] for one in records if STEP in one]
    merged = {name: value for one in records for name, value in one.items()}
    if STEPS not in merged and not steps:
        raise InputError("metrics", str(path), f"must hold {STEPS}, or lines with {STEP}")
    return {STEPS: steps, **merged}


def _line(line: bytes, number: int, path: Path) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path.name} line {number}", line[:60].decode(errors="replace"), f"{error}"
        ) from None


def _surroundings(given: Mapping[str, Any], path: Path) -> Surroundings:
    """The file's own words before those of a job.yaml beside it; of a result.json the fingerprint's too."""
    beside = read_surroundings(path.parent)
    stated = {name: given[name] for name in PARTS if name in given}
    fingerprint = given.get("fingerprint")
    if isinstance(fingerprint, dict):
        told = fingerprint.get("versions")
        versions = {"stack": ", ".join(map(str, told))} if isinstance(told, list) else {}
        stated = {"versions": versions, "data": fingerprint.get("data"), **stated}
    own = parse_surroundings(stated)
    return Surroundings(
        versions={**beside.versions, **own.versions},
        plan={**beside.plan, **own.plan},
        nodes=own.nodes or beside.nodes,
        data=own.data or beside.data,
    )


def _steady(times_s: list[float], warmup: object) -> list[float]:
    if isinstance(warmup, int) and not isinstance(warmup, bool) and 0 <= warmup < len(times_s):
        return times_s[warmup:]
    leading = 0
    while len(times_s) - leading > 2:
        if times_s[leading] <= WARM_UP_RATIO * float(np.median(times_s[leading + 1 :])):
            break
        leading += 1
    return times_s[leading:]


def _numbers(given: object, field: str) -> list[float]:
    if not isinstance(given, list) or not given:
        raise InputError(field, given, "must be a list of positive numbers")
    for one in given:
        if not _is_number(one) or one < LEAST:
            raise InputError(field, one, f"must be positive numbers up to {MOST:.0e}")
    return [float(one) for one in given]


def _number(given: Mapping[str, Any], field: str) -> float | None:
    value = given.get(field)
    if value is None:
        return None
    if not _is_number(value) or value < LEAST:
        raise InputError(field, value, f"must be a positive number up to {MOST:.0e}")
    return float(value)


def _mfu(given: Mapping[str, Any]) -> float | None:
    """Some log it in percent."""
    mfu = _number(given, "mfu")
    if mfu is not None and mfu > 1:
        raise InputError("mfu", mfu, "must be a ratio between 0 and 1")
    return mfu


def _is_number(value: object) -> bool:
    """Not NaN, and not so large that the sum of several is infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST


def _terms_metrics_night(given: Mapping[str, Any]) -> dict[str, float]:
    terms = given.get("breakdown_s") or {}
    if not isinstance(terms, dict) or not all(_is_number(value) for value in terms.values()):
        raise InputError("breakdown_s", terms, "must be parts of the step with seconds each")
    return {str(name): float(value) for name, value in terms.items()}


def _peak(given: Mapping[str, Any]) -> float | None:
    name = "peak_memory_bytes"
    peak = given.get(name)
    return max(_numbers(peak, name)) if isinstance(peak, list) else _number(given, name)
