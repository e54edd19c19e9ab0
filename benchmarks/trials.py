"""What trials gain, how few are needed, and how well plans are predicted after the first: on the testbed.

    python -m benchmarks.trials [--rounds N] [--seconds S] [--anyway] [--table-only]

Two hosts as network namespaces on links of 200 Mbit/s, two ranks each (benchmarks/testbed). Measures every
legal plan of three workloads in rounds, as root and on an idle machine; what was measured is kept in
build/testbed, and a run goes on where the last one stopped. Then prints, beside the bars of the project:
the gain over FSDP on all ranks; trials until a plan is within 5% of the best, beside Optuna and random
search; the error of the predictions after the baseline's trial with its profile; how far repeats differ.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.testbed.launching import run_plan, run_session, trial_lines
from benchmarks.testbed.table import Row, asap, at_random, measure, predicted_s, read_rows, tpe, within
from benchmarks.testbed.workloads import WORKLOADS, Workload, plan_name
from tools.model.calibration import Calibration
from tools.model.runs import Run
from tools.model.update import calibrate

REPO = Path(__file__).resolve().parents[1]

FOLDER = REPO / "build" / "testbed"
IDLE_LOAD = 0.5
SEEDS = 31
SESSION_TRIALS = 5
GAIN_ONCE, GAIN_EACH, MAX_TRIALS, MAX_ERROR = 4.0, 1.43, 3, 0.15
NOT_IDLE, NOT_DONE = 4, 3


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=2, metavar="N", help="of all plans (2)")
    arguments.add_argument("--seconds", type=float, default=1e9, metavar="S", help="stop measuring after")
    arguments.add_argument("--anyway", action="store_true", help="measure on a busy machine too")
    arguments.add_argument("--table-only", action="store_true", help="print from what was measured before")
    arguments.add_argument(
        "--sessions", action="store_true", help="then tune each by asap optimize, for real"
    )
    args = arguments.parse_args()
    if not args.table_only:
        if not args.anyway and not _is_idle():
            return NOT_IDLE
        if not _measured(args.rounds, time.monotonic() + args.seconds):
            return NOT_DONE
    elif not _is_complete():
        sys.stderr.write("not every plan was measured: run it without --table-only\n")
        return NOT_DONE
    status = _report()
    if args.sessions:
        _run_sessions()
    return status


def _run_sessions() -> None:
    """The same workloads by `asap optimize` in tune mode, every trial run for real."""
    for workload in WORKLOADS:
        print(f"\nsession of {workload.name}")
        print("\n".join(trial_lines(run_session(workload.name, trials=SESSION_TRIALS))), flush=True)


def _is_complete() -> bool:
    described = (FOLDER / "machine.json").exists()
    return described and all(
        len(read_rows(workload, FOLDER)) == len(workload.plans()) for workload in WORKLOADS
    )


def _is_idle() -> bool:
    load = os.getloadavg()[0]
    if load <= IDLE_LOAD:
        return True
    sys.stderr.write(
        f"the machine is busy (load {load:.1f}, {IDLE_LOAD} allowed), and steps would be timed beside other "
        "work: wait, or give --anyway\n"
    )
    return False


def _measured(rounds: int, deadline_s: float) -> bool:
    """Whether all is measured before the deadline."""
    if not (FOLDER / "machine.json").exists():
        command = [sys.executable, "-m", "benchmarks.testbed.machine", str(FOLDER / "machine.json")]
        subprocess.run(command, cwd=REPO, check=True)
    for workload in WORKLOADS:
        _baseline(workload)
    for number in range(1, rounds + 1):
        for workload in WORKLOADS:
            left_s = deadline_s - time.monotonic()
            print(f"round {number} of {workload.name}", file=sys.stderr, flush=True)
            if left_s <= 0 or not measure(workload, number, FOLDER, left_s):
                sys.stderr.write("not all is measured yet: run it again to go on\n")
                return False
    return True


def _baseline(workload: Workload) -> Run:
    """The default plan's trial, through the launcher, with a profile."""
    plan = workload.default_plan
    return run_plan(workload, plan, FOLDER, f"{workload.name}-baseline", steps=6, warmup=2, profile_steps=2)


def _report() -> int:
    machine = json.loads((FOLDER / "machine.json").read_text())
    workloads = [replace(workload, machine=machine) for workload in WORKLOADS]
    tables = [read_rows(workload, FOLDER) for workload in workloads]
    baselines = [_baseline(workload) for workload in WORKLOADS]
    together = list(zip(workloads, tables, baselines, strict=True))
    passed = [_print_gains(together), _print_trials(together), _print_errors(together)]
    (FOLDER / "table.json").write_text(json.dumps([_as_data(*row) for row in together], indent=1) + "\n")
    print(f"\nevery plan: {(FOLDER / 'table.json').relative_to(REPO)}")
    return 0 if all(passed) else 1


Search = Callable[[list[Row], int], Iterable[Row]]
Measured = list[tuple[Workload, list[Row], Run]]


def _print_gains(together: Measured) -> bool:
    print(
        f"{'workload':12}{'plans':>6}{'default':>10}{'best':>9}{'gain':>7}  {'best plan':24}spread of repeats"
    )
    gains = []
    for workload, rows, _ in together:
        best = min(rows, key=lambda row: row.step_time_s)
        default = _row_of(rows, workload)
        gains.append(default.step_time_s / best.step_time_s)
        spread = statistics.median([row.spread for row in rows])
        rounds = min(len(row.rounds_s) for row in rows)
        print(
            f"{workload.name:12}{len(rows):>6}{default.step_time_s:>9.3f}s{best.step_time_s:>8.3f}s{gains[-1]:>6.1f}x"
            f"  {plan_name(best.plan):24}{spread:.1%} median of {rounds} rounds, widest "
            f"{max(row.spread for row in rows):.1%}"
        )
    print(f"bars: {GAIN_ONCE}x once, {GAIN_EACH}x each")
    return max(gains) >= GAIN_ONCE and min(gains) >= GAIN_EACH


def _print_trials(together: Measured) -> bool:
    print(f"\ntrials until a plan is within 5% of the best (median of {SEEDS} seeds for the others)")
    print(f"{'workload':12}{'ASAP':>6}{'Optuna TPE':>12}{'random':>8}")
    needed = []
    for workload, rows, baseline in together:
        best_s = min(row.step_time_s for row in rows)
        needed.append(within(asap(workload, rows, baseline)[1:], best_s) or len(rows))
        others = [_median_needed(rows, search, best_s) for search in (tpe, at_random)]
        print(f"{workload.name:12}{needed[-1]:>6}{others[0]:>12g}{others[1]:>8g}")
    print(f"bar: {MAX_TRIALS} or fewer, after the baseline's own")
    return max(needed) <= MAX_TRIALS


def _median_needed(rows: list[Row], search: Search, best_s: float) -> float:
    return statistics.median(within(search(rows, seed), best_s) or len(rows) for seed in range(SEEDS))


def _print_errors(together: Measured) -> bool:
    print("\npredicted against measured, mean absolute percentage error over all plans")
    print(f"{'workload':12}{'before':>8}{'after the baseline':>20}{'inside 80% interval':>21}{'worst':>8}")
    every = []
    for workload, rows, baseline in together:
        calibration = calibrate((), own=[baseline]).calibration
        before = _errors(rows, predicted_s(workload, rows, None))
        after = _errors(rows, predicted_s(workload, rows, calibration))
        every += after
        print(
            f"{workload.name:12}{statistics.mean(before):>8.1%}{statistics.mean(after):>20.1%}"
            f"{_inside(workload, rows, calibration):>21.0%}{max(after):>8.1%}"
            f" {plan_name(rows[after.index(max(after))].plan)}"
        )
    print(f"all {len(every)} plans: {statistics.mean(every):.1%}; bar: {MAX_ERROR:.0%}")
    return statistics.mean(every) <= MAX_ERROR


def _inside(workload: Workload, rows: list[Row], calibration: Calibration) -> float:
    """Share of the plans whose measured time lies in the predicted interval."""
    low, high = (predicted_s(workload, rows, calibration, f"step_time_{end}_s") for end in ("low", "high"))
    return statistics.mean(
        least <= row.step_time_s <= most for row, least, most in zip(rows, low, high, strict=True)
    )


def _errors(rows: list[Row], predicted: list[float]) -> list[float]:
    return [abs(p / row.step_time_s - 1) for row, p in zip(rows, predicted, strict=True)]


def _row_of(rows: list[Row], workload: Workload) -> Row:
    return next(row for row in rows if row.plan == workload.default_plan)


def _as_data(workload: Workload, rows: list[Row], baseline: Run) -> dict[str, object]:
    calibration = calibrate((), own=[baseline]).calibration
    predicted = predicted_s(workload, rows, calibration)
    plans = [
        {
            "plan": plan_name(row.plan),
            "rounds_s": row.rounds_s,
            "step_time_s": row.step_time_s,
            "predicted_s": p,
        }
        for row, p in zip(rows, predicted, strict=True)
    ]
    return {"workload": workload.name, "baseline_terms_s": baseline.measured.terms_s, "plans": plans}


if __name__ == "__main__":
    sys.exit(main())
