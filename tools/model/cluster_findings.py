"""What is odd about a cluster's runs, in words, with what to measure next: farther off than every published
run of its kind, or contradicting each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tools.model.intervals import Exposures
from tools.model.likeness import NAMES, Traits
from tools.model.residual import Residual
from tools.model.runs import Run
from tools.physics.inputs import Array, Inputs

KINDS = ("dense models", "mixtures of experts", "hybrid models", "hybrid mixtures of experts")
"""By the number that `likeness.FACTS` gives each kind."""
MIN_PUBLISHED = 5
"""Published runs of the same kind and generation; with fewer, those of the kind on any device count."""
MIN_FACTOR = 1.25
"""Nearer than this no cluster is called far off, however close together the published runs are."""
MAX_REPEAT = 1.25
"""Runs of one plan that differ by more contradict each other: four standard deviations of a repeated run."""
EXPOSED_SHARE = 0.15
"""The share of the step from which on the network may be what is slow."""


@dataclass(frozen=True)
class ClusterFinding:
    """Something odd about a cluster's runs."""

    kind: Literal["far off", "contradiction"]
    message: str
    measure: str
    """What to measure to know more."""


def far_off(
    log_errors: Array, x: Inputs, traits: Traits, exposed: Exposures, published: Residual
) -> ClusterFinding | None:
    """`log_errors` are of measured over the formulas' time; rows of all belong together."""
    generation, kind = NAMES.index("generation"), traits.columns.index("kind")
    of_kind = published.runs.figures[:, published.runs.columns.index("kind")] == traits.figures[0, kind]
    alike = of_kind & (published.runs.names[:, generation] == traits.names[0, generation])
    place = f" on {traits.names[0, generation]}"
    if alike.sum() < MIN_PUBLISHED:
        alike, place = of_kind, ""
    errors, middle = published.errors[alike], float(np.median(log_errors))
    is_slower = middle > 0
    farthest = float((errors if is_slower else -errors).max(initial=0.0))
    if abs(middle) <= max(farthest, np.log(MIN_FACTOR)):
        return None
    suspect = "another batch, sequence or model than the scenario states"
    if is_slower:
        exchanged = float(np.median(exposed.exchange + exposed.network))
        is_eager = np.median(x.has_cuda_graph) + np.median(x.is_compiled) == 0
        suspect = "clocks, a power limit, or input and logging between the steps"
        if is_eager and np.median(x.is_moe) > 0:
            suspect = "eager launches of many small kernels"
        elif exchanged > EXPOSED_SHARE:
            suspect = "a slower network than the scenario states"
    word, kinds = ("slower", "faster")[not is_slower], KINDS[int(traits.figures[0, kind])]
    return ClusterFinding(
        "far off",
        f"{np.exp(abs(middle)):.1f} times {word} than the formulas say, and {word} than each of the "
        f"{int(alike.sum())} published runs of {kinds}{place} (at most {np.exp(farthest):.2f} times): "
        f"{suspect}?",
        "asap probe on its nodes measures launches, products and links by themselves; a profile of one step "
        "(asap diagnose) shows which term is off",
    )


def contradictions_among(runs: Sequence[Run], plans: Array) -> list[ClusterFinding]:
    """Runs with a step time are compared; `plans` has the same number for runs of the same plan."""
    found = []
    for plan in dict.fromkeys(plans.tolist()):
        times = [
            (run.measured.step_time_s or 0.0, run.title)
            for run, other in zip(runs, plans, strict=True)
            if other == plan
        ]
        (fast_s, fast), (slow_s, slow) = min(times), max(times)
        if slow_s > MAX_REPEAT * fast_s:
            message = f"{fast} and {slow} are runs of one plan and differ by {slow_s / fast_s:.2f} times"
            again = "run that plan again, alone on its nodes and with the same release"
            found.append(ClusterFinding("contradiction", f"{message}; its interval is as wide", again))
    return found
