"""What a handful of a cluster's own runs is worth, on published measurements.

Every figure is of clusters whose whole source nothing has seen: constants, residual, interval and the prior
of the calibration are learned again without it. Few-shot: each cluster (a source's rows on one device, ten or
more of them), six draws of so many of its rows; error and interval on the rest. Replay: each measured plan of
a sweep is a trial, a crash costs one; beside it Optuna's TPE (if installed) and random order.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.testbed.layers import print_layers
from research.clusters import cluster_errors, learn_prior
from research.errors import build_residual, corrected_by, learn_intervals
from research.fit import Table, fit, tabulate
from research.published import (
    RUNS,
    SWEEP_SOURCE,
    Measurement,
    SweptPlan,
    measurements,
    read_runs,
    sweep_measurements,
    sweep_plans,
)
from tools.errors import AsapError
from tools.model.calibration import Calibration, shipped_calibration
from tools.model.constants import resolve
from tools.model.predict import predict
from tools.model.runs import Measured, Run
from tools.model.update import calibrate
from tools.physics.encode import crossed_fabric
from tools.physics.inputs import Array
from tools.physics.step import step_terms
from tools.scenario import Scenario
from tools.trials.gain import expected_gains

DRAWS = 6
MIN_ROWS = 10
SHOTS = (3, 8)
NEAR = 1.05
FIRST_NEAR = 1.10
WRONG = (3.0, 1 / 3.0, 1000.0)
REPEATS = 20
"""Of the searchers that draw at random."""


class World:
    """The measurements, and what a source that nobody has seen is predicted by."""

    def __init__(self, path: Path) -> None:
        runs = read_runs(path)
        self.rows: Sequence[Measurement] = [*measurements(runs), *sweep_measurements(runs)]
        self.swept: Sequence[SweptPlan] = sweep_plans(runs)
        self.table: Table = tabulate(self.rows)
        self.sources = np.array(self.table.sources)
        self._bases = {source: self._fitted(source) for source in set(self.table.sources)}
        self._corrected = corrected_by(self._bases, self.table)
        self._learned: dict[str, Calibration] = {}

    def _fitted(self, source: str) -> Calibration:
        """The sweep teaches constants, never the residual."""
        shipped = shipped_calibration()
        train = self.table.take(np.flatnonzero(self.sources != source))
        kept = np.flatnonzero((self.sources != source) & (self.sources != SWEEP_SOURCE))
        others = self.table.take(kept)
        shifts = fit(train, shipped.shifts).shifts
        fitted_s = step_terms(others.inputs, resolve(others.keys, shifts)).total
        ids = [self.rows[int(i)].id for i in kept]
        residual = build_residual(others, ids, fitted_s, shipped.residual.prior)
        fabric_of = {self.rows[int(i)].id: crossed_fabric(self.rows[int(i)].scenario.cluster) for i in kept}
        residual = replace(residual, fabrics=[fabric_of[id] for id in residual.ids])
        return replace(shipped, shifts=shifts, residual=residual)

    def without(self, source: str) -> Calibration:
        """The shipped calibration as it would be had nobody seen this source."""
        if source not in self._learned:
            taught = np.flatnonzero((self.sources != source) & (self.sources != SWEEP_SOURCE))
            intervals = learn_intervals(self.table, self._corrected, self._corrected, taught)
            clusters = cluster_errors(self.table, self._corrected, intervals)
            prior = learn_prior([cluster for cluster in clusters if cluster.source != source])
            base = self._bases[source]
            self._learned[source] = replace(base, intervals=intervals, cluster_prior=prior)
        return self._learned[source]

    def clusters(self) -> Iterator[tuple[str, str, list[Run]]]:
        """Source, device and runs."""
        pairs = [(row.source, row.scenario.cluster.device) for row in self.rows]
        for pair, count in sorted(Counter(pairs).items()):
            if count >= MIN_ROWS:
                yield *pair, [as_run(self.rows[i]) for i, other in enumerate(pairs) if other == pair]


def as_run(row: Measurement) -> Run:
    measured = Measured(step_time_s=row.step_time_s, peak_memory_gib=row.peak_memory_gib)
    return Run(scenario=row.scenario, measured=measured, id=row.id)


def errors_of(predicted_s: Array, measured_s: Array) -> Array:
    return np.abs(predicted_s / measured_s - 1.0)


def seconds(scenarios: Sequence[Scenario], calibration: Calibration) -> Array:
    return np.array([prediction.step_time_s for prediction in predict(scenarios, calibration)])


class Draw(NamedTuple):
    """What some of a cluster's runs did for the rest of them."""

    before: float
    after: float
    inside: float
    half_width: float
    is_refused: bool


def few_shot(base: Calibration, runs: Sequence[Run], shots: int) -> list[Draw]:
    scenarios = [run.scenario for run in runs]
    measured_s = np.array([run.measured.step_time_s for run in runs])
    before, rng, draws = errors_of(seconds(scenarios, base), measured_s), np.random.default_rng(0), []
    for _ in range(DRAWS):
        chosen = rng.choice(len(runs), shots, replace=False)
        rest = np.setdiff1d(np.arange(len(runs)), chosen)
        learned = calibrate([runs[i] for i in chosen], base)
        predictions = predict([scenarios[i] for i in rest], learned.calibration)
        low, own, high = (
            np.array([getattr(p, f"step_time_{name}s") for p in predictions])
            for name in ("low_", "", "high_")
        )
        draws.append(
            Draw(
                float(before[rest].mean()),
                float(errors_of(own, measured_s[rest]).mean()),
                float(np.mean((low <= measured_s[rest]) & (measured_s[rest] <= high))),
                float(np.median((high - low) / (2.0 * own))),
                not learned.runs,
            )
        )
    return draws


def wrong_ratio(base: Calibration, runs: Sequence[Run]) -> float:
    """Error on other plans than its own with a wrong row beside two right ones over that with the right ones
    alone, worst of WRONG: a plan is predicted as its own run was."""
    scenarios, rng = [run.scenario for run in runs], np.random.default_rng(0)
    measured_s = np.array([run.measured.step_time_s for run in runs])
    ratios: dict[float, list[float]] = {factor: [] for factor in WRONG}
    for _ in range(DRAWS):
        first, *others = rng.choice(len(runs), 3, replace=False)
        plan = scenarios[first].plan
        rest = [i for i in range(len(runs)) if i not in (first, *others) and scenarios[i].plan != plan]
        right = [runs[i] for i in others]

        def error(given: Sequence[Run], rest: Sequence[int] = rest) -> float:
            after_s = seconds([scenarios[i] for i in rest], calibrate(given, base).calibration)
            return float(errors_of(after_s, measured_s[rest]).mean())

        for factor in WRONG:
            ratios[factor].append(error([*right, _times(runs[first], factor)]) / error(right))
    return max(float(np.mean(values)) for values in ratios.values())


def _times(run: Run, factor: float) -> Run:
    wrong_s = (run.measured.step_time_s or 0.0) * factor
    return run.model_copy(update={"measured": Measured(step_time_s=wrong_s), "id": "wrong"})


def pair_errors(base: Calibration, runs: Sequence[Run]) -> tuple[float, float]:
    """Median error of the ratio of other plans' steps to a given one's, without and with its run."""
    scenarios = [run.scenario for run in runs]
    measured_s = np.array([run.measured.step_time_s for run in runs])
    general_s = seconds(scenarios, base)
    without, with_run = [], []
    for i, run in enumerate(runs):
        others = np.arange(len(runs)) != i
        true = measured_s[others] / measured_s[i]
        own_s = seconds(scenarios, calibrate((), base, own=[run]).calibration)
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
        measured = Measured(step_time_s=time_s)
        return Run(scenario=self.scenarios[place], measured=measured, crashed=time_s is None, id=str(place))

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
        calibration = calibrate((), base, own=runs).calibration
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
    parser = argparse.ArgumentParser(prog="make bench NAME=calibrate", description=__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder or JSONL file of published runs")
    names = ("few-shot", "ratio", "replay", "neighbour", "layers")
    parser.add_argument("--only", choices=names, help="one part alone")
    options = parser.parse_args(arguments)
    if options.only in (None, "layers"):
        print_layers()
    try:
        world = World(options.runs)
    except AsapError as error:
        print(f"calibrate: error: {error}", file=sys.stderr)
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
    found: dict[int, list[list[Draw]]] = {shots: [] for shots in SHOTS}
    wrong = {}
    head = f"{'cluster':<36}{'rows':>5}{'given':>6}{'before':>8}{'after':>8}{'ratio':>7}{'worse':>6}"
    print(f"{head}{'interval':>9}{'half':>6}{'wrong':>7}")
    for source, device, runs in world.clusters():
        base, name = world.without(source), f"{source} {device}"
        wrong[name] = wrong_ratio(base, runs)
        for shots in (shots for shots in SHOTS if shots < len(runs)):
            draws = few_shot(base, runs, shots)
            found[shots].append(draws)
            before, after, inside, half, _ = np.mean(draws, axis=0)
            worse = sum(draw.after > draw.before for draw in draws)
            print(
                f"{name:<36}{len(runs):>5}{shots:>6}{before:>8.1%}{after:>8.1%}{after / before:>7.3f}"
                f"{worse:>6}{inside:>9.0%}{half:>6.0%}{wrong[name]:>7.2f}",
                flush=True,
            )
    for shots, clusters in found.items():
        means = np.array([np.mean(draws, axis=0) for draws in clusters])
        ratios, each = means[:, 1] / means[:, 0], [draw for draws in clusters for draw in draws]
        share, half = np.mean([d.after > d.before for d in each]), np.median([d.half_width for d in each])
        print(
            f"{shots} rows, {len(clusters)} clusters: error after over before, mean {ratios.mean():.3f}, "
            f"worst {ratios.max():.3f}; draws worse {share:.1%}; 80% interval holds "
            f"{means[:, 2].mean():.1%}, lowest {means[:, 2].min():.1%}, median half width {half:.1%}; "
            f"refused {sum(draw.is_refused for draw in each)}"
        )
    worst = max(wrong, key=lambda name: wrong[name])
    print(
        "a wrong row beside two right ones: worst error over that with the right ones alone "
        f"{wrong[worst]:.3f} ({worst})"
    )


def print_ratio(world: World) -> None:
    ratios = []
    for name, source, runs in _groups(world):
        without, with_run = pair_errors(world.without(source), runs)
        ratios.append(with_run / without)
        print(f"{name:<44}{len(runs):>5}{without:>8.1%}{with_run:>8.1%}{ratios[-1]:>7.2f}", flush=True)
    print(
        f"ratio to other plans, one run given: error over that without, mean {np.mean(ratios):.3f}, "
        f"median {np.median(ratios):.3f} over {len(ratios)} workloads"
    )


def _groups(world: World) -> Iterator[tuple[str, str, list[Run]]]:
    """Several plans of one workload: sweeps, and rows that share model, cluster and training."""
    for sweep in sweeps_of(world.swept):
        ran = [i for i, time_s in enumerate(sweep.times_s) if time_s is not None]
        drawn = np.random.default_rng(0).permutation(ran)[:25]
        measured = next(p for p in world.swept if p.workload == sweep.name and p.measurement)
        source = measured.measurement.source if measured.measurement else SWEEP_SOURCE
        yield sweep.name[:43], source, [sweep.run(int(i)) for i in drawn]
    by_workload: dict[str, list[Measurement]] = {}
    for row in (row for row in world.rows if row.source != SWEEP_SOURCE):
        key = row.scenario.model_dump_json(include={"model", "cluster", "training"})
        by_workload.setdefault(f"{row.source}{key}", []).append(row)
    for rows in by_workload.values():
        if len(rows) >= 3:
            name = f"{rows[0].source} {rows[0].scenario.model.name} {rows[0].scenario.cluster.num_devices}"
            yield name[:43], rows[0].source, [as_run(row) for row in rows]


def print_replay(world: World) -> None:
    has_optuna, base = find_spec("optuna") is not None, world.without(SWEEP_SOURCE)
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
        print("TPE: not available, Optuna is not installed (make peers)")


def print_neighbour(world: World) -> None:
    base, sweeps = world.without(SWEEP_SOURCE), sweeps_of(world.swept)
    hits = [
        first_after_neighbour(sweep, neighbour, base, seed)
        for sweep in sweeps
        for neighbour in neighbours_of(sweep, sweeps)
        for seed in range(5)
    ]
    print(f"first proposal within 10% after 3 plans of a neighbour: {np.mean(hits):.0%} of {len(hits)} draws")


if __name__ == "__main__":
    raise SystemExit(main())
