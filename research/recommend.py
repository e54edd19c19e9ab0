"""`make bench-recommend`: does the search find the plans that experts published?"""

import sys
import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from research.fit import MEASUREMENTS
from research.preferences import left_out_weights
from research.published import SMALL_MODEL_SOURCE, Measurement, Offer, expert_runs, offers, read_measurements
from tools.cost.predict import predict
from tools.errors import AsapError
from tools.recommend.choose import different, preferred_order
from tools.scenario import Facts, legal_mask
from tools.search.space import to_columns, where

Result = tuple[bool, bool, bool, float]
"""Agreement of the first and of any proposal, whether one is a field away at most, the expert's regret."""


def main() -> int:
    try:
        rows = read_measurements(MEASUREMENTS)
    except AsapError as error:
        print(f"bench-recommend: error: {error}", file=sys.stderr)
        return 2
    started = time.perf_counter()
    gathered = [o for o in offers(expert_runs(rows)) if len(o.differences)]
    seconds = time.perf_counter() - started
    print_agreement(gathered)
    print_choices(rows)
    print(f"\n{sum(o.found.searched for o in gathered):,} plans decided in {seconds:.0f} s, two processes")
    return 0


def print_agreement(gathered: Sequence[Offer]) -> None:
    by_source: dict[str, list[Result]] = defaultdict(list)
    proposals = legal = 0
    for offer, weights in zip(gathered, left_out_weights(gathered), strict=True):
        scenario, best = offer.expert.scenario, offer.found.best
        order = preferred_order(scenario, best, offer.capacity_bytes, weights)
        rows = different(best.plans, order)
        hits = [offer.agrees(row) for row in rows]
        near = bool(offer.differences[rows].min() <= 1)
        regret = offer.expert_time_s / float(best.step_time_s[rows[0]])
        by_source[offer.expert.source].append((hits[0], any(hits), near, regret))
        legal += _legal(offer, rows)
        proposals += len(rows)
    print(f"{'source':16}{'workloads':>10}{'top-1':>8}{'top-3':>8}{'one field':>11}{'regret':>8}")
    for source, results in sorted(by_source.items()):
        print(_line(source, results))
    print(_line("all", [r for results in by_source.values() for r in results]))
    print(f"proposals that the framework accepts: {legal} of {proposals}")


def _line(name: str, results: Sequence[Result]) -> str:
    first, any_of_three, near, regrets = (np.array(column) for column in zip(*results, strict=True))
    shares = f"{first.mean():>8.0%}{any_of_three.mean():>8.0%}{near.mean():>11.0%}"
    figures = f"{shares}{np.median(regrets):>8.2f}"
    return f"{name:16}{len(results):>10}{figures}"


def _legal(offer: Offer, rows: Sequence[int]) -> int:
    s = offer.expert.scenario
    plans = to_columns(where(offer.found.best.plans, np.array(rows)))
    return int(np.sum(legal_mask(Facts(s.model, s.cluster, s.training, plans))))


def print_choices(rows: Sequence[Measurement]) -> None:
    """Where several plans of one workload were measured: how well the model ranks and picks."""
    workloads: dict[tuple[object, ...], list[Measurement]] = defaultdict(list)
    for row in rows:
        if row.source != SMALL_MODEL_SOURCE:
            s = row.scenario
            workloads[(row.source, s.model, s.cluster.device, s.cluster.num_devices, s.training)].append(row)
    several = [same for same in workloads.values() if len({row.scenario.plan for row in same}) > 1]
    slower, agreement = zip(*(_pick(same) for same in several), strict=True)
    print(f"\nworkloads with several measured plans: {len(several)}")
    print(f"the plan we would pick is slower than the best measured by {np.mean(slower):.1%} on average")
    print(f"Kendall tau of predicted and measured order, mean: {np.mean(agreement):.2f}")


def _pick(same: Sequence[Measurement]) -> tuple[float, float]:
    measured = np.array([row.step_time_s for row in same])
    predicted = np.array([p.step_time_s for p in predict([row.scenario for row in same])])
    upper = np.triu_indices(len(same), k=1)
    signs = np.sign(np.subtract.outer(measured, measured)) * np.sign(np.subtract.outer(predicted, predicted))
    return float(measured[np.argmin(predicted)] / measured.min() - 1.0), float(np.mean(signs[upper]))


if __name__ == "__main__":
    raise SystemExit(main())
