"""`make bench-calibrate`: what a handful of a cluster's own runs is worth, on published measurements.

Every figure is of clusters whose whole source the fit and the prior of the calibration have not seen: both
are learned again without it. Few-shot: each cluster (a source's rows on one device, ten or more of them), so
many of its rows drawn at random, error on the rest over the error without. Replay: each measured plan of a
sweep is a trial, a crash costs one; beside it Optuna's TPE (if installed) and random order.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.testbed.layers import print_layers
from research.clusters import ClusterErrors, cluster_errors, learn_prior
from research.fit import (
    MEASUREMENTS,
    SWEEPS,
    Table,
    concat_tables,
    cross_validate,
    fit,
    source_folds,
    tabulate,
)
from research.published import SWEEP_SOURCE, Measurement, SweptPlan, read_measurements, read_sweep_plans
from tools.calibrate.runs import Measured, Run
from tools.calibrate.update import calibrate
from tools.cost.calibration import Calibration, known_of, shipped_calibration
from tools.cost.constants import resolve
from tools.cost.inputs import Array
from tools.cost.predict import predict
from tools.cost.step import step_breakdown
from tools.errors import AsapError
from tools.scenario import Scenario
from tools.trials.gain import expected_gains

DRAWS = 20
MIN_ROWS = 10
SHOTS = (3, 8)
NEAR = 1.05
FIRST_NEAR = 1.10
WRONG = (3.0, 1 / 3.0, 1000.0)
REPEATS = 20
"""Of the searchers that draw at random."""


@dataclass(frozen=True)
class World:
    """The measurements, and how far every cluster lies from a fit without its source."""

    rows: Sequence[Measurement]
    table: Table
    sweep: Table
    swept: Sequence[SweptPlan]
    clusters: Sequence[ClusterErrors]

    @classmethod
    def read(cls, measurements: Path, sweeps: Path) -> "World":
        rows, swept = read_measurements(measurements), read_sweep_plans(sweeps)
        table = tabulate(rows)
        own = [p.measurement for p in swept if p.measurement and p.measurement.source == SWEEP_SOURCE]
        sweep, start = tabulate(own), shipped_calibration().shifts
        by_source = cross_validate(table, source_folds(table.sources), sweep, start)
        without = fit(table, start).shifts
        sweep_s = step_breakdown(sweep.inputs, resolve(sweep.keys, without)).total
        clusters = [
            *cluster_errors(table, by_source.predicted_s, start),
            *cluster_errors(sweep, sweep_s, without),
        ]
        return cls(rows, table, sweep, swept, clusters)

    def without(self, source: str) -> Calibration:
        """The shipped calibration as it would be had nobody seen this source."""
        shipped = shipped_calibration()
        others = self.table.take(np.flatnonzero(np.array(self.table.sources) != source))
        train = others if source == SWEEP_SOURCE else concat_tables(others, self.sweep)
        known = known_of(train.keys, train.sources)
        return replace(
            shipped,
            shifts=fit(train, shipped.shifts).shifts,
            cluster_prior=learn_prior([cluster for cluster in self.clusters if cluster.source != source]),
            intervals=replace(
                shipped.intervals,
                stacks=sorted(known.stacks),
                frameworks=sorted(known.frameworks),
                generations=sorted(known.generations),
            ),
        )


def as_run(row: Measurement) -> Run:
    measured = Measured(step_time_s=row.step_time_s, peak_memory_gib=row.peak_memory_gib)
    return Run(row.scenario, measured, id=row.id)


def errors_of(predicted_s: Array, measured_s: Array) -> Array:
    return np.abs(predicted_s / measured_s - 1.0)


def seconds(scenarios: Sequence[Scenario], calibration: Calibration) -> Array:
    return np.array([prediction.step_time_s for prediction in predict(scenarios, calibration)])


@dataclass(frozen=True)
class FewShot:
    cluster: str
    rows: int
    shots: int
    error_before: float
    ratio: float
    coverage: float
    wrong_ratio: float
    """Error with a wrong row beside two right ones over that with the right ones alone, worst of WRONG."""


def few_shot(world: World, base: Calibration, cluster: ClusterErrors) -> Iterator[FewShot]:
    runs = [as_run(world.rows[i]) for i in cluster.rows]
    scenarios = [run.scenario for run in runs]
    measured_s = np.array([run.measured.step_time_s for run in runs])
    before = errors_of(seconds(scenarios, base), measured_s)
    for shots in SHOTS:
        rng = np.random.default_rng(0)
        errors, usual, inside = [], [], []
        wrong: dict[float, list[float]] = {factor: [] for factor in WRONG}
        for draw in range(DRAWS):
            chosen = rng.choice(len(runs), shots, replace=False)
            rest = np.setdiff1d(np.arange(len(runs)), chosen)
            given = [runs[i] for i in chosen]
            predictions = predict([scenarios[i] for i in rest], calibrate(given, base).calibration)
            predicted_s = np.array([p.step_time_s for p in predictions])
            errors.append(errors_of(predicted_s, measured_s[rest]).mean())
            usual.append(before[rest].mean())
            low, high = (
                np.array([getattr(p, f"step_time_{end}_s") for p in predictions]) for end in ("low", "high")
            )
            inside.append(np.mean((low <= measured_s[rest]) & (measured_s[rest] <= high)))
            if shots == SHOTS[0] and draw < 5:
                right_s = seconds([scenarios[i] for i in rest], calibrate(given[1:], base).calibration)
                right = errors_of(right_s, measured_s[rest]).mean()
                for factor in WRONG:
                    spoiled = [*given[1:], _times(given[0], factor)]
                    after_s = seconds([scenarios[i] for i in rest], calibrate(spoiled, base).calibration)
                    wrong[factor].append(errors_of(after_s, measured_s[rest]).mean() / right)
        worst = max((float(np.mean(values)) for values in wrong.values() if values), default=0.0)
        ratio = float(np.mean(errors) / np.mean(usual))
        name = f"{cluster.source} {cluster.device}"
        yield FewShot(name, len(runs), shots, float(before.mean()), ratio, float(np.mean(inside)), worst)


def _times(run: Run, factor: float) -> Run:
    wrong_s = (run.measured.step_time_s or 0.0) * factor
    return replace(run, measured=Measured(step_time_s=wrong_s), id="wrong")


def pair_errors(base: Calibration, runs: Sequence[Run]) -> tuple[float, float]:
    """Median error of the ratio of other plans' steps to a given one's, without and with its run."""
    scenarios = [run.scenario for run in runs]
    measured_s = np.array([run.measured.step_time_s for run in runs])
    general_s = seconds(scenarios, base)
    without, with_run = [], []
    for i, run in enumerate(runs):
        others = np.arange(len(runs)) != i
        true = measured_s[others] / measured_s[i]
        own_s = seconds(scenarios, calibrate([run], base, own=True).calibration)
        without.append(errors_of(general_s[others] / general_s[i], true))
        with_run.append(errors_of(own_s[others] / measured_s[i], true))
    return float(np.median(np.concatenate(without))), float(np.median(np.concatenate(with_run)))


@dataclass(frozen=True)
class Sweep:
    """One workload: its plans, and what each took; None for a crash."""

    name: str
    scenarios: Sequence[Scenario]
    times_s: Sequence[float | None]

    @property
    def best_s(self) -> float:
        return min(time for time in self.times_s if time is not None)

    def run(self, place: int) -> Run:
        time_s = self.times_s[place]
        return Run(self.scenarios[place], Measured(step_time_s=time_s), crashed=time_s is None, id=str(place))

    def is_near(self, place: int, within: float = NEAR) -> bool:
        time_s = self.times_s[place]
        return time_s is not None and time_s <= within * self.best_s


def sweeps_of(swept: Sequence[SweptPlan]) -> list[Sweep]:
    names = sorted({plan.workload for plan in swept})
    return [
        Sweep(
            name,
            [plan.scenario for plan in swept if plan.workload == name],
            [p.measurement.step_time_s if p.measurement else None for p in swept if p.workload == name],
        )
        for name in names
    ]


MAX_TRIALS = 60


def trials_by_gain(sweep: Sweep, base: Calibration) -> int:
    """Trials until one is near the best, by expected gain under the calibrated model."""
    runs: list[Run] = []
    left = list(range(len(sweep.scenarios)))
    for number in range(1, MAX_TRIALS + 1):
        calibration = calibrate(runs, base, own=True).calibration
        gains, predicted_s = expected_gains([sweep.scenarios[i] for i in left], calibration, runs)
        place = left[int(np.lexsort((predicted_s, -gains))[0])]
        if sweep.is_near(place):
            return number
        runs.append(sweep.run(place))
        left.remove(place)
    return MAX_TRIALS + 1


def trials_at_random(sweep: Sweep, seed: int) -> int:
    order = np.random.default_rng(seed).permutation(len(sweep.scenarios))
    return next(number for number, place in enumerate(order, start=1) if sweep.is_near(int(place)))


FIELDS = ("tp", "pp", "dp", "zero_stage", "micro_batch_size")
MAX_ASKED = 500
"""Of TPE: most combinations of fields are no plan of the sweep, and asking becomes slow."""


def trials_by_tpe(sweep: Sweep, seed: int) -> int:
    """Optuna's TPE over the same plans: a field at a time; what is no plan of the sweep costs nothing, and a
    search that asks for the same plans again and again counts as if the next one were near."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    plans = [scenario.plan for scenario in sweep.scenarios]
    values = {name: sorted({getattr(plan, name) for plan in plans}) for name in FIELDS}
    places = {tuple(getattr(plan, name) for name in FIELDS): i for i, plan in enumerate(plans)}
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=5))
    tried: set[int] = set()
    for _ in range(MAX_ASKED):
        trial = study.ask()
        chosen = tuple(trial.suggest_categorical(name, values[name]) for name in FIELDS)
        place = places.get(chosen)
        time_s = None if place is None else sweep.times_s[place]
        study.tell(trial, time_s if time_s is not None else 10.0 * sweep.best_s)
        if place is None or place in tried:
            continue
        tried.add(place)
        if sweep.is_near(place):
            return len(tried)
    return len(tried) + 1


def neighbours_of(sweep: Sweep, others: Sequence[Sweep]) -> list[Sweep]:
    """Workloads of the same model on another number of devices."""
    model = sweep.scenarios[0].model
    return [other for other in others if other is not sweep and other.scenarios[0].model == model]


def first_after_neighbour(sweep: Sweep, neighbour: Sweep, base: Calibration, seed: int) -> bool:
    """Whether the first proposal is near the best, after three measured plans of the neighbour."""
    ran = [i for i, time_s in enumerate(neighbour.times_s) if time_s is not None]
    drawn = np.random.default_rng(seed).choice(ran, min(3, len(ran)), replace=False)
    runs = [neighbour.run(int(i)) for i in drawn]
    calibration = calibrate(runs, base).calibration
    gains, predicted_s = expected_gains(sweep.scenarios, calibration, [])
    return sweep.is_near(int(np.lexsort((predicted_s, -gains))[0]), FIRST_NEAR)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make bench-calibrate", description=__doc__)
    parser.add_argument("--measurements", type=Path, default=MEASUREMENTS, help="JSONL file of measured runs")
    parser.add_argument("--sweeps", type=Path, default=SWEEPS, help="JSONL file of whole sweeps")
    names = ("few-shot", "ratio", "replay", "neighbour", "layers")
    parser.add_argument("--only", choices=names, help="one part alone")
    options = parser.parse_args(arguments)
    if options.only in (None, "layers"):
        print_layers()
    try:
        world = World.read(options.measurements, options.sweeps)
    except AsapError as error:
        print(f"bench-calibrate: error: {error}", file=sys.stderr)
        return 2
    parts: dict[str, Callable[[World], None]] = {
        "few-shot": print_few_shot,
        "ratio": print_ratio,
        "replay": print_replay,
        "neighbour": print_neighbour,
    }
    for name, show in parts.items():
        if options.only in (None, name):
            show(world)
    return 0


def print_few_shot(world: World) -> None:
    results: list[FewShot] = []
    large = [c for c in world.clusters if len(c.errors) >= MIN_ROWS and c.source != SWEEP_SOURCE]
    print(
        f"{'cluster':<34}{'rows':>5}{'given':>6}{'before':>8}{'after/before':>13}{'interval':>9}{'wrong':>7}"
    )
    for source in sorted({cluster.source for cluster in large}):
        base = world.without(source)
        for cluster in (c for c in large if c.source == source):
            for result in few_shot(world, base, cluster):
                results.append(result)
                print(
                    f"{result.cluster:<34}{result.rows:>5}{result.shots:>6}{result.error_before:>8.1%}"
                    f"{result.ratio:>13.3f}{result.coverage:>9.0%}{result.wrong_ratio or 0:>7.2f}",
                    flush=True,
                )
    for shots in SHOTS:
        of = [result for result in results if result.shots == shots]
        ratios = [result.ratio for result in of]
        print(
            f"{shots} rows: error after over before, mean over {len(of)} clusters {np.mean(ratios):.3f}, "
            f"worst {max(ratios):.3f}; 80% interval holds {np.mean([r.coverage for r in of]):.1%}"
        )
    worst = max(results, key=lambda result: result.wrong_ratio)
    if not worst.wrong_ratio:
        raise SystemExit("no wrong row was given to any cluster: nothing shows what one does")
    says = "a wrong row beside two right ones: worst error over that with the right ones alone"
    print(f"{says} {worst.wrong_ratio:.3f} ({worst.cluster})")


def print_ratio(world: World) -> None:
    ratios = []
    for name, source, runs in _groups(world):
        without, with_run = pair_errors(_without(world, source), runs)
        ratios.append(with_run / without)
        print(f"{name:<44}{len(runs):>5}{without:>8.1%}{with_run:>8.1%}{ratios[-1]:>7.2f}", flush=True)
    print(
        f"ratio to other plans, one run given: error over that without, mean {np.mean(ratios):.3f}, "
        f"median {np.median(ratios):.3f} over {len(ratios)} workloads"
    )


_BASES: dict[str, Calibration] = {}


def _without(world: World, source: str) -> Calibration:
    return _BASES.get(source) or _BASES.setdefault(source, world.without(source))


def _groups(world: World) -> Iterator[tuple[str, str, list[Run]]]:
    """Several plans of one workload: sweeps, and rows that share model, cluster and training."""
    for sweep in sweeps_of(world.swept):
        ran = [i for i, time_s in enumerate(sweep.times_s) if time_s is not None]
        drawn = np.random.default_rng(0).permutation(ran)[:25]
        measured = next(p for p in world.swept if p.workload == sweep.name and p.measurement)
        source = measured.measurement.source if measured.measurement else SWEEP_SOURCE
        yield sweep.name[:43], source, [sweep.run(int(i)) for i in drawn]
    by_workload: dict[str, list[Measurement]] = {}
    for row in world.rows:
        key = row.scenario.model_dump_json(include={"model", "cluster", "training"})
        by_workload.setdefault(f"{row.source}{key}", []).append(row)
    for rows in by_workload.values():
        if len(rows) >= 3:
            name = f"{rows[0].source} {rows[0].scenario.model.name} {rows[0].scenario.cluster.num_devices}"
            yield name[:43], rows[0].source, [as_run(row) for row in rows]


def print_replay(world: World) -> None:
    has_optuna, base = find_spec("optuna") is not None, _without(world, SWEEP_SOURCE)
    counts: dict[str, list[float]] = {"ASAP": [], "TPE": [], "random": []}
    for sweep in sweeps_of(world.swept):
        counts["ASAP"].append(trials_by_gain(sweep, base))
        counts["random"].append(float(np.median([trials_at_random(sweep, i) for i in range(REPEATS)])))
        if has_optuna:
            counts["TPE"].append(float(np.median([trials_by_tpe(sweep, i) for i in range(3)])))
        line = "".join(f"{name} {values[-1]:g}  " for name, values in counts.items() if values)
        print(f"{sweep.name[:43]:<44}{len(sweep.scenarios):>5} plans  {line}", flush=True)
    for name, values in counts.items():
        if values:
            print(
                f"trials until within 5% of the best, {name}: median {np.median(values):g}, "
                f"p80 {np.quantile(values, 0.8):g} over {len(values)} workloads"
            )
    if not has_optuna:
        print("TPE: not available, Optuna is not installed (make bench-peers)")


def print_neighbour(world: World) -> None:
    base, sweeps = _without(world, SWEEP_SOURCE), sweeps_of(world.swept)
    hits = [
        first_after_neighbour(sweep, neighbour, base, seed)
        for sweep in sweeps
        for neighbour in neighbours_of(sweep, sweeps)
        for seed in range(5)
    ]
    print(f"first proposal within 10% after 3 plans of a neighbour: {np.mean(hits):.0%} of {len(hits)} draws")


if __name__ == "__main__":
    raise SystemExit(main())
