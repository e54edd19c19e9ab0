"""What is the advice worth once some plans of the workload were run?

Sweeps of runs/ in which every plan was tried. Some plans of a sweep are given as measurements, and the plan
recommended then is looked up: how much slower than the best was it measured? Fit, residual and prior have not
seen the source. `advised`: what is recommended is run and given, crashes too; once it has run, the trial of
the greatest expected gain, as `tune` does; `told`: the same, but told in notes; `drawn`: plans that ran, at
random. A recommended plan that crashed counts as twice the best's time. The choice is among the sweep's plans
that a search considers; with --search among all of those, and a plan that nobody ran is judged by the best of
its degrees and ZeRO stage.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.calibrate import World
from research.published import RUNS, SweptPlan, read_runs, sweep_plans
from tools.errors import AsapError, InfeasibleError
from tools.model.calibration import Calibration
from tools.model.observations import with_seen
from tools.model.runs import Measured, Run
from tools.model.update import calibrate
from tools.recommend.choose import choose
from tools.recommend.measured import as_seen
from tools.recommend.optimize import best_plans, workload_of
from tools.recommend.score import family_of
from tools.scenario import Plan, PlanColumns, Scenario
from tools.search.ranked import Ranked
from tools.search.space import PlanSpace
from tools.trials.gain import expected_gains

SHOTS = (0, 1, 3, 5)
DRAWS = 8
FIXED = ("recompute", "schedule", "cp", "vpp", "sequence_parallel")
CRASHED = 1.0
"""Regret of a plan that crashed."""
PlanKey = tuple[int, ...]


@dataclass(frozen=True)
class Sweep:
    name: str
    source: str
    plans: Sequence[SweptPlan]

    @property
    def hidden(self) -> Scenario:
        """The workload without its plan; what the sweep held fixed is a constraint."""
        values = {name: {getattr(p.scenario.plan, name) for p in self.plans} for name in FIXED}
        fixed = {name: found.pop() for name, found in values.items() if len(found) == 1}
        limits = {name: value for name, value in fixed.items() if value is not None}
        return self.plans[0].scenario.model_copy(update={"plan": None, "constraints": limits})

    @property
    def runs(self) -> list[Run]:
        """A measurement each, or a crash."""
        return [
            Run(
                scenario=p.scenario,
                measured=Measured(step_time_s=p.measurement.step_time_s if p.measurement else None),
                crashed=p.measurement is None,
                id=f"{self.name} {number}",
            )
            for number, p in enumerate(self.plans)
        ]

    def regret(self, plan: Plan) -> float | None:
        times: dict[PlanKey, float] = {}
        for p in self.plans:
            if p.measurement and p.scenario.plan:
                for key in (key_of(p.scenario.plan), key_of(p.scenario.plan)[:-1]):
                    times[key] = min(times.get(key, np.inf), p.measurement.step_time_s)
        tried = {key_of(p.scenario.plan) for p in self.plans if p.scenario.plan}
        best, key = min(times.values()), key_of(plan)
        if key not in times and key in tried:
            return CRASHED
        took = times.get(key, times.get(key[:-1]))
        return None if took is None else took / best - 1.0


def key_of(plan: Plan) -> PlanKey:
    sharded = plan.sharding_stage if plan.data_ranks > 1 else 0
    return (*family_of(plan), plan.dp, sharded, plan.micro_batch_size)


def read_sweeps() -> list[Sweep]:
    """Workloads whose plans differ in more than the micro-batch, under one contract."""
    runs = read_runs()
    grouped: dict[str, list[SweptPlan]] = defaultdict(list)
    for plan in sweep_plans(runs):
        grouped[plan.workload].append(plan)
    sources = {run.workload: run.source for run in runs}
    found = []
    for name, plans in grouped.items():
        first = plans[0].scenario
        same = all(
            (p.scenario.training, p.scenario.cluster) == (first.training, first.cluster) for p in plans
        )
        families = {key_of(p.scenario.plan)[:-1] for p in plans if p.scenario.plan}
        if same and len(families) > 1 and sum(p.measurement is not None for p in plans) > 1:
            found.append(Sweep(name, sources[name], plans))
    return found


Learn = Callable[[Sequence[Run], Calibration], Calibration]
Recommend = Callable[[Sweep, Calibration], Plan | None]


def considered(sweep: Sweep) -> PlanColumns:
    """The sweep's plans that a search would consider."""
    workload = workload_of(sweep.hidden)
    space = PlanSpace(workload.scenario, workload.constraints)
    return space.legal(PlanColumns.of([p.scenario.plan for p in sweep.plans if p.scenario.plan]))


def among_swept(sweep: Sweep, calibration: Calibration) -> Plan | None:
    workload, columns = workload_of(sweep.hidden, calibration), considered(sweep)
    costs = workload.costs(columns)
    ranked = Ranked(columns, costs.step_time_s, costs.memory_bytes)
    ranked = ranked.take(ranked.memory_bytes <= workload.limit_gib * 2.0**30)
    return next(iter(choose(workload, as_seen(workload, ranked))), None)


def among_all(sweep: Sweep, calibration: Calibration) -> Plan | None:
    try:
        return best_plans(workload_of(sweep.hidden, calibration))[0][0]
    except InfeasibleError:
        return None


@dataclass(frozen=True)
class Judged:
    regret: float | None
    is_refuted: bool
    """The plan was given as crashed."""


def measured(runs: Sequence[Run], base: Calibration) -> Calibration:
    return calibrate(runs, base).calibration


def told(runs: Sequence[Run], base: Calibration) -> Calibration:
    return with_seen(base, [run.model_copy(update={"source": "notes"}) for run in runs])


def recommend(
    sweep: Sweep, base: Calibration, given: Sequence[Run], how: Recommend, learn: Learn = measured
) -> tuple[Plan | None, Judged]:
    plan = how(sweep, learn(given, base) if given else base)
    if plan is None:
        return None, Judged(None, False)
    crashed = {key_of(run.scenario.plan) for run in given if run.crashed and run.scenario.plan}
    ran = {key_of(run.scenario.plan) for run in given if not run.crashed and run.scenario.plan}
    return plan, Judged(sweep.regret(plan), key_of(plan) in crashed - ran)


def drawn(sweep: Sweep, base: Calibration, shots: int, how: Recommend) -> list[Judged]:
    runs, rng = [run for run in sweep.runs if not run.crashed], np.random.default_rng(0)
    draws = [[runs[i] for i in rng.permutation(len(runs))[:shots]] for _ in range(DRAWS if shots else 1)]
    return [recommend(sweep, base, given, how)[1] for given in draws]


def advised(sweep: Sweep, base: Calibration, how: Recommend, learn: Learn = measured) -> list[Judged]:
    """After each number of SHOTS, if what is recommended is run each time, or else the next trial."""
    table = considered(sweep)
    keys = {key_of(table.plan(row)) for row in range(len(table["tp"]))}
    left = {key_of(run.scenario.plan): run for run in reversed(sweep.runs) if run.scenario.plan}
    given: list[Run] = []
    made = []
    for shot in range(max(SHOTS) + 1):
        plan, judged = recommend(sweep, base, given, how, learn)
        if shot in SHOTS:
            made.append(judged)
        tried = left.pop(key_of(plan), None) if plan else None
        trials = [run for key, run in left.items() if key in keys]
        if tried is None and trials:
            calibration = learn(given, base) if given else base
            gains, predicted_s = expected_gains([run.scenario for run in trials], calibration, given)
            tried = trials[int(np.lexsort((predicted_s, -gains))[0])]
            left.pop(key_of(tried.scenario.plan))  # type: ignore[arg-type]
        given += [tried] if tried else []
    return made


def main() -> int:
    parser = argparse.ArgumentParser(prog="evidence", description="Regret on sweeps with some plans known.")
    parser.add_argument("--search", action="store_true", help="of all legal plans, not the sweep's alone")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    try:
        world, sweeps = World(RUNS), read_sweeps()
    except AsapError as error:
        print(f"evidence: error: {error}", file=sys.stderr)
        return 2
    base, how = cache(world.without), among_all if args.search else among_swept
    results: dict[str, dict[int, list[Judged]]] = {
        name: defaultdict(list) for name in ("advised", "told", "drawn")
    }
    for sweep in sweeps:
        start = base(sweep.source)
        for shots in SHOTS:
            results["drawn"][shots] += _mean(drawn(sweep, start, shots, how))
        for name, learn in (("advised", measured), ("told", told)):
            for shots, judged in zip(SHOTS, advised(sweep, start, how, learn), strict=True):
                results[name][shots] += [judged]
        if args.verbose:
            shown = {n: [_percent(r[s][-1].regret) for s in SHOTS] for n, r in results.items()}
            print(f"{sweep.name:60} {shown}", flush=True)
    print(f"{len(sweeps)} sweeps; regret of the plan recommended, and over that without any run")
    for name, by_shots in results.items():
        kept = [i for i in range(len(sweeps)) if all(by_shots[s][i].regret is not None for s in SHOTS)]
        means = [float(np.mean([by_shots[s][i].regret for i in kept])) for s in SHOTS]
        line = "".join(
            f"{s} known {mean:6.1%} ({mean / means[0]:.2f})   " for s, mean in zip(SHOTS, means, strict=True)
        )
        refuted = sum(judged.is_refuted for s in SHOTS for judged in by_shots[s])
        print(f"{name:9} {line} of {len(kept)} sweeps; a known crash recommended: {refuted}")
    return 0


def _mean(draws: Sequence[Judged]) -> list[Judged]:
    known = [judged.regret for judged in draws if judged.regret is not None]
    return [Judged(float(np.mean(known)) if known else None, any(judged.is_refuted for judged in draws))]


def _percent(regret: float | None) -> str:
    return "-" if regret is None else f"{regret:.1%}"


if __name__ == "__main__":
    raise SystemExit(main())
