"""Synthetic histories: invented nights with known regressions, to count what the review finds in them.

The size of the noise is that of real runs: repeated jobs on one machine of our own scattered by 1 to 13
percent. Its shape is tried five ways, since nobody knows that of the next cluster: normal; heavy (Student's t
with 4 degrees of freedom); slow (half of a night's deviation stays for the next, as load does); odd (normal,
and three nights in a hundred are slow by several times the scatter); measured (drawn from 40 real runs).
"""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from tools.nightly.attribution import KINDS
from tools.nightly.night import Night, Surroundings
from tools.nightly.noise import scatter

NAME = "synthetic"
DAY_S = 86_400.0
STEP_S = 10.0
SHARES = {"compute": 0.6, "memory_bound_ops": 0.1, "tp_comm_exposed": 0.08, "dp_comm_exposed": 0.1}
"""What is left of the step is `host_and_other`."""
TERM_SCATTER = 0.3
"""Of the night's scatter, for each part of the step by itself."""
SHAPES = ("normal", "heavy", "slow", "odd", "measured")
MEASURED = (
    -1.123, -0.101, 0.555, -0.245, 0.272, -0.468, 0.111, -0.187, 0.026, 0.486, -0.007, -0.212, 0.151, -0.112,
    0.236, -0.247, 0.300, 0.027, 0.097, 0.218, -0.003, 0.039, 0.065, -0.263, 0.521, -0.330, 0.508, -0.411,
    -0.006, 0.036, 0.003, -0.222, -0.058, -0.251, -0.358, -0.227, 0.465, -0.175, 0.103, 0.217,
)  # fmt: skip
"""40 runs of tools.trainer (two ranks, mean of 40 steps) on a two-core machine that five others used at the
time, 2026-11-16: logarithms of the step time off their median. Only the shape is taken from them."""
SIZES = (0.01, 0.02, 0.05, 0.13)
ODD_SHARE, ODD_SCATTERS = 0.03, 8.0
STAYING = 0.5
DECOYS = 3


@dataclass(frozen=True)
class Noise:
    scatter_ratio: float
    shape: str = "normal"


@dataclass(frozen=True)
class Injected:
    """What was done to a history."""

    nights: list[Night]
    night: int
    size_ratio: float
    term: str
    kind: str | None
    """Which of the surroundings changed that night, where that is recorded."""


def quiet_history(random: np.random.Generator, num_nights: int, noise: Noise) -> list[Night]:
    """Nights on which nothing happens, but that some surroundings change without consequence."""
    deviations = _deviations(random, num_nights, noise)
    places, kinds = random.integers(1, num_nights, DECOYS), random.choice(KINDS, DECOYS)
    decoys = dict(zip(places.tolist(), kinds.tolist(), strict=True))
    around = Surroundings(versions={"torch": "1", "nccl": "1"}, plan={"tp": 1}, nodes=["n1"], data="d1")
    nights = []
    for number, deviation in enumerate(deviations):
        if number in decoys:
            around = _changed(around, decoys[number], f"decoy {number}")
        nights.append(_night(random, number, float(deviation), noise, around))
    return nights


def with_regression(
    random: np.random.Generator, nights: list[Night], night: int, size_ratio: float, is_recorded: bool = True
) -> Injected:
    """From that night on one part of the step takes longer, and one of the surroundings is another."""
    term, kind = str(random.choice(list(SHARES))), str(random.choice(KINDS))
    cause = kind if is_recorded else None
    slower = [_slower(one, term, size_ratio, cause, night) for one in nights[night:]]
    return Injected([*nights[:night], *slower], night, size_ratio, term, cause)


def _deviations(random: np.random.Generator, count: int, noise: Noise) -> NDArray[np.float64]:
    """Logarithms of what a night is off its level."""
    normal = random.normal(0.0, 1.0, count)
    if noise.shape == "heavy":
        normal = random.standard_t(4, count) / np.sqrt(2.0)
    elif noise.shape == "odd":
        odd = random.random(count) < ODD_SHARE
        normal = normal + odd * random.exponential(ODD_SCATTERS, count)
    elif noise.shape == "measured":
        real = np.asarray(MEASURED)
        normal = random.choice(real, count) / scatter(real)
    elif noise.shape == "slow":
        for night in range(1, count):
            normal[night] = STAYING * normal[night - 1] + np.sqrt(1 - STAYING**2) * normal[night]
    return np.asarray(noise.scatter_ratio * normal)


def _night(
    random: np.random.Generator, number: int, deviation: float, noise: Noise, around: Surroundings
) -> Night:
    rest = 1.0 - sum(SHARES.values())
    own = TERM_SCATTER * noise.scatter_ratio
    terms_s = {
        term: STEP_S * share * float(np.exp(deviation + random.normal(0.0, own)))
        for term, share in {**SHARES, "host_and_other": rest}.items()
    }
    step_s = sum(terms_s.values())
    return Night(
        key=f"{NAME}-{number}",
        at=number * DAY_S,
        contract=NAME,
        num_devices=64,
        num_steps=20,
        step_time_s=step_s,
        mfu=0.4 * STEP_S / step_s,
        terms_s=terms_s,
        rank_spread_ratio=abs(float(random.normal(0.01, 0.2 * noise.scatter_ratio))),
        peak_memory_bytes=float(60 * 2**30 * np.exp(random.normal(0.0, 0.001))),
        surroundings=around,
        source=NAME,
    )


def _slower(night: Night, term: str, size_ratio: float, kind: str | None, since: int) -> Night:
    """By this share of the step as it was, whatever its noise."""
    added_s, around = size_ratio * night.step_time_s, night.surroundings
    step_s = night.step_time_s + added_s
    return msgspec.structs.replace(
        night,
        step_time_s=step_s,
        mfu=0.4 * STEP_S / step_s,
        terms_s={**night.terms_s, term: night.terms_s[term] + added_s},
        surroundings=_changed(around, kind, f"cause {since}") if kind else around,
    )


def _changed(around: Surroundings, kind: str, text: str) -> Surroundings:
    parts: dict[str, dict[str, object]] = {
        "software": {"versions": {**around.versions, "torch": text}},
        "plan": {"plan": {**around.plan, "tp": text}},
        "nodes": {"nodes": [text]},
        "data": {"data": text},
    }
    return msgspec.structs.replace(around, **parts[kind])
