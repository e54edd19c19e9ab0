"""Who finds a fast plan in how few trials, on a measured table: ASAP's loop, Optuna's TPE, random search.

A trial is looked up, not run, so that many seeds can be tried. Each gives the plans in the order in which it
measured them, none twice.
"""

import random
from collections.abc import Iterable, Iterator, Sequence

from benchmarks.testbed.table import Row
from benchmarks.testbed.workloads import Workload
from tools.calibrate.runs import Measured, Run
from tools.calibrate.update import calibrate
from tools.cost.calibration import Calibration
from tools.cost.predict import predict
from tools.scenario import Plan
from tools.trials.gain import expected_gains

FIELDS = ("tp", "pp", "cp", "ep", "zero_stage", "dp_shard", "micro_batch_size")
"""What a searcher chooses; the other fields follow or are fixed."""
TRIES = 2000
"""Illegal combinations cost nothing and do not count; after so many a search ends."""
MAX_TRIALS = 8
"""Of ASAP, the baseline among them: each calibrates the model anew."""


def within(order: Iterable[Row], best_s: float, share: float = 0.05) -> int | None:
    """How many trials until one is within `share` of the best."""
    good = (number for number, row in enumerate(order, 1) if row.step_time_s <= best_s * (1 + share))
    return next(good, None)


def asap(workload: Workload, rows: Sequence[Row], baseline: Run) -> list[Row]:
    """The baseline with its profile, then always the plan of the greatest expected gain of those left."""
    runs, first = [baseline], baseline.scenario.plan
    left, order = [row for row in rows if row.plan != first], [row for row in rows if row.plan == first]
    while left and len(order) < MAX_TRIALS:
        scenarios = [workload.scenario.model_copy(update={"plan": row.plan}) for row in left]
        gains, _ = expected_gains(scenarios, calibrate(runs, own=True).calibration, runs)
        place = int(gains.argmax())
        row = left.pop(place)
        runs.append(Run(scenarios[place], Measured(step_time_s=row.step_time_s), source="trial"))
        order.append(row)
    return order


def predicted_s(
    workload: Workload,
    rows: Sequence[Row],
    calibration: Calibration | None,
    figure: str = "step_time_s",
) -> list[float]:
    scenarios = [workload.scenario.model_copy(update={"plan": row.plan}) for row in rows]
    return [float(getattr(prediction, figure)) for prediction in predict(scenarios, calibration)]


def at_random(rows: Sequence[Row], seed: int) -> list[Row]:
    return random.Random(seed).sample(list(rows), len(rows))


def tpe(rows: Sequence[Row], seed: int) -> Iterator[Row]:
    """Optuna's tree-structured Parzen estimator over the plan's fields, with its defaults."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    known = {_choice(row.plan): row for row in rows}
    values = {name: sorted({getattr(row.plan, name) for row in rows}) for name in FIELDS}
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    seen: set[tuple[int, ...]] = set()
    for _ in range(TRIES):
        trial = study.ask()
        choice = tuple(trial.suggest_categorical(name, options) for name, options in values.items())
        row = known.get(choice)
        if row is None:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            continue
        study.tell(trial, row.step_time_s)
        if choice not in seen:
            seen.add(choice)
            yield row


def _choice(plan: Plan) -> tuple[int, ...]:
    return tuple(getattr(plan, name) for name in FIELDS)
