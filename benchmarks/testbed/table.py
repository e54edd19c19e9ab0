"""Every plan of every workload measured, in rounds, so that what drifts drifts for all alike.

What is measured stays: a run that was stopped goes on where it was. A folder per round holds a folder per
plan; `table.json` sums them up.
"""

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.testbed.many import SECONDS
from benchmarks.testbed.workloads import MBIT, Workload, plan_name
from testbed.record import RESULT
from tools.scenario import Plan
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
