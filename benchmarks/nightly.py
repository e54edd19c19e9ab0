"""What the nightly review finds and how often it is wrong, beside Apache Otava.

    python -m benchmarks.nightly [--histories N] [--seed N]

On synthetic histories (research/nights.py): invented nights, noise of 1 to 13 percent as repeated real runs
had it, a regression in one term of the step from one night on, three recorded changes without consequence.
Otava (the change-point detector of Hunter, `make peers` installs it) sees the same step times.
"""

import argparse
import time
from bisect import bisect_left
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

import numpy as np

from research.nights import (
    GLOO,
    MEASURED,
    SHAPES,
    SIZES,
    Injected,
    Noise,
    Task,
    attributed,
    false_alarms,
    histories,
    otava_alarms,
    quiet_months,
    recall,
    review_alarms,
    with_drift,
    without_terms,
)
from service.cli.parser import positive_number
from tools.nightly.night import Night
from tools.nightly.review import review

TWO_STEPS, MANY_STEPS = Noise(0.01, num_steps=2), Noise(0.01, num_steps=40)
BARS = (
    ("4%, 8 quiet nights, 2 steps, recorded: within 6 nights", Task(0.04, TWO_STEPS, 8, 6, True), 0.9),
    ("the same, not recorded", Task(0.04, TWO_STEPS, 8, 6, False), 0.6),
    ("3%, 14 quiet nights, 40 steps: within 4 nights", Task(0.03, MANY_STEPS, 14, 4), 0.9),
)
DRIFT, DRIFT_AFTER, DRIFT_NIGHTS = 0.005, 21, 14
MAX_FALSE_ALARMS = 0.15
MIN_RECALL_RATIO = 1.3
PEER_SHAPES = ("normal", "heavy", "measured", GLOO)
PEER_SIZES = (0.02, 0.03, 0.04)
PEER_NOISE, PEER_QUIET, PEER_WITHIN = 0.02, 21, 4
P_VALUES = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 2e-3, 4e-3, 7e-3, 1e-2)
ABOUT = """\
{histories} synthetic histories of each kind, seed {seed}. Shapes of the noise: normal; heavy (Student's t, 4
degrees of freedom); slow (half of a night's deviation stays for the next); odd (3 nights in 100 are slow by
several scatters); measured (drawn from {runs} real runs of the reference trainer on a busy machine); gloo
(260 real rounds of two ranks in their order, with drifts that are none of the detectors' fault: to compare
only). The steps of a night scatter by 1%.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=positive_number, default=60, help="of each kind (60)")
    parser.add_argument("--seed", type=int, default=8)
    args = parser.parse_args()
    started = time.monotonic()
    print(ABOUT.format(histories=args.histories, seed=args.seed, runs=len(MEASURED)))
    print_bars(args.histories, args.seed)
    print_drifts(args.histories, args.seed)
    print_quiet(args.histories, args.seed)
    if find_spec("otava"):
        print_beside_otava(args.histories, args.seed)
    else:
        print("Apache Otava is not installed; make peers installs it")
    print(f"{time.monotonic() - started:.0f} s")


def print_bars(count: int, seed: int) -> None:
    print("Regressions reported at 1% scatter between nights: one term grows (bar); the step time alone is")
    print("known; all terms grow alike; grown term, and recorded cause, named first")
    for name, task, bar in BARS:
        cases = list(histories(np.random.default_rng(seed), task, count))
        term, cause = attributed(cases)
        alike = list(histories(np.random.default_rng(seed), replace(task, is_alike=True), count))
        shares = (
            f"{recall(cases, review_alarms):>6.0%} ({bar:.0%}); {recall(_bare(cases), review_alarms):.0%}"
        )
        print(f"  {name:<58}{shares}; {recall(alike, review_alarms):.0%}; {term:.0%}, {cause:.0%}")
    print()


def print_drifts(count: int, seed: int) -> None:
    print(f"Drifts of {DRIFT:.1%} a night for {DRIFT_NIGHTS} nights, nights scatter by 1%: told as such (bar")
    print("90%); alarms of one; steps of 4% that are as old told as drifts")
    random = np.random.default_rng(seed)
    months = quiet_months(random, TWO_STEPS, count)
    drifts = [with_drift(nights[: DRIFT_AFTER + DRIFT_NIGHTS], DRIFT_AFTER, DRIFT) for nights in months]
    last = [review(nights).headline for nights in drifts]
    told = np.mean([found is not None and found.drift_ratio is not None for found in last])
    alarms = np.mean([sum(night >= DRIFT_AFTER for night in review_alarms(nights)) for nights in drifts])
    task = Task(0.04, TWO_STEPS, DRIFT_AFTER, DRIFT_NIGHTS)
    steps = [review(case.nights).headline for case in histories(random, task, count)]
    wrong = np.mean([found is not None and found.drift_ratio is not None for found in steps])
    print(f"  {told:.0%}; {alarms:.1f}; {wrong:.0%}\n")


def print_quiet(count: int, seed: int) -> None:
    print(f"False alarms per workload and quiet month after 21 nights (bar {MAX_FALSE_ALARMS});")
    print("in the first 30 nights; after 21 nights on the step time alone")
    print(f"{'scatter':>9}" + "".join(f"{shape:>18}" for shape in SHAPES))
    for size in SIZES[1:3]:
        cells = []
        for shape in SHAPES:
            months = quiet_months(np.random.default_rng(seed), Noise(size, shape), count)
            later, first = false_alarms(months, review_alarms)
            alone, _ = false_alarms([without_terms(nights) for nights in months], review_alarms)
            cells.append(f"{later:.2f} {first:.2f} {alone:.2f}")
        print(f"{size:>9.0%}" + "".join(f"{cell:>18}" for cell in cells))
    print()


def print_beside_otava(count: int, seed: int) -> None:
    """Otava at the largest p-value of a list that gives it at least as many false alarms as the review."""
    print(
        f"Reported within {PEER_WITHIN} nights at {PEER_NOISE:.0%} scatter after {PEER_QUIET} quiet nights,"
    )
    print("at equal false alarms per month: the review / on the step time alone / Otava; and the ratio of")
    print(f"the sums (bar {MIN_RECALL_RATIO})")
    for shape in PEER_SHAPES:
        noise = Noise(PEER_NOISE, shape)
        months = quiet_months(np.random.default_rng(seed), noise, count)
        ours = max(false_alarms(months, review_alarms)[0], 1 / count)
        p_value, theirs = _equal_alarms(months, ours)
        print(f"  {shape}: false alarms {ours:.2f}, Otava {theirs:.2f} at p {p_value:g}")
        sums = np.zeros(3)
        for size in PEER_SIZES:
            task = Task(size, noise, PEER_QUIET, PEER_WITHIN)
            cases = list(histories(np.random.default_rng(seed + 1), task, count))
            peer = otava_alarms(p_value, PEER_QUIET)
            shares = [recall(cases, review_alarms), recall(_bare(cases), review_alarms), recall(cases, peer)]
            sums += shares
            print(f"    {size:.0%} slower: " + " / ".join(f"{share:.0%}" for share in shares))
        if sums[2]:
            print(f"    {sums[0] / sums[2]:.1f} times Otava; on the step time alone {sums[1] / sums[2]:.1f}")
    print()


def _equal_alarms(months: list[list[Night]], ours: float) -> tuple[float, float]:
    """The smallest p-value at which Otava has at least as many false alarms, and how many those are."""
    alarms = cache(lambda p_value: false_alarms(months, otava_alarms(p_value, PEER_QUIET))[0])
    place = bisect_left(P_VALUES, ours, hi=len(P_VALUES) - 1, key=alarms)
    return P_VALUES[place], alarms(P_VALUES[place])


def _bare(cases: list[Injected]) -> list[Injected]:
    return [replace(case, nights=without_terms(case.nights)) for case in cases]


if __name__ == "__main__":
    main()
