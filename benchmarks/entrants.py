"""Writes what is submitted to `make bench NAME=plans`: ASAP, baselines, peers from their checkouts.

    python -m benchmarks.entrants [NAME...] [--rows DIR] [--checkouts DIR]

Without a NAME: ASAP and the baselines, which need nothing else. A peer (calculon, llm-analysis, simumax,
primus) is imported from its folder in DIR and asked as benchmarks/peers.py says.
"""

import argparse
import gzip
import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from benchmarks.peers import Peer, RefusedError, calculon, llm_analysis, primus, simumax
from benchmarks.plans import ROWS, SUBMISSIONS, Prediction, Run, draws, mean_over, read_runs
from research.clusters import cluster_errors, learn_prior
from research.errors import build_residual, corrected_by
from research.fit import Table, fit, tabulate
from research.published import Measurement
from tools.errors import InputError
from tools.hardware import get_device
from tools.model.calibration import Calibration, shipped_calibration
from tools.model.constants import memory_settings, resolve
from tools.model.peaks import peak_reading
from tools.model.predict import predict, resolve_recompute
from tools.model.runs import Measured
from tools.model.runs import Run as OwnRun
from tools.model.update import calibrate
from tools.physics.encode import encode
from tools.physics.memory import GIB
from tools.physics.step import step_terms
from tools.scenario import Scenario, parse_scenario
from tools.scenario.spec import ClusterSpec, Plan, TrainingSpec

Entry = dict[str, Any]
"""A line of a submission."""
EFFICIENCIES = [percent / 100 for percent in range(20, 81, 5)]
PARTS: dict[str, type[BaseModel]] = {"cluster": ClusterSpec, "training": TrainingSpec, "plan": Plan}


@dataclass(frozen=True)
class Entrant:
    """A run as it is put to a cost model."""

    run: Run
    scenario: Scenario
    parameters: float
    active_parameters: float

    @property
    def step_flops(self) -> float:
        return 6 * self.active_parameters * self.run.tokens


def read_entrants(folder: Path) -> list[Entrant]:
    """Runs that ASAP's rules accept; what its scenario has no field for yet is left out."""
    found = []
    for run in read_runs(folder):
        scenario = readable(run)
        if scenario is not None:
            found.append((run, scenario))
    sizes = predict([scenario for _, scenario in found])
    return [
        Entrant(run, scenario, size.parameters, size.active_parameters)
        for (run, scenario), size in zip(found, sizes, strict=True)
    ]


def readable(run: Run) -> Scenario | None:
    data: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in run.settings.items():
        part, field = name.split(".")
        if part not in PARTS or field in PARTS[part].model_fields:
            data[part][field] = json.loads(value)
    try:
        return parse_scenario(data)
    except InputError:
        return None


def asap(entrants: Sequence[Entrant], calibration: Calibration | None = None) -> list[Entry]:
    predictions = predict([entrant.scenario for entrant in entrants], calibration)
    return [
        _entry(e.run, Prediction(p.step_time_s, p.peak_memory_gib, p.fits))
        for e, p in zip(entrants, predictions, strict=True)
    ]


def _entry(run: Run, prediction: Prediction) -> Entry:
    time_s, memory_gib = prediction.step_time_s, prediction.peak_memory_gib
    return {
        "id": run.id,
        "step_time_s": None if time_s is None else float(f"{time_s:.5g}"),
        "peak_memory_gib": None if memory_gib is None else float(f"{memory_gib:.4g}"),
        "fits": prediction.fits,
    }


def asap_left_out(entrants: Sequence[Entrant]) -> list[Entry]:
    """Constants, the residual and the prior of the calibration are made again without the row's source, and
    without every test source. What says how sure a memory prediction is, is the shipped one.
    """
    shipped = shipped_calibration()
    taught = [e for e in entrants if e.run.split != "test" and e.run.step_time_s is not None]
    table = tabulate([_measurement(e) for e in taught])
    bases = {
        source: _fitted(shipped, _without(table, source))
        for source in {e.run.source if e.run.split != "test" else "" for e in entrants}
    }
    left_out = corrected_by({source: bases[source] for source in set(table.sources)}, table)
    clusters = cluster_errors(table, left_out, shipped.intervals)
    entries = []
    for source, base in bases.items():
        mine = [e for e in entrants if (e.run.source if e.run.split != "test" else "") == source]
        entries += asap(mine, base)
        prior = learn_prior([cluster for cluster in clusters if cluster.source != source])
        entries += _calibrated(mine, replace(base, cluster_prior=prior))
    return entries


def _measurement(e: Entrant) -> Measurement:
    assert e.run.step_time_s is not None
    group = f"{e.run.cluster} {e.scenario.model.name}"
    peak = peak_reading(Measured(peak_memory_gib=e.run.peak_memory_gib))
    return Measurement(e.run.id, e.run.source, group, e.scenario, frozenset(), e.run.step_time_s, peak)


def _fitted(shipped: Calibration, table: Table) -> Calibration:
    shifts = fit(table, shipped.shifts).shifts
    seconds = step_terms(table.inputs, resolve(table.keys, shifts)).total
    residual = build_residual(table, table.sources, seconds, shipped.residual.prior)
    return replace(shipped, shifts=shifts, residual=residual)


def _without(table: Table, source: str) -> Table:
    return table.take(np.flatnonzero(np.array(table.sources) != source))


def _calibrated(entrants: Sequence[Entrant], base: Calibration) -> list[Entry]:
    """The calibration task: `asap calibrate` is given the runs of a draw."""
    scenarios = {e.run.id: e.scenario for e in entrants}
    entries = []
    for draw in draws(e.run for e in entrants):
        given = [
            OwnRun(scenario=scenarios[r.id], measured=Measured(step_time_s=r.step_time_s), id=r.id)
            for r in draw.given
        ]
        calibrated = calibrate(given, base).calibration
        predictions = predict([scenarios[run.id] for run in draw.judged], calibrated)
        entries += [
            {
                "id": r.id,
                "given": draw.shots,
                "draw": draw.number,
                "step_time_s": float(f"{p.step_time_s:.4g}"),
            }
            for r, p in zip(draw.judged, predictions, strict=True)
        ]
    return entries


def rule_of_thumb(entrants: Sequence[Entrant]) -> list[Entry]:
    """6 N D at the share of the 16-bit peak that other training sources reach on this device generation
    (the median of their medians); 18 bytes for each parameter of a shard, of which ZeRO 1, 2 and 3 shard 12,
    16 and 18; no activations.
    """
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    for e in entrants:
        if e.run.split == "train" and e.run.step_time_s:
            shares[_generation(e), e.run.source].append(e.step_flops / e.run.step_time_s / _peak_flops(e))
    entries = []
    for e in entrants:
        others = {key: float(np.median(each)) for key, each in shares.items() if key[1] != e.run.source}
        alike = [share for key, share in others.items() if key[0] == _generation(e)]
        time_s = e.step_flops / _peak_flops(e) / float(np.median(alike or list(others.values())))
        memory_gib = _state_gib(e)
        fits = memory_gib <= get_device(e.scenario.cluster.device).memory_bytes / GIB
        entries.append(_entry(e.run, Prediction(time_s, memory_gib, fits)))
    return entries


def _generation(e: Entrant) -> str:
    return get_device(e.scenario.cluster.device).generation


def _peak_flops(e: Entrant) -> float:
    """Of all devices, at 16 bits: the rule knows no other precision."""
    return get_device(e.scenario.cluster.device).peak_flops["bf16"] * e.scenario.cluster.num_devices


def _state_gib(e: Entrant) -> float:
    plan, m = e.scenario.plan, e.scenario.model
    assert plan is not None
    experts = 0.0
    if m.is_moe and m.num_experts > m.num_experts_per_tok:
        experts = (e.parameters - e.active_parameters) / (1 - m.num_experts_per_tok / m.num_experts)
    held = (e.parameters - experts) / (plan.tp * plan.pp) + experts / (plan.ep * plan.etp * plan.pp)
    shards = max(plan.dp_shard, 1)
    whole_bytes = {0: 18, 1: 6, 2: 2, 3: 0}[plan.zero_stage]
    return held * (whole_bytes + (18 - whole_bytes) / shards) / GIB


def nearest_run(entrants: Sequence[Entrant]) -> list[Entry]:
    """The most alike run of another training source, times the ratio of FLOPs per peak of all devices."""
    known = [e for e in entrants if e.run.split == "train" and e.run.step_time_s]
    features = {e.run.id: _features(e) for e in entrants}
    entries = []
    for e in entrants:
        others = [other for other in known if other.run.source != e.run.source]
        near = min(others, key=lambda other: _distance(features[e.run.id], features[other.run.id]))
        assert near.run.step_time_s is not None
        ratio = e.step_flops / _peak_flops(e) / (near.step_flops / _peak_flops(near))
        entries.append(_entry(e.run, Prediction(near.run.step_time_s * ratio, None, None)))
    return entries


Features = tuple[np.ndarray[Any, np.dtype[np.float64]], tuple[object, ...]]


def _features(e: Entrant) -> Features:
    """Sizes in doublings, and what is equal or not."""
    s, plan = e.scenario, e.scenario.plan
    assert plan is not None
    sizes = [e.active_parameters, e.parameters, s.training.seq_len, s.cluster.num_devices, plan.tp, plan.pp]
    kinds = (_generation(e), s.training.precision, s.training.framework, s.model.is_moe, plan.zero_stage == 3)
    return np.log2(np.array(sizes, dtype=np.float64)), kinds


def _distance(one: Features, other: Features) -> float:
    unlike = sum(a != b for a, b in zip(one[1], other[1], strict=True))
    return float(np.abs(one[0] - other[0]).sum()) + 3.0 * unlike


def experts_plan(entrants: Sequence[Entrant]) -> list[Entry]:
    """Prefers the plan most like the recipe that another source publishes for the most alike model on this
    device generation. Its times are ranks, and it says nothing of memory.
    """
    recipes: dict[str, list[Entrant]] = defaultdict(list)
    for e in entrants:
        if e.run.split == "train" and e.run.step_time_s and e.run.source != "usp":
            recipes[_generation(e)].append(e)
    entries = []
    for e in entrants:
        others = [other for other in recipes[_generation(e)] if other.run.source != e.run.source]
        if others:
            recipe = min(others, key=lambda other: _unlike_workload(e, other))
            rank = (1.0 + _unlike_plan(e, recipe)) * e.run.tokens
            entries.append(_entry(e.run, Prediction(rank, None, None)))
    return entries


def _unlike_workload(one: Entrant, other: Entrant) -> float:
    sizes = [
        (e.active_parameters, e.parameters, e.scenario.training.seq_len, e.scenario.cluster.num_devices)
        for e in (one, other)
    ]
    unlike = one.scenario.model.is_moe != other.scenario.model.is_moe
    return float(np.abs(np.log2(sizes[0]) - np.log2(sizes[1])).sum()) + 3.0 * unlike


def _unlike_plan(one: Entrant, recipe: Entrant) -> float:
    """Doublings between degrees and micro-batches, and steps between sharding and recomputation."""
    own, theirs = one.scenario.plan, recipe.scenario.plan
    assert own is not None
    assert theirs is not None
    degrees = [(p.tp, p.pp, p.cp, p.ep, p.micro_batch_size) for p in (own, theirs)]
    doublings = float(np.abs(np.log2(degrees[0]) - np.log2(degrees[1])).sum())
    return doublings + abs(own.zero_stage - theirs.zero_stage) + (own.recompute != theirs.recompute)


def peer(entrants: Sequence[Entrant], peer_of: Callable[[Scenario], Peer]) -> list[Entry]:
    """A plan fits if what the peer says it needs is on the device. Recomputation that a source does not
    state is what ASAP assumes.
    """
    inputs, keys = encode([e.scenario for e in entrants])
    settings = memory_settings(keys.framework, [e.scenario.training.precision for e in entrants])
    recomputed = np.broadcast_to(resolve_recompute(inputs, settings).recompute, len(entrants))
    entries = []
    for e, recompute in zip(entrants, recomputed, strict=True):
        assert e.scenario.plan is not None
        plan = {**e.scenario.plan.model_dump(exclude={"schedule"}), "recompute": int(recompute)}
        try:
            figures = peer_of(e.scenario)(plan)
        except RefusedError:
            continue
        memory = figures.peak_memory_gib
        fits = memory <= get_device(e.scenario.cluster.device).memory_bytes / GIB
        time_s = None if math.isnan(figures.step_time_s) else figures.step_time_s
        entries.append(_entry(e.run, Prediction(time_s, memory, fits)))
    return entries


def llm_analysis_entry(entrants: Sequence[Entrant]) -> tuple[list[Entry], str]:
    """It needs the share of peak FLOP/s as an input: it gets, for each device generation, the one that makes
    its error over all runs least, which flatters it.
    """
    best: dict[str, tuple[float, float, list[Entry]]] = {}
    by_generation = defaultdict(list)
    for e in entrants:
        by_generation[_generation(e)].append(e)
    for generation, alike in by_generation.items():
        measured = {e.run.id: (e.run.source, e.run.step_time_s) for e in alike if e.run.step_time_s}
        for efficiency in EFFICIENCIES:
            entries = peer(alike, lambda scenario: llm_analysis(scenario, efficiency))  # noqa: B023
            errors = [
                (measured[x["id"]][0], abs(x["step_time_s"] / measured[x["id"]][1] - 1))
                for x in entries
                if x["id"] in measured
            ]
            error = mean_over(errors)
            if error is not None and (generation not in best or error < best[generation][0]):
                best[generation] = error, efficiency, entries
    used = ", ".join(f"{name} {share:.0%}" for name, (_, share, _) in best.items())
    return [entry for _, _, entries in best.values() for entry in entries], f"efficiency {used}"


def refusals(folder: Path) -> list[Entry]:
    """Plans that break a rule of their framework, as ASAP knows them: all of them crashed."""
    return [_entry(run, Prediction(None, None, False)) for run in read_runs(folder) if readable(run) is None]


Maker = Callable[[Sequence[Entrant]], list[Entry]]
MAKERS: dict[str, tuple[Maker, Entry]] = {
    "asap": (
        asap,
        {"name": "ASAP, shipped", "settings": "its constants and residual have seen every source"},
    ),
    "asap-left-out": (
        asap_left_out,
        {"name": "ASAP, source left out", "settings": "fitted on the train sources but the row's own"},
    ),
    "rule-of-thumb": (rule_of_thumb, {"name": "rule of thumb", "settings": rule_of_thumb.__doc__}),
    "nearest-run": (nearest_run, {"name": "nearest run", "settings": nearest_run.__doc__}),
    "experts-plan": (
        experts_plan,
        {"name": "experts' plan", "ranks_only": True, "settings": experts_plan.__doc__},
    ),
}


OURS = "GPUs it does not describe: its nearest one with our catalogue's figures"
PeerMaker = Callable[[Sequence[Entrant], Path], tuple[list[Entry], str]]
PEERS: dict[str, tuple[str, str, str, PeerMaker]] = {
    "calculon": (
        "calculon",
        "calculon",
        "caa4b11 2024-02-22",
        lambda entrants, checkout: (peer(entrants, lambda s: calculon(s, checkout)), f"as it comes; {OURS}"),
    ),
    "llm-analysis": (
        "llm-analysis",
        "llm-analysis",
        "d841e40 2024-11-13",
        lambda entrants, checkout: llm_analysis_entry(entrants),
    ),
    "primus": (
        "Primus",
        "Primus projection",
        "fd1eeabb 2026-08-22",
        lambda entrants, checkout: (
            peer(entrants, primus),
            "memory of rank 0, --memory-mode simulate",
        ),
    ),
    "simumax": (
        "SimuMax",
        "SimuMax",
        "4dcaae5 2026-05-11",
        lambda entrants, checkout: (
            peer(entrants, lambda s: simumax(s, checkout)),
            f"analytical mode; {OURS}",
        ),
    ),
}
"""Folder of the checkout, title, the commit that was asked, and how."""


def write(name: str, head: Entry, entries: Iterable[Entry]) -> None:
    """Compressed without a time, so that the same predictions are the same file."""
    lines = [json.dumps(line, separators=(",", ":")) + "\n" for line in (head, *entries)]
    SUBMISSIONS.mkdir(exist_ok=True)
    packed = gzip.compress("".join(lines).encode(), mtime=0)
    (SUBMISSIONS / f"{name}.jsonl.gz").write_bytes(packed)
    print(f"{name}: {len(lines) - 1} lines, {len(packed) / 1000:.0f} kB")


def commit_of(folder: Path) -> str:
    asked = ["git", "-C", str(folder), "log", "-1", "--format=%h %cs"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join([*MAKERS, *PEERS])}")
    parser.add_argument("--rows", type=Path, default=ROWS, metavar="DIR")
    parser.add_argument("--checkouts", type=Path, default=Path("peers"), metavar="DIR", help="of the peers")
    args = parser.parse_args()
    if unknown := set(args.names) - MAKERS.keys() - PEERS.keys():
        parser.error(f"NAME: got {sorted(unknown)[0]}; allowed: {', '.join([*MAKERS, *PEERS])}")
    entrants = read_entrants(args.rows)
    for name in args.names or MAKERS:
        if name in PEERS:
            folder, title, commit, ask = PEERS[name]
            sys.path.append(str(args.checkouts / folder))  # last: SimuMax has a package `tools` too
            entries, settings = ask(entrants, args.checkouts / folder)
            write(name, {"name": title, "commit": commit, "settings": settings}, entries)
        else:
            make, head = MAKERS[name]
            refused = refusals(args.rows) if name.startswith("asap") else []
            write(name, {**head, "commit": commit_of(Path(__file__).parent)}, [*make(entrants), *refused])


if __name__ == "__main__":
    main()
