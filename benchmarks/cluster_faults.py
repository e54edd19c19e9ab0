"""Faults of jobs of 2 to 64 nodes: does `asap diagnose` name cause, place and lever by itself?

    python -m benchmarks.cluster_faults [--half developed|held-out] [--misses]

The traces are made by `benchmarks/simulated_cluster.py`. The rules were written with the cases called
`developed`; those called `held-out` have other seeds, sizes, ranks and magnitudes, were written before the
rules and looked at after them. A fault that costs less than 8% of the step may also be left unnamed: what the
simulator's own step time loses decides, not the diagnosis. Where the job's groups cannot tell a card from its
rail or from the whole network, the widest part that fits is the right place.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from benchmarks.simulated_cluster import (
    PER_NODE,
    ClusterFault,
    FaultKind,
    Layout,
    SimulatedCluster,
    SimulatedJob,
    step_seconds,
)
from tools.trace.causes import CAUSES, FAULTS, Cause
from tools.trace.report import analyse_folder

Half = Literal["developed", "held-out"]
BAR, HEALTHY_BAR, CLEAR_LOSS = 0.9, 0.02, 0.08
NODES: dict[Half, tuple[int, ...]] = {"developed": (2, 4, 8, 16), "held-out": (2, 3, 4, 6, 12)}
MANY_NODES: dict[Half, int] = {"developed": 32, "held-out": 64}
SEEDS: dict[Half, int] = {"developed": 11, "held-out": 4242}
HEALTHY_CASES = 30
NETWORK: frozenset[FaultKind] = frozenset({"card", "rail", "switch", "node_cards"})
CAUSE_OF: dict[FaultKind, str] = {
    **dict.fromkeys(NETWORK, "slow_link"),
    "throttled": "slow_device",
    "late_host": "late_host",
    "launch_bound": "late_host",
    "data_loader": "data_loading",
    "experts": "imbalance",
    "numa": "cpu_binding",
    "retries": "allocator_retries",
    "synchronisation": "synchronisation",
    "recompilation": "recompilation",
    "checkpoint": "checkpointing",
    "garbage_collection": "host_pauses",
}
LAYER_BYTES: dict[Layout, float] = {
    "fsdp": 300e6,
    "tp_dp": 900e6,
    "hsdp": 250e6,
    "moe": 200e6,
    "tp_pp_dp": 900e6,
}
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


@dataclass(frozen=True)
class ClusterCase:
    half: Half
    job: SimulatedJob
    fault: ClusterFault

    @property
    def name(self) -> str:
        fault, job = self.fault, self.job
        size = (
            f" at {fault.speed:.0%}"
            if fault.speed < 1
            else f" {fault.delay_ms:g} ms"
            if fault.delay_ms
            else ""
        )
        who = f" of ranks {','.join(map(str, fault.ranks[:8]))}" if fault.ranks else ""
        return f"{fault.kind}{size}{who}, {job.nodes} nodes {job.machine}, {job.layout}, seed {job.seed}"


Hit = int | Literal["node", "socket"]


@dataclass(frozen=True)
class Kind:
    """What is drawn: one case for each."""

    kind: FaultKind
    speed: float = 1.0
    hit: Hit = 0
    """How many ranks, or those of a node or of half of one; 0: all."""
    delay_ms: float = 0.0
    layouts: tuple[Layout, ...] = LAYOUTS
    scale: float = 1.0
    marked: bool = False


ONE_GROUP: tuple[Layout, ...] = ("fsdp",)
RAILS: tuple[Layout, ...] = ("tp_dp", "hsdp")
CROSSED: tuple[Layout, ...] = ("moe", "tp_pp_dp")
KINDS = (
    *(
        Kind("card", speed, 1, layouts=layouts)
        for speed in (0.9, 0.75, 0.5, 0.2, 0.05)
        for layouts in (ONE_GROUP, RAILS, CROSSED)
    ),
    *(Kind("rail", speed, layouts=RAILS + CROSSED) for speed in (0.75, 0.5, 0.5, 0.2)),
    *(Kind("switch", 0.5, layouts=layouts) for layouts in (ONE_GROUP, ("moe",), RAILS)),
    Kind("switch", 0.3),
    *(Kind("node_cards", speed, layouts=CROSSED) for speed in (0.5, 0.3)),
    *(Kind("throttled", speed, 1) for speed in (0.8, 0.7)),
    *(Kind("throttled", 0.6, 2), Kind("throttled", 0.75, "node")),
    *(Kind("late_host", hit=1, delay_ms=ms) for ms in (1.0, 2.0)),
    *(Kind("late_host", hit="node", delay_ms=0.8), Kind("late_host", hit=2, delay_ms=1.5)),
    *(Kind("data_loader", hit=1, delay_ms=12.0), Kind("data_loader", hit="node", delay_ms=20.0)),
    Kind("data_loader", delay_ms=15.0),
    *(Kind("experts", speed, hit, layouts=("moe",)) for speed, hit in ((0.6, 1), (0.5, 2), (0.4, 1))),
    *(
        Kind("numa", speed, "socket", layouts=("tp_dp", "fsdp", "hsdp"), scale=0.15)
        for speed in (0.35, 0.25, 0.3)
    ),
    *(Kind("retries", delay_ms=3.0), Kind("retries", hit=1, delay_ms=4.0)),
    Kind("retries", hit="node", delay_ms=2.0),
    *(Kind("synchronisation", delay_ms=ms) for ms in (0.6, 1.0, 1.5)),
    *(Kind("recompilation", hit=hit, delay_ms=ms, marked=True) for hit, ms in ((0, 150.0), (1, 250.0))),
    *(Kind("checkpoint", delay_ms=120.0, marked=True), Kind("checkpoint", delay_ms=200.0)),
    *(Kind("garbage_collection", delay_ms=ms) for ms in (60.0, 120.0)),
    *(Kind("launch_bound", layouts=("tp_dp",), scale=0.025) for _ in range(2)),
    *(Kind("none") for _ in range(HEALTHY_CASES)),
)


def make_cases(half: Half) -> list[ClusterCase]:
    """The kinds in their order, with all else drawn by the half's seed; then two of many nodes."""
    rng = np.random.default_rng(SEEDS[half])
    cases = [_draw(half, kind, rng) for kind in KINDS]
    many = SimulatedJob(MANY_NODES[half], "fsdp", layers=3, layer_bytes=300e6, seed=SEEDS[half])
    on_rails = replace(many, layout="tp_dp", layer_bytes=900e6)
    cases.append(ClusterCase(half, many, ClusterFault()))
    return [*cases, ClusterCase(half, on_rails, ClusterFault("rail", speed=0.4, rail=5))]


def _draw(half: Half, kind: Kind, rng: np.random.Generator) -> ClusterCase:
    layout = kind.layouts[int(rng.integers(len(kind.layouts)))]
    nodes = int(rng.choice([n for n in NODES[half] if layout not in CROSSED or (n % 2 == 0 and n >= 4)]))
    machine = str(rng.choice(["a100", "h100"]))
    ranks: tuple[int, ...] = ()
    if isinstance(kind.hit, str):
        first = int(rng.integers(nodes)) * PER_NODE
        ranks = tuple(range(first + (4 if kind.hit == "socket" else 0), first + PER_NODE))
    elif kind.hit:
        ranks = tuple(sorted(rng.choice(nodes * PER_NODE, kind.hit, replace=False).tolist()))
    rail = int(rng.integers(PER_NODE)) if kind.kind == "rail" else 0
    node = int(rng.integers(nodes)) if kind.kind == "node_cards" else 0
    # Small kernels go with a small model, whose messages still are no matter of latency.
    weight = float(rng.uniform(0.85, 1.25)) if kind.scale == 1 else max(kind.scale / 2, 0.02)
    job = SimulatedJob(
        nodes,
        layout,
        machine,
        layers=5,
        layer_bytes=LAYER_BYTES[layout] * weight,
        kernel_scale=kind.scale,
        seed=int(rng.integers(1, 10**6)),
    )
    fault = ClusterFault(kind.kind, ranks, kind.speed, rail, node, kind.delay_ms, kind.marked)
    return ClusterCase(half, job, fault)


def expected_ranks(case: ClusterCase) -> set[int]:
    """Whom the traces can blame; empty: all alike."""
    cluster, fault = SimulatedCluster(case.job, case.fault, traced=False).run(), case.fault
    everyone = set(range(cluster.world))
    if fault.kind not in NETWORK:
        return set(fault.ranks)
    used = {
        "fsdp": ("world",), "tp_dp": ("rail",), "hsdp": ("rail",), "moe": ("rail", "expert"),
        "tp_pp_dp": ("stage_rail", "stages"),
    }[case.job.layout]  # fmt: skip
    suspects = set(everyone)
    for family in used:
        groups = [
            set(members) for members in cluster.groups[family][1] if len(set(cluster.node[members])) > 1
        ]
        slow = [members for members in groups if any(cluster.card[list(members)] < 1)]
        if slow:
            suspects &= set().union(*slow)
    return suspects if suspects != everyone else set()


@dataclass(frozen=True)
class Judged:
    case: ClusterCase
    loss: float
    """Of the step, by the simulator."""
    problem: str
    """What is wrong with the answer; empty if nothing is."""


def judge(case: ClusterCase) -> Judged:
    with tempfile.TemporaryDirectory() as folder:
        cluster = SimulatedCluster(case.job, case.fault).run()
        cluster.write(Path(folder))
        diagnosis = analyse_folder(Path(folder), limits=None).report.diagnosis
    usual_s = step_seconds(case.job)
    loss = 1 - usual_s * 1e6 / cluster.step_us
    assert diagnosis is not None
    first = diagnosis.causes[0]
    found = f"{first.summary}; ranks {first.ranks}"
    if case.fault.kind == "none":
        return Judged(case, loss, f"false cause: {found}" if first.cause in FAULTS else "")
    cause, ranks = CAUSE_OF[case.fault.kind], expected_ranks(case)
    if first.cause not in FAULTS and loss < CLEAR_LOSS and case.fault.kind != "launch_bound":
        return Judged(case, loss, "")
    if first.cause != cause:
        return Judged(case, loss, f"cause is not {cause}: {found}")
    if case.fault.kind == "garbage_collection":
        # Each host pauses when it likes: whoever did, or all alike.
        ranks = set(first.ranks) & cluster.paused
    if set(first.ranks) != ranks:
        return Judged(case, loss, f"place is not {sorted(ranks)}: {found}")
    known: Cause = first.cause
    return Judged(case, loss, "" if first.lever == CAUSES[known][1] else f"lever: {first.lever}")


def judge_all(half: Half) -> Iterator[Judged]:
    return map(judge, make_cases(half))


def report(half: Half, misses: bool) -> bool:
    """Prints one half; whether it reaches the bars."""
    judged = list(judge_all(half))
    healthy = [each for each in judged if each.case.fault.kind == "none"]
    faulty = [each for each in judged if each.case.fault.kind != "none"]
    halved = [each for each in faulty if each.case.fault.kind in NETWORK and each.case.fault.speed == 0.5]
    false = [each for each in healthy if each.problem]
    rows = (
        ("cause, place and lever right", sum(not each.problem for each in faulty), len(faulty), BAR),
        ("network at half speed", sum(not each.problem for each in halved), len(halved), BAR),
        ("healthy with a false cause", len(false), len(healthy), HEALTHY_BAR),
    )
    for name, count, of, bar in rows:
        print(f"{half:12}{name:32}{count:>4} of {of:<4}{count / of:>8.1%}  bar {bar:.0%}")
    kinds: dict[str, list[bool]] = {}
    for each in judged:
        speed = each.case.fault.speed
        kind = f"card at {speed:.0%}" if each.case.fault.kind == "card" else each.case.fault.kind
        kinds.setdefault(kind, []).append(not each.problem)
    print("    " + ", ".join(f"{kind} {sum(right)}/{len(right)}" for kind, right in kinds.items()))
    for each in judged if misses else ():
        if each.problem:
            print(f"    {each.case.name} (costs {each.loss:.0%}): {each.problem}")
    return all(count / of >= bar if bar == BAR else count / of <= bar for _, count, of, bar in rows)


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--half", choices=get_args(Half), help="only these cases")
    arguments.add_argument("--misses", action="store_true", help="show what was found instead")
    options = arguments.parse_args()
    halves: tuple[Half, ...] = (options.half,) if options.half else get_args(Half)
    reached = [report(half, options.misses) for half in halves]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
