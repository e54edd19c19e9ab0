"""`make fit-preferences`: learns from published recipes which families of plans practitioners run.

A conditional logit (McFadden, 1974): the chance of a family goes with its predicted time and its features.
Signs are free. Each source counts as the square root of its workloads. How strongly weights are pulled to
zero is chosen by leaving whole sources out.
"""

import datetime
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from research.published import REPO, Offer, expert_runs, measurements, offers, read_runs
from tools.errors import AsapError
from tools.physics.inputs import Array
from tools.recommend.choose import FAMILY, Preferences, families, features

PULLS = (0.003, 0.0125, 0.05, 0.2)
TIME_WEIGHT = 30.0
"""Where the search for the worth of time starts, and what it is held to within a factor of e or so."""
OUTPUT = REPO / "kb_seed" / "calibration" / "preferences.json"


@dataclass(frozen=True)
class Choice:
    """One workload's families: cost, features, and which of them is the expert's."""

    source: str
    cost: Array
    columns: Array
    chosen: NDArray[np.bool_]


def choice(offer: Offer) -> Choice:
    found = families(offer.workload, offer.found.best)
    degrees = np.stack([offer.found.best.plans[name][found.rows] for name in FAMILY], axis=1)
    chosen = np.all(degrees == np.array(offer.family), axis=1)
    return Choice(offer.expert.source, found.cost, found.columns, chosen)


def learn(choices: Sequence[Choice], names: Sequence[str], pull: float) -> Preferences:
    usable = [c for c in choices if c.chosen.any() and len(c.cost) > 1]
    count = Counter(c.source for c in usable)

    def loss(values: Array) -> tuple[float, Array]:
        time, weights = np.exp(values[0]), values[1:]
        away = values[0] - np.log(TIME_WEIGHT)
        total, slope = 0.5 * away**2 + pull * float(np.sum(weights**2)), np.r_[away, 2.0 * pull * weights]
        for c in usable:
            share = count[c.source] ** -0.5
            utility = c.columns @ weights - time * c.cost
            chance = np.exp(utility - utility.max())
            chance /= chance.sum()
            likely = max(float(chance[c.chosen].sum()), 1e-12)
            pulls = np.where(c.chosen, chance / likely, 0.0) - chance
            total -= share * np.log(likely)
            slope = slope - share * np.r_[-time * (pulls @ c.cost), pulls @ c.columns]
        return total, slope

    start = np.r_[np.log(TIME_WEIGHT), np.zeros(len(names))]
    found = minimize(loss, start, jac=True, method="L-BFGS-B").x
    return Preferences(float(np.exp(found[0])), dict(zip(names, found[1:].tolist(), strict=True)))


def left_out(choices: Sequence[Choice], names: Sequence[str], pull: float) -> dict[str, Preferences]:
    """For each source, what the others teach."""
    return {
        source: learn([c for c in choices if c.source != source], names, pull)
        for source in sorted({c.source for c in choices})
    }


def likelihood(choices: Sequence[Choice], by_source: dict[str, Preferences]) -> float:
    """Mean over sources of the mean log chance of the expert's family, each by the other sources."""
    logs: dict[str, list[float]] = {}
    for c in choices:
        if c.chosen.any():
            learned = by_source[c.source]
            utility = c.columns @ np.array([*learned.weights.values()]) - learned.time * c.cost
            chance = np.exp(utility - utility.max())
            logs.setdefault(c.source, []).append(float(np.log(chance[c.chosen].sum() / chance.sum())))
    return float(np.mean([np.mean(values) for values in logs.values()]))


def feature_names(offer: Offer) -> list[str]:
    return list(features(offer.workload, offer.found.best))


def best_pull(choices: Sequence[Choice], names: Sequence[str]) -> float:
    return max(PULLS, key=lambda pull: likelihood(choices, left_out(choices, names, pull)))


def main() -> int:
    try:
        gathered = offers(expert_runs(measurements(read_runs())))
    except AsapError as error:
        print(f"fit-preferences: error: {error}", file=sys.stderr)
        return 2
    choices, names = [choice(o) for o in gathered], feature_names(gathered[0])
    for pull in PULLS:
        print(f"pull {pull}: mean log chance {likelihood(choices, left_out(choices, names, pull)):.3f}")
    pull = best_pull(choices, names)
    learned = learn(choices, names, pull)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    shipped = {
        "fitted_on": today,
        "workloads": len(choices),
        "pull": pull,
        "time": round(learned.time, 2),
        "weights": {name: round(weight, 3) for name, weight in learned.weights.items()},
    }
    OUTPUT.write_text(json.dumps(shipped, indent=1) + "\n")
    print(json.dumps(shipped, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
