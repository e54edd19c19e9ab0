"""Faults in real traces: do the expert rules find cause, rank and lever by themselves?

    python -m benchmarks.faults [--traces DIR] [--misses] [--recorded]

First in recorded traces, then (unless --recorded) in those of a simulated cluster of 2 to 64 nodes
(`benchmarks/cluster_faults.py`).

Thirty cases: late hosts, slow devices and slow links put into recorded timelines, and traces given with the
scenario of another device or another plan. `developed` are those that the rules were written with, `held out`
other ranks, magnitudes and recordings.

Faults are simulated, not recorded: the kernels and gaps of a real trace are moved in time as the fault would
move them. Between two collectives a rank keeps its own work; a collective ends for all ranks at once, when
the last one has arrived and the data has been moved. The same recording without the fault must not be found
guilty of it: such a case shows nothing and counts as wrong.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from benchmarks.cluster_faults import Half, report
from tools.model.predict import predict
from tools.scenario import Scenario, parse_scenario
from tools.trace.causes import CAUSES, Cause, CauseFinding
from tools.trace.classify import COMMUNICATION, COMPUTE, CommunicationPatterns, classify, load_patterns
from tools.trace.folder import FolderProfile
from tools.trace.kineto import read_kineto
from tools.trace.match import match_scenario, trace_facts, with_match
from tools.trace.rank_profile import RankProfile, profile_rank
from tools.trace.record import Integers, RankTrace, Spans, cover, find_launches
from tools.trace.report import build_report

LAUNCH_AHEAD_NS = 1000
"""How long before its kernel a late host finishes a launch."""


KERNELS_PER_CUT = 40


@dataclass(frozen=True)
class SimulatedFault:
    """What is wrong with a run; ranks that are not named are healthy."""

    host_delay_ns: Mapping[int, int] = field(default_factory=dict)
    """By rank: how much later its host launches the work after a collective."""
    every: int = 1
    """Only after every so many collectives."""
    device_slowdown: Mapping[int, float] = field(default_factory=dict)
    """By rank: how many times longer each kernel takes."""
    link_slowdown: float = 1.0
    """How many times longer every transfer takes."""


@dataclass
class _Rank:
    """A recorded rank, and where its times have moved so far."""

    trace: RankTrace
    starts_ns: Integers
    ends_ns: Integers
    """Of its collectives, in order."""
    busy_start_ns: Integers
    busy_end_ns: Integers
    """When some compute kernel runs."""
    old_ns: list[int] = field(default_factory=list)
    new_ns: list[int] = field(default_factory=list)
    """Knots of the map from recorded to simulated time."""
    delays: list[tuple[int, int, int]] = field(default_factory=list)
    """Recorded start and end of the work that a late host held back, and when it resumes."""

    def knot(self, old_ns: int, new_ns: int) -> None:
        self.old_ns.append(old_ns)
        self.new_ns.append(new_ns)

    def span(self, place: int, count: int) -> tuple[int, int]:
        """From the end of one collective to the start of the next, as recorded."""
        device = self.trace.device
        first = int(self.ends_ns[place - 1]) if place else int(device.start_ns.min())
        last = int(self.starts_ns[place]) if place < count else int(device.end_ns.max())
        return first, max(first, last)

    def work(self, first: int, last: int, begin_ns: int, delay_ns: int, slowdown: float) -> int:
        """Moves what the rank does between two collectives; when it has done it."""
        now, cursor = begin_ns, first
        self.knot(first, now)
        inside = (self.busy_start_ns < last) & (self.busy_end_ns > first)
        starts = np.clip(self.busy_start_ns[inside], first, last).tolist()
        ends = np.clip(self.busy_end_ns[inside], first, last).tolist()
        for start, end in zip(starts, ends, strict=True):
            if delay_ns and start > first:
                # Not inside a kernel: a late host keeps the device idle, it stretches nothing.
                now += delay_ns
                self.knot(cursor + 1, now)
                self.delays.append((cursor, last, now))
                delay_ns = 0
            now += max(start - cursor, 0)
            self.knot(start, now)
            now += int((end - start) * slowdown)
            self.knot(end, now)
            cursor = max(cursor, end)
        now += max(last - cursor, 0)
        self.knot(last, now)
        return now


def simulate(
    traces: Sequence[RankTrace],
    fault: SimulatedFault,
    patterns: CommunicationPatterns,
    recorded: Sequence[RankTrace] = (),
) -> list[RankProfile]:
    """The profiles of the same run with the fault in it; as recorded if there is none.

    `recorded` are all ranks of the run, if only some of them are used: the last to arrive at a collective
    shows how long its transfer takes.
    """
    if fault == SimulatedFault() and not recorded:
        return [profile_rank(trace, patterns) for trace in traces]
    ranks = [_read(trace, patterns) for trace in traces]
    count = min(len(rank.starts_ns) for rank in ranks)
    seen = [_read(trace, patterns) for trace in recorded] or ranks
    transfer_ns = np.min([(rank.ends_ns - rank.starts_ns)[:count] for rank in seen], axis=0)
    # All ranks start together on one clock: recorded clocks differ by a constant only.
    now = 0
    for place in range(count + 1):
        is_late = place > 0 and place % fault.every == 0
        arrivals = [
            rank.work(
                *rank.span(place, count),
                now,
                fault.host_delay_ns.get(number, 0) if is_late else 0,
                fault.device_slowdown.get(number, 1.0),
            )
            for number, rank in enumerate(ranks)
        ]
        if place < count:
            now = max(arrivals) + int(transfer_ns[place] * fault.link_slowdown)
            for rank in ranks:
                rank.knot(int(rank.ends_ns[place]), now)
    return [profile_rank(_move_trace(rank), patterns) for rank in ranks]


def _read(trace: RankTrace, patterns: CommunicationPatterns) -> _Rank:
    work = classify(trace, patterns)
    positions = np.flatnonzero(work.work_class == COMMUNICATION)
    positions = positions[np.argsort(work.spans.start_ns[positions], kind="stable")]
    kernels = work.of_class(COMPUTE)
    busy = cover(kernels.start_ns, kernels.end_ns)
    starts_ns, ends_ns = work.spans.start_ns[positions], work.spans.end_ns[positions]
    if not len(positions):
        # A rank that talks to nobody is cut at its own kernels instead.
        starts_ns = ends_ns = busy.start_ns[KERNELS_PER_CUT::KERNELS_PER_CUT]
    return _Rank(trace, starts_ns, ends_ns, busy.start_ns, busy.end_ns)


def _move_trace(rank: _Rank) -> RankTrace:
    trace, old = rank.trace, np.asarray(rank.old_ns, dtype=np.int64)
    order = np.argsort(old, kind="stable")
    # Nanoseconds since 1970 are too long for a float: times count from the first knot.
    origin = old.min()
    before = (old[order] - origin).astype(np.float64)
    after = np.maximum.accumulate(np.asarray(rank.new_ns, dtype=np.float64)[order])

    def at(times_ns: Integers) -> Integers:
        since = (times_ns - origin).astype(np.float64)
        shifted = np.interp(since, before, after)
        # Outside the knots nothing is stretched.
        shifted = np.where(since < before[0], since - before[0] + after[0], shifted)
        shifted = np.where(since > before[-1], since - before[-1] + after[-1], shifted)
        return np.asarray(np.round(shifted), dtype=np.int64)

    def moved(spans: Spans) -> Spans:
        return replace(spans, start_ns=at(spans.start_ns), end_ns=at(spans.end_ns))

    device, launches = moved(trace.device), moved(trace.launches)
    return replace(
        trace,
        device=device,
        launches=_late_launches(trace, device, launches, rank.delays),
        host_ops=moved(trace.host_ops),
        annotations=moved(trace.annotations),
        device_annotations=moved(trace.device_annotations),
    )


def _late_launches(
    trace: RankTrace, device: Spans, launches: Spans, delays: Sequence[tuple[int, int, int]]
) -> Spans:
    """Work after a delay is launched when it can start, and not in advance as recorded."""
    due: NDArray[np.int64] = np.full(len(launches), -1, dtype=np.int64)
    found, _ = find_launches(trace.device.link, trace.launches)
    by_link = {link: place for place, link in enumerate(trace.launches.link.tolist())}
    for first, last, resumes_ns in delays:
        inside = (trace.device.start_ns > first) & (trace.device.start_ns <= last) & found
        for place in np.flatnonzero(inside).tolist():
            launch = by_link.get(int(trace.device.link[place]))
            if launch is not None and launches.end_ns[launch] < resumes_ns:
                due[launch] = int(device.start_ns[place]) - LAUNCH_AHEAD_NS
    late = due >= 0
    duration = launches.end_ns - launches.start_ns
    end_ns = np.where(late, np.maximum(due, launches.end_ns), launches.end_ns)
    return replace(launches, start_ns=np.where(late, end_ns - duration, launches.start_ns), end_ns=end_ns)


def relabelled(trace: RankTrace, rank: int) -> RankTrace:
    """The same recording as another rank of the job."""
    return replace(trace, distributed=replace(trace.distributed, rank=rank))


REPO = Path(__file__).resolve().parents[1]
TRACES = REPO.parent / "shared" / "traces"
BAR = 0.9
MS = 1_000_000
MEGATRON = "megatron_tp8"
CALM = (1, 1, 3, 3, 4, 5, 7, 7)
"""Ranks 0, 2 and 6 of the recording are late by themselves; others stand in for them where it says `calm`."""
GPT: dict[str, JsonValue] = {
    "model": {
        "num_hidden_layers": 40, "hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 64,
        "head_dim": 64, "vocab_size": 51200, "gated_mlp": False,
    },
    "cluster": {"device": "a100-sxm-80gb", "num_devices": 8},
    "training": {
        "seq_len": 2048, "global_batch_size": 4, "precision": "fp16", "framework": "megatron-core",
    },
    "plan": {
        "tp": 8, "pp": 1, "cp": 1, "dp": 1, "dp_shard": 1, "zero_stage": 0, "micro_batch_size": 4,
        "recompute": "none",
    },
}  # fmt: skip
"""The job of `megatron_tp8`, by its shapes."""


NO_FAULT = SimulatedFault()


@dataclass(frozen=True)
class Case:
    name: str
    cause: Cause
    ranks: tuple[int, ...] = ()
    """Empty: all alike."""
    trace: str = MEGATRON
    calm: bool = True
    fault: SimulatedFault = NO_FAULT
    scenario: dict[str, JsonValue] | None = None
    """Parts of the scenario that differ from the traced job; None: no scenario is given."""
    held_out: bool = False


def host(delay_ms: float, *ranks: int, every: int = 1) -> SimulatedFault:
    return SimulatedFault(host_delay_ns={rank: int(delay_ms * MS) for rank in ranks}, every=every)


def device(slowdown: float, *ranks: int) -> SimulatedFault:
    return SimulatedFault(device_slowdown=dict.fromkeys(ranks, slowdown))


def link(slowdown: float) -> SimulatedFault:
    return SimulatedFault(link_slowdown=slowdown)


def plan(**fields: int) -> dict[str, JsonValue]:
    base = GPT["plan"]
    return {"plan": {**(base if isinstance(base, dict) else {}), **fields}}


def batch(size: int) -> dict[str, JsonValue]:
    base = GPT["training"]
    return {"training": {**(base if isinstance(base, dict) else {}), "global_batch_size": size}}


def cluster(name: str, num_devices: int = 8) -> dict[str, JsonValue]:
    return {"cluster": {"device": name, "num_devices": num_devices}}


CASES = (
    Case("late host, rank 2", "late_host", (2,), fault=host(3, 2)),
    Case("late host, rank 0 at times", "late_host", (0,), fault=host(8, 0, every=4)),
    Case("late hosts, ranks 1 and 6", "late_host", (1, 6), fault=host(2, 1, 6)),
    Case("recorded late hosts", "late_host", (0, 6), calm=False),
    Case("slow device, rank 4", "slow_device", (4,), fault=device(1.6, 4)),
    Case("slow device, rank 1", "slow_device", (1,), fault=device(2.0, 1)),
    Case("slow link, a fifth", "slow_link", fault=link(5)),
    Case("other device", "trace_mismatch", scenario=cluster("h100-sxm-80gb")),
    Case("other plan, tp 4", "trace_mismatch", scenario=plan(tp=4, dp=2, micro_batch_size=2)),
    Case("other size", "trace_mismatch",
         scenario=cluster("a100-sxm-80gb", 64) | plan(dp=8, micro_batch_size=1) | batch(8)),
    Case("late host, rank 7", "late_host", (7,), fault=host(1.5, 7), held_out=True),
    Case("late host, rank 5 at times", "late_host", (5,), fault=host(20, 5, every=10), held_out=True),
    Case("late hosts, ranks 3 and 4", "late_host", (3, 4), fault=host(4, 3, 4), held_out=True),
    Case("late host among late hosts", "late_host", (3,), calm=False, fault=host(30, 3), held_out=True),
    Case("late host alone, V100", "late_host", trace="single/v100_ns_resolution.json.gz", held_out=True,
         fault=host(2, 0)),
    Case("late host alone, V100 of two", "late_host", trace="single/a100_test.json.gz", held_out=True,
         fault=host(4, 0)),
    Case("slow device, rank 6", "slow_device", (6,), fault=device(1.35, 6), held_out=True),
    Case("slow device, rank 3", "slow_device", (3,), fault=device(1.8, 3), held_out=True),
    Case("slow device, rank 0", "slow_device", (0,), fault=device(2.5, 0), held_out=True),
    Case("slow devices, ranks 2 and 5", "slow_device", (2, 5), fault=device(1.7, 2, 5), held_out=True),
    Case("slow link, a third", "slow_link", fault=link(3), held_out=True),
    Case("slow link, a tenth", "slow_link", fault=link(10), held_out=True),
    Case("slow link among late hosts", "slow_link", calm=False, fault=link(40), held_out=True),
    Case("slow link seen by one rank", "slow_link", trace="single/a100_test.json.gz", fault=link(6),
         held_out=True),
    Case("slow link seen by one rank, A100", "slow_link", trace="single/a100_control.json.gz", fault=link(12),
         held_out=True),
    Case("other device, B200", "trace_mismatch", trace="single/b200_eager.json.gz",
         scenario=cluster("h200-sxm-141gb"), held_out=True),
    Case("other device, V100", "trace_mismatch", trace="single/v100_ns_resolution.json.gz",
         scenario=cluster("a100-sxm-40gb", 1) | plan(tp=1), held_out=True),
    Case("other device, no accelerator", "trace_mismatch", trace="single/cpu_only_rank34.json.gz",
         scenario=cluster("a100-sxm-80gb"), held_out=True),
    Case("other plan, tp 2", "trace_mismatch", scenario=plan(tp=2, pp=4, micro_batch_size=2), held_out=True),
    Case("other plan, no tp", "trace_mismatch", scenario=plan(tp=1, dp=8, micro_batch_size=1) | batch(8),
         held_out=True),
)  # fmt: skip


@cache
def _traces(folder: Path, name: str) -> list[RankTrace]:
    path = folder / name
    files = sorted(path.glob("*.json.gz")) if path.is_dir() else [path]
    return [read_kineto(file) for file in files]


def profiles_of(case: Case, folder: Path) -> list[RankProfile]:
    recorded: Sequence[RankTrace] = _traces(folder, case.trace)
    if case.calm and case.trace == MEGATRON:
        traces = [relabelled(recorded[source], rank) for rank, source in enumerate(CALM)]
        profiles = simulate(traces, case.fault, load_patterns(), recorded)
    else:
        profiles = simulate(recorded, case.fault, load_patterns())
    for number, profile in enumerate(profiles):
        profile.rank = profile.rank if profile.rank >= 0 else number
    return profiles


def find(case: Case, folder: Path) -> CauseFinding:
    """What the rules put first."""
    profiles = profiles_of(case, folder)
    report = build_report(FolderProfile(case.trace, profiles))
    diagnosis = report.diagnosis
    if diagnosis is None:
        raise ValueError(f"{case.name}: no trace can be read")
    if case.scenario is not None:
        scenario: Scenario = parse_scenario(GPT | case.scenario)
        facts = trace_facts(profiles)
        match = match_scenario(facts, scenario, predict([scenario])[0].step_time_s)
        diagnosis = with_match(diagnosis, match, facts.step_time_s)
    return diagnosis.causes[0]


def judge(case: Case, finding: CauseFinding) -> str:
    """What is wrong with the answer; empty if nothing is."""
    if finding.cause != case.cause:
        return f"cause {finding.cause} instead of {case.cause} ({finding.summary})"
    if case.ranks and tuple(finding.ranks) != case.ranks:
        return f"ranks {finding.ranks} instead of {list(case.ranks)}"
    return "" if finding.lever == CAUSES[case.cause][1] else f"lever {finding.lever!r}"


def judged(folder: Path) -> Iterator[tuple[Case, str]]:
    for case in CASES:
        yield case, judge(case, find(case, folder)) or judge_control(case, folder)


def judge_control(case: Case, folder: Path) -> str:
    """What is wrong with a case whose answer does not come from its fault; empty if nothing is."""
    if case.fault == NO_FAULT and case.scenario is None:
        return ""  # the fault is in the recording
    true_job: dict[str, JsonValue] | None = (
        {} if case.scenario is not None and case.trace == MEGATRON else None
    )
    healthy = find(replace(case, fault=NO_FAULT, scenario=true_job), folder)
    return "" if judge(case, healthy) else "the same is found without the fault"


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--traces", type=Path, default=TRACES, metavar="DIR", help="the recorded traces")
    arguments.add_argument("--misses", action="store_true", help="show what was found instead")
    arguments.add_argument("--recorded", action="store_true", help="only faults put into recorded traces")
    options = arguments.parse_args()
    if not options.traces.is_dir():
        print(f"faults: {options.traces} is not there: nothing to put faults into", file=sys.stderr)
        return 2
    results = list(judged(options.traces))
    print(f"{'cases':12}{'count':>7}{'right':>7}{'share':>8}{'bar':>6}")
    for name, held_out in (("developed", False), ("held out", True)):
        chosen = [fault for case, fault in results if case.held_out == held_out]
        right = sum(not fault for fault in chosen)
        print(f"{name:12}{len(chosen):>7}{right:>7}{right / len(chosen):>8.1%}{BAR:>6.0%}")
    if options.misses:
        for case, fault in results:
            if fault:
                print(f"    {case.name}: {fault}")
    reached = [sum(not fault for _, fault in results) >= BAR * len(results)]
    if not options.recorded:
        reached += [report(half, options.misses) for half in get_args(Half)]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    raise SystemExit(main())
