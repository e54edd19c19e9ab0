"""Tune under noise: does it end near the best plan? Forty simulated tunes; the plans' times were measured.

    python -m benchmarks.tune [--tunes N] [--trials N] [--write]

Whole sessions of the graph in tune mode with the runner that users have (tools/trials/run.py); only the
cluster is simulated. A plan takes what the testbed measured for it (benchmarks/testbed/truth.json, every
legal plan of three workloads; `--write` makes it from build/testbed after `make bench NAME=trials`), times
noise: steps scatter by 10 to 60% with Student-t tails of three degrees of freedom, and load that rises and
falls from run to run slows whole runs by as much. Today's plan is one that takes up to three times the best.
Ends with status 1 if the bar is missed.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.testbed.launching import write_template
from benchmarks.testbed.table import read_rows
from benchmarks.testbed.workloads import WORKLOADS, Workload, plan_name
from graph.context import Context, Limits
from graph.report import Report
from graph.request import parse_request
from graph.session import Session
from tools.kb import open_seed
from tools.launch.folder import JobFolder
from tools.launch.launcher import Job, Launcher
from tools.launch.status import Handle, JobState, JobStatus
from tools.launch.template import read_templates
from tools.scenario import Plan
from tools.trials.run import LaunchedTrials

FOLDER = Path(__file__).resolve().parent / "testbed"
TRUTH, MEASURED = FOLDER / "truth.json", FOLDER.parents[1] / "build" / "testbed"
LEAST_NOISE, MOST_NOISE = 0.1, 0.6
NEAR, SHARE = 1.10, 0.9
FREEDOM = 3
ROBUST_SPREAD_OF_T3 = 1.134
"""1.4826 times the median absolute deviation of Student's t with three degrees of freedom."""
LOAD, STAYS = 1.0, 0.8
"""Load's spread over that of steps, and how much of it the next run still has."""
START_S = 20.0
SLOWEST_TODAY = 3.0
"""Times the best: nobody starts from the worst plan there is."""


class SimulatedNoisyCluster(Launcher):
    """Jobs end at once, and their steps are the table's with noise."""

    name = "local"

    def __init__(self, times_s: dict[str, float], noise: float, seed: int) -> None:
        super().__init__(Path(), {}, {}, 0.0)
        self._times_s, self._noise = times_s, noise
        self._random, self._load = np.random.default_rng(seed), 0.0
        self._jobs: dict[str, list[float]] = {}

    def submit(self, key: str, job: Job) -> Handle:
        change = np.sqrt(1 - STAYS**2) * LOAD * self._noise * self._random.standard_normal()
        self._load = STAYS * self._load + change
        time_s = self._times_s.get(plan_name(Plan.model_validate(job.scenario["plan"])))
        steps = self._noise / ROBUST_SPREAD_OF_T3 * self._random.standard_t(FREEDOM, job.steps)
        factors = np.exp(self._load + np.clip(steps, -1, 3))
        self._jobs[key] = [] if time_s is None else [time_s * float(factor) for factor in factors]
        return Handle(self.name, key, key)

    def find(self, key: str) -> Handle | None:
        return Handle(self.name, key, key) if key in self._jobs else None

    def status(self, handle: Handle) -> JobStatus:
        steps_s = self._jobs[handle.key]
        state = JobState.SUCCEEDED if steps_s else JobState.FAILED
        return JobStatus(
            state, source="simulated", started_unix_s=1.0, ended_unix_s=1.0 + START_S + sum(steps_s)
        )

    def log_tail(self, handle: Handle, lines: int) -> list[str]:
        return [] if self._jobs[handle.key] else ["error: the reference trainer does not run this plan"]

    def artefacts(self, handle: Handle, to: Path) -> list[Path]:
        to.mkdir(parents=True, exist_ok=True)
        result = {
            "step_times_s": self._jobs[handle.key],
            "losses": [1.0],
            "fingerprint": {"precision": "fp32"},
        }
        (to / "result.json").write_text(json.dumps(result))
        return [to / "result.json"]

    def _query(self, folder: JobFolder, handle: Handle) -> JobStatus:
        return self.status(handle)

    def _end(self, handle: Handle) -> None:
        """Every job has ended."""


def tune(workload: Workload, times_s: dict[str, float], noise: float, seed: int, trials: int) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        cluster = SimulatedNoisyCluster(times_s, noise, seed)
        templates = read_templates(write_template(Path(folder) / "templates.toml"))
        runner = LaunchedTrials(
            lambda name: cluster, templates, next(iter(templates)), Path(folder) / "results"
        )
        limits = Limits(device_hours=8.0, trials=trials)
        context = Context(open_seed(), trials=runner, limits=limits, saves_cases=False)
        best_s = min(times_s.values())
        usual = [p for p in workload.plans() if times_s[plan_name(p)] <= SLOWEST_TODAY * best_s]
        today = usual[int(np.random.default_rng(seed).integers(len(usual)))].model_dump(mode="json")
        request = parse_request({**workload.request, "plan": today, "mode": "tune"})
        report = Session(f"tune{seed}", context).run(request).report
    assert report is not None
    return report


def write_truth() -> None:
    """The best round of each plan: what else runs on the machine only adds."""
    tables = {}
    for workload in WORKLOADS:
        rows = read_rows(workload, MEASURED)
        tables[workload.name] = {plan_name(row.plan): round(row.step_time_s, 4) for row in rows}
    machine = json.loads((MEASURED / "machine.json").read_text())
    TRUTH.write_text(json.dumps({"machine": machine, "step_time_s": tables}, indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tunes", type=int, default=40)
    parser.add_argument(
        "--trials", type=int, default=Limits.trials, help="budget of each, the baseline among them"
    )
    parser.add_argument(
        "--write", action="store_true", help="truth.json from what make bench NAME=trials measured"
    )
    args = parser.parse_args(argv)
    if args.write:
        write_truth()
    truth = json.loads(TRUTH.read_text())
    behind, spent, started_s = [], [], time.monotonic()
    print(f"{'noise':>6} {'workload':10}{'trials':>7}{'runs':>6}{'of best':>9}  ended because")
    for number in range(args.tunes):
        noise = LEAST_NOISE + (MOST_NOISE - LEAST_NOISE) * number / max(args.tunes - 1, 1)
        workload = replace(WORKLOADS[number % len(WORKLOADS)], machine=truth["machine"])
        times_s = truth["step_time_s"][workload.name]
        report = tune(workload, times_s, noise, number, args.trials)
        chosen = times_s[plan_name(report.proposals[0].plan)] / min(times_s.values())
        behind.append(chosen)
        spent.append(sum(len(trial.runs) for trial in report.trials))
        reason = report.stopping.reason if report.stopping else ""
        print(
            f"{noise:>6.0%} {workload.name:10}{len(report.trials):>7}{spent[-1]:>6}{chosen:>8.2f}x  {reason}",
            flush=True,
        )
    near = statistics.mean(each <= NEAR for each in behind)
    print(
        f"simulated clusters, times of the testbed: within {NEAR - 1:.0%} of the best in {near:.0%} "
        f"of {args.tunes} tunes (bar {SHARE:.0%}); median {statistics.median(behind):.2f}x, "
        f"worst {max(behind):.2f}x the best; "
        f"{statistics.mean(spent):.1f} runs a tune; {time.monotonic() - started_s:.0f} s"
    )
    return 0 if near >= SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
