"""A night from a folder of profiler traces: the step in the cost model's terms, the ranks side by side.

Means over ranks and the steps after warm-up, as `tools.trace.terms` counts them. Traces that mark no steps
are refused: how long a profile is says nothing about the step.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.cost.predict import predict
from tools.errors import InputError
from tools.nightly.contract import as_run, contract_of
from tools.nightly.night import Night, SlowRank, Surroundings
from tools.nightly.surroundings import read_surroundings
from tools.scenario import Scenario, parse_scenario
from tools.trace.breakdown import add_breakdowns
from tools.trace.collectives import align
from tools.trace.folder import find_trace_files
from tools.trace.rank_profile import RankProfile
from tools.trace.report import TraceReport, analyse_folder
from tools.trace.shares import steady_breakdown
from tools.trace.terms import measure_terms

NO_STEPS = "marks no steps; profile with torch.profiler's schedule and step(), as 'asap profile' does"
MOST_SLOW_RANKS = 16
EDGE_BYTES = 1 << 16
PLAIN_TERMS = ("compute", "exposed_communication", "memory", "idle")


def read_profile_night(described: Mapping[str, Any], folder: Path) -> tuple[Night, TraceReport]:
    """The night, and the analysis it was made from. Raises InputError where there is nothing to measure."""
    around = read_surroundings(folder)
    scenario = parse_scenario(as_run(described, around.plan), need_plan=False)
    report = analyse_folder(folder)
    ranks = [rank for rank in report.profile.ranks if rank.steady_steps]
    if not ranks:
        raise InputError("traces", str(folder), _reason(report))
    return _night(scenario, around, folder, ranks, report), report


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


def _reason(report: TraceReport) -> str:
    if report.profile.ranks:
        return NO_STEPS
    file, reason = report.profile.unreadable[0]
    return f"no trace could be read; {file}: {reason}"


def _night(
    scenario: Scenario, around: Surroundings, folder: Path, ranks: list[RankProfile], report: TraceReport
) -> Night:
    terms_s = _terms(scenario, ranks)
    step_s = sum(terms_s.values())
    own_s = {rank.rank: _own_work_s(rank) for rank in ranks}
    unread = len(report.profile.unreadable)
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
    whole = add_breakdowns([steady_breakdown(rank) for rank in ranks])
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
    whole = steady_breakdown(rank)
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
    mfu, predicted_s = predicted["mfu"], predicted["step_time_s"]
    return float(mfu) * float(predicted_s) / step_time_s


def with_plan(around: Surroundings, scenario: Scenario) -> Surroundings:
    """The whole plan that ran, with its defaults."""
    plan = scenario.plan.model_dump(mode="json") if scenario.plan else {}
    return Surroundings(versions=around.versions, plan=plan, nodes=around.nodes, data=around.data)
