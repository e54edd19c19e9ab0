"""What the nightly review finds: precision and recall by size of a regression, false alarms in quiet months.

    python benchmarks/nightly.py [--histories N] [--seed N]

On synthetic histories (research/nights.py): invented nights, noise of 1 to 13 percent as repeated
real runs had it, regressions of 2 to 20 percent from one night on. Of every second one the cause is recorded.
Simpler tests are scored too, which shows what the review adds.
"""

import argparse
import sys
import time
from itertools import pairwise
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

import numpy as np  # noqa: E402

from research.nights import (  # noqa: E402
    LEARNT,
    MEASURED,
    MONTH,
    SHAPES,
    SIZES,
    WATCHED,
    WEEK,
    Noise,
    quiet_history,
    score_found,
    score_quiet,
    with_regression,
)
from service.cli.parser import positive_number  # noqa: E402
from tools.nightly.night import Night  # noqa: E402
from tools.nightly.noise import Values  # noqa: E402
from tools.nightly.steps import Rules  # noqa: E402

REGRESSIONS = (0.02, 0.03, 0.05, 0.1, 0.2)
MAD_FACTOR = 1.4826
YESTERDAY_RATIO = 1.05
TYPICAL = Noise(0.02)
ABOUT = """\
{histories} synthetic histories of each kind, seed {seed}. Sizes of the noise: repeated real jobs on one
machine of our own spread by 1 to 13%. Its shapes: normal; heavy (Student's t, 4 degrees of freedom);
slow (half of a night's deviation stays for the next); odd (3 nights in 100 are slow by several scatters);
measured (drawn from {runs} real runs of tools.trainer on a busy two-core machine).
"""


def median(values: Values) -> float:
    return float(np.median(values))


def mad(values: Values) -> float:
    return float(MAD_FACTOR * np.median(np.abs(values - np.median(values))))


CONTENDERS: dict[str, Rules] = {
    "the review": Rules(),
    "by median and MAD": Rules(level=median, scatter=mad),
    "whatever else changed": Rules(explained_alarms=0.0),
    "last two nights only": Rules(lengths=(1, 2)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=positive_number, default=100, help="of each kind (100)")
    parser.add_argument("--seed", type=int, default=8)
    args = parser.parse_args()
    started = time.monotonic()
    print(ABOUT.format(histories=args.histories, seed=args.seed, runs=len(MEASURED)))
    print_quiet(args.histories, args.seed)
    print_found(args.histories, args.seed)
    print_contenders(args.histories, args.seed)
    print(f"{time.monotonic() - started:.0f} s")


def print_quiet(histories: int, seed: int) -> None:
    print("A quiet month of one workload: false alarms (slow nights that the next one cleared; notices of")
    print("other figures than the step time)")
    print(f"{'noise':>8}" + "".join(f"{shape:>22}" for shape in SHAPES))
    for size in SIZES:
        cells = [score_quiet(np.random.default_rng(seed), Noise(size, shape), histories) for shape in SHAPES]
        texts = [f"{cell.alarms:.2f} ({cell.suspicions:.2f}; {cell.notices:.2f})" for cell in cells]
        print(f"{size:>8.0%}" + "".join(f"{text:>22}" for text in texts))
    print()


def print_found(histories: int, seed: int) -> None:
    print(
        f"Regressions: reported within 2 nights, a week, a fortnight; precision of the alarms of {LEARNT} to"
    )
    print(f"{LEARNT + WEEK} quiet nights and {WATCHED} after; grown part, and recorded cause, named first")
    head = ("noise", "shape", "regression", "2 nights", "week", "fortnight", "precision", "part", "cause")
    print("".join(f"{name:>11}" for name in head))
    for size in SIZES:
        for shape in SHAPES if size == TYPICAL.scatter_ratio else SHAPES[:1]:
            for regression in REGRESSIONS:
                _print_found(Noise(size, shape), regression, histories, seed)
    print()


def _print_found(noise: Noise, regression: float, histories: int, seed: int) -> None:
    score = score_found(np.random.default_rng(seed), noise, regression, histories)
    shares = (
        score.two_nights,
        score.week,
        score.fortnight,
        score.precision,
        score.term_right,
        score.cause_right,
    )
    if not score.fortnight:
        shares = (*shares[:3], float("nan"), float("nan"), float("nan"))
    cells = [f"{noise.scatter_ratio:.0%}", noise.shape, f"{regression:.0%}", *(f"{x:.0%}" for x in shares)]
    print("".join(f"{text.replace('nan%', '-'):>11}" for text in cells))


def print_contenders(histories: int, seed: int) -> None:
    print(
        f"What the parts add, at {TYPICAL.scatter_ratio:.0%} normal noise: false alarms per quiet month, and"
    )
    print("reported within a fortnight (high recall alone proves nothing: read both)")
    print(f"{'test':>30}{'false alarms':>14}" + "".join(f"{size:>8.0%}" for size in REGRESSIONS))
    for name, rules in CONTENDERS.items():
        quiet = score_quiet(np.random.default_rng(seed), TYPICAL, histories, rules).alarms
        reported = [
            score_found(np.random.default_rng(seed), TYPICAL, size, histories, rules).fortnight
            for size in REGRESSIONS
        ]
        _print_contender(name, quiet, reported)
    name = f"yesterday + {YESTERDAY_RATIO - 1:.0%}"
    _print_contender(name, *_yesterday(np.random.default_rng(seed), histories))
    print()


def _print_contender(name: str, quiet: float, reported: list[float]) -> None:
    print(f"{name:>30}{quiet:>14.2f}" + "".join(f"{share:>8.0%}" for share in reported))


def _yesterday(random: np.random.Generator, histories: int) -> tuple[float, list[float]]:
    """What is often done: last night beside the one before, and a threshold."""
    quiet = sum(_count_slower(quiet_history(random, LEARNT + MONTH, TYPICAL)) for _ in range(histories))
    return quiet / histories, [_share_found(random, size, histories) for size in REGRESSIONS]


def _share_found(random: np.random.Generator, size: float, histories: int) -> float:
    hits = 0
    for _ in range(histories):
        case = with_regression(random, quiet_history(random, LEARNT + WATCHED, TYPICAL), LEARNT, size)
        hits += _count_slower(case.nights) > 0
    return hits / histories


def _count_slower(nights: list[Night]) -> int:
    times_s = [night.step_time_s for night in nights[LEARNT - 1 :]]
    return sum(now > YESTERDAY_RATIO * before for before, now in pairwise(times_s))


if __name__ == "__main__":
    main()
