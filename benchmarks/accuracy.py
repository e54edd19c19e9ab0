"""How far off ASAP, llm-analysis and calculon are on published runs that a peer can represent.

    python -m benchmarks.accuracy [--measurements FILE] [--calculon DIR]

ASAP predicts each run by a fit that has not seen the run's group (source, device and model), as `make
validate` does. llm-analysis needs the share of peak FLOP/s as an input: it gets the one that makes its error
over all these runs least, which flatters it. calculon is used as it comes. Recomputation that a source does
not state is what ASAP assumes. Runs of very small models, which `make validate` keeps apart, are left out.
benchmarks/peers.py says what a peer cannot represent.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import Figures, Peer, Plan, RefusedError, calculon, llm_analysis
from research.fit import cross_validate, group_folds, tabulate
from research.published import RUNS, Measurement, measurements, read_runs
from tools.errors import InputError
from tools.model.constants import memory_settings, resolve
from tools.model.predict import evaluate
from tools.physics.memory import GIB
from tools.scenario import Scenario

EFFICIENCIES = [percent / 100 for percent in range(20, 81)]
Values = NDArray[np.float64]
"""One per run; NaN if there is none."""


@dataclass(frozen=True)
class Runs:
    scenarios: list[Scenario]
    plans: list[Plan]
    measured_s: Values
    measured_gib: Values
    asap_s: Values
    asap_gib: Values


def runs_of(rows: Sequence[Measurement]) -> Runs:
    table = tabulate(rows)
    settings = memory_settings(table.keys.framework, [row.scenario.training.precision for row in rows])
    costs = evaluate(table.inputs, resolve(table.keys, {}), settings)
    memories = [np.nan if row.peak_memory_gib is None else row.peak_memory_gib for row in rows]
    return Runs(
        scenarios=[row.scenario for row in rows],
        plans=[plan_of(row, int(done)) for row, done in zip(rows, costs.recompute, strict=True)],
        measured_s=np.where(table.headline, table.measured_s, np.nan),
        measured_gib=np.array(memories),
        asap_s=cross_validate(table, group_folds(table.groups)).predicted_s,
        asap_gib=costs.memory_bytes / GIB,
    )


def plan_of(row: Measurement, recompute: int) -> Plan:
    assert row.scenario.plan is not None
    return {**row.scenario.plan.model_dump(exclude={"schedule"}), "recompute": recompute}


def ask_all(runs: Runs, peer_of: Callable[[Scenario], Peer]) -> tuple[Values, Values]:
    """Step times and memories."""
    answers = [
        _ask(scenario, plan, peer_of) for scenario, plan in zip(runs.scenarios, runs.plans, strict=True)
    ]
    step_times_s = np.array([figures.step_time_s for figures in answers])
    return step_times_s, np.array([figures.peak_memory_gib for figures in answers])


def _ask(scenario: Scenario, plan: Plan, peer_of: Callable[[Scenario], Peer]) -> Figures:
    try:
        return peer_of(scenario)(plan)
    except RefusedError:
        return Figures(np.nan, np.nan)


def error(predicted: Values, measured: Values) -> Values:
    return np.abs(predicted / measured - 1)


def tuned_llm_analysis(runs: Runs) -> tuple[float, Values, Values]:
    """The step time is not quite inverse to the efficiency, so that each is tried."""

    def at(efficiency: float) -> tuple[float, Values, Values]:
        return efficiency, *ask_all(runs, lambda scenario: llm_analysis(scenario, efficiency))

    return min(map(at, EFFICIENCIES), key=lambda tried: float(np.nanmean(error(tried[1], runs.measured_s))))


def print_row(name: str, theirs: Values, ours: Values, measured: Values) -> None:
    both = np.isfinite(theirs) & np.isfinite(measured)
    cells = []
    for predicted in (theirs, ours):
        off = error(predicted[both], measured[both])
        cells.append(f"{off.mean():>8.1%} ({np.median(off):.1%})" if both.any() else "-")
    print(f"{name:36}{both.sum():>6}{cells[0]:>20}{cells[1]:>20}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder or JSONL file of published runs")
    parser.add_argument("--calculon", type=Path, default=Path("calculon"), metavar="DIR", help="its checkout")
    args = parser.parse_args()
    if not (args.calculon / "calculon").is_dir():
        parser.error(
            f"--calculon: got {args.calculon}; must be a checkout of github.com/calculon-ai/calculon"
        )
    if find_spec("llm_analysis") is None:
        parser.error("llm-analysis is not installed in this Python: make bench NAME=accuracy installs it")
    try:
        runs = runs_of(measurements(read_runs(args.runs)))
    except InputError as error:
        parser.error(str(error))
    is_moe = np.array([scenario.model.is_moe for scenario in runs.scenarios])
    efficiency, analysis_s, analysis_gib = tuned_llm_analysis(runs)
    calculon_s, calculon_gib = ask_all(runs, lambda scenario: calculon(scenario, args.calculon))
    times, memories = (runs.asap_s, runs.measured_s), (runs.asap_gib, runs.measured_gib)
    print(f"{'mean error (median)':36}{'runs':>6}{'the peer':>20}{'ASAP':>20}")
    print_row("step time: calculon", calculon_s, *times)
    print_row(f"step time: llm-analysis at {efficiency:.0%}", analysis_s, *times)
    print_row("  of which dense", np.where(is_moe, np.nan, analysis_s), *times)
    print_row("  of which mixtures of experts", np.where(is_moe, analysis_s, np.nan), *times)
    print_row("memory: calculon", calculon_gib, *memories)
    print_row("memory: llm-analysis", analysis_gib, *memories)


if __name__ == "__main__":
    main()
