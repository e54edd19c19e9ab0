"""`make fit-preferences`: learns from the experts' choices which plans they prefer at the same predicted
time.

A conditional logit (McFadden, 1974).
"""

import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from research.fit import MEASUREMENTS, REPO
from research.published import Offer, expert_runs, offers, read_measurements
from tools.cost.inputs import Array
from tools.errors import AsapError
from tools.recommend.choose import features

PULL_TO_ZERO = 0.05
KEPT_BY_TIME = 1500
TIME_WEIGHT_BOUNDS = (5.0, 200.0)
OUTPUT = REPO / "kb_seed" / "calibration" / "preferences.json"


@dataclass(frozen=True)
class Choice:
    """One workload's plans as columns (log time first) and which of them are the expert's."""

    columns: Array
    chosen: NDArray[np.bool_]


def choice(offer: Offer) -> Choice:
    ranked = offer.found.best
    named = features(offer.expert.scenario, ranked, offer.capacity_bytes)
    behind = np.log(ranked.step_time_s / ranked.step_time_s.min())
    chosen = offer.differences == offer.differences.min()
    keep = np.arange(len(behind)) < KEPT_BY_TIME
    keep |= chosen
    return Choice(np.stack([behind, *named.values()], axis=1)[keep], chosen[keep])


def learn_weights(choices: Sequence[Choice], names: Sequence[str]) -> dict[str, float]:
    def loss(weights: Array) -> tuple[float, Array]:
        total, slope = PULL_TO_ZERO * float(np.sum(weights[1:] ** 2)), 2.0 * PULL_TO_ZERO * weights
        slope[0] = 0.0
        for choice in choices:
            utility = -(choice.columns @ weights)
            chance = np.exp(utility - utility.max())
            chance /= chance.sum()
            likely = max(float(chance[choice.chosen].sum()), 1e-12)
            within = np.where(choice.chosen, chance / likely, 0.0)
            total -= np.log(likely) / len(choices)
            slope = slope + choice.columns.T @ (within - chance) / len(choices)
        return total, slope

    start = np.zeros(1 + len(names))
    start[0] = 30.0
    # a feature may cost something, never earn: what it earns is the cost model's to say
    bounds = [TIME_WEIGHT_BOUNDS, *[(0.0, None)] * len(names)]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return {name: float(weight / found[0]) for name, weight in zip(names, found[1:], strict=True)}


def feature_names(offer: Offer) -> list[str]:
    return list(features(offer.expert.scenario, offer.found.best, offer.capacity_bytes))


def left_out_weights(gathered: Sequence[Offer], folds: int = 10) -> list[Mapping[str, float]]:
    """For each workload, weights learned without it and the others of its fold."""
    choices, names = [choice(o) for o in gathered], feature_names(gathered[0])
    by_fold = [
        learn_weights([c for i, c in enumerate(choices) if i % folds != fold], names) for fold in range(folds)
    ]
    return [by_fold[i % folds] for i in range(len(gathered))]


def main() -> int:
    try:
        experts = expert_runs(read_measurements(MEASUREMENTS))
    except AsapError as error:
        print(f"fit-preferences: error: {error}", file=sys.stderr)
        return 2
    gathered = [o for o in offers(experts) if len(o.differences)]
    weights = learn_weights([choice(o) for o in gathered], feature_names(gathered[0]))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    rounded = {name: round(weight, 4) for name, weight in weights.items()}
    OUTPUT.write_text(
        json.dumps({"fitted_on": today, "workloads": len(gathered), "weights": rounded}, indent=1) + "\n"
    )
    print(json.dumps(rounded))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
