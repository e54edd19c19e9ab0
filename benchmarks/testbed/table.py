"""Every plan of every workload measured, in rounds, so that what drifts drifts for all alike; and who finds a
fast plan in how few trials on that table: ASAP's loop, Optuna's TPE, random search.

What is measured stays: a run that was stopped continues where it was. A folder per round holds a folder per
plan; `table.json` sums them up. A searcher looks its trials up, so that many seeds can be tried, and gives
the plans in the order in which it measured them, none twice.
"""

import json
import random
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.testbed.many import SECONDS
from benchmarks.testbed.workloads import MBIT, Workload, plan_name
from testbed.record import RESULT
from tools.model.calibration import Calibration
from tools.model.predict import predict
from tools.model.runs import Measured, Run
from tools.model.update import calibrate
from tools.scenario import Plan
from tools.trials.gain import expected_gains
from tools.trials.measure import NORMAL_SPREAD

REPO = Path(__file__).resolve().parents[2]
STEPS, WARMUP = 3, 1


@dataclass(frozen=True)
class Row:
    """One plan: the steps of each round, in seconds."""

    plan: Plan
    rounds_s: list[list[float]]
    losses: list[float]

    @property
    def step_time_s(self) -> float:
        """The median of the best round: what else runs on the machine only adds."""
        return min(statistics.median(steps) for steps in self.rounds_s)

    @property
    def noise(self) -> float:
        """Robust spread of a step over the median, in the best round."""
        best, middle = min(self.rounds_s, key=statistics.median), self.step_time_s
        return NORMAL_SPREAD * statistics.median([abs(step - middle) for step in best]) / middle

    @property
    def spread(self) -> float:
        """Of the rounds' medians: the widest less the narrowest, over the median."""
        medians = [statistics.median(steps) for steps in self.rounds_s]
        return (max(medians) - min(medians)) / self.step_time_s


def measure(workload: Workload, number: int, folder: Path, seconds: float) -> bool:
    """Goes on with one round for some seconds; whether it is complete."""
    round_folder = folder / workload.name / f"round-{number}"
    for order, plan in enumerate(workload.plans()):
        place = round_folder / f"{order:02d}-{plan_name(plan)}"
        place.mkdir(parents=True, exist_ok=True)
        scenario = workload.scenario.model_copy(update={"plan": plan})
        (place / "scenario.json").write_text(json.dumps(scenario.model_dump(mode="json", exclude_none=True)))
    if _is_complete(round_folder):
        return True
    (round_folder / SECONDS).write_text(str(seconds))
    command = [sys.executable, "-m", "benchmarks.testbed", str(round_folder), "--out", str(round_folder)]
    numbers = ["--mbit", str(MBIT), "--steps", str(STEPS), "--warmup", str(WARMUP)]
    with (round_folder / "log.txt").open("a") as log:
        done = subprocess.run([*command, *numbers], cwd=REPO, stdout=log, stderr=log)
    if done.returncode:
        raise RuntimeError(f"the testbed ended with status {done.returncode}; see {round_folder}/log.txt")
    return _is_complete(round_folder)


def _is_complete(round_folder: Path) -> bool:
    return all((place / RESULT).exists() for place in round_folder.iterdir() if place.is_dir())


def read_rows(workload: Workload, folder: Path) -> list[Row]:
    """Plans that at least one round has measured, in the order of the space."""
    rows = []
    for order, plan in enumerate(workload.plans()):
        files = sorted(folder.glob(f"{workload.name}/round-*/{order:02d}-{plan_name(plan)}/{RESULT}"))
        results = [json.loads(file.read_text()) for file in files]
        if results:
            rows.append(Row(plan, [result["step_times_s"] for result in results], results[0]["losses"]))
    return rows


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
        gains, _ = expected_gains(scenarios, calibrate((), own=runs).calibration, runs)
        place = int(gains.argmax())
        row = left.pop(place)
        measured = Measured(step_time_s=row.step_time_s)
        runs.append(Run(scenario=scenarios[place], measured=measured, source="trial"))
        order.append(row)
    return order


def predicted_s(
    workload: Workload, rows: Sequence[Row], calibration: Calibration | None, figure: str = "step_time_s"
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
