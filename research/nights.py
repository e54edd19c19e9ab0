"""Synthetic nights with known regressions, recall and false alarms of the review and of Apache Otava on them,
and the prior on the scatter that real histories give.

Noise of 1 to 13 percent as in repeated real jobs, in five shapes: normal, heavy, slow, odd, measured; and the
step times of real rounds in their order (`GLOO`), which are not quiet and serve to compare detectors only.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import f as ratio_of_variances

from tools.nightly.attribution import CHANGE_KINDS, attribute, nights_with_changes
from tools.nightly.findings import alarm_night, list_series, new_regressions
from tools.nightly.night import Night, RunEnvironment
from tools.nightly.noise import USUAL_SCATTER, scatter
from tools.nightly.read import error_ratio
from tools.nightly.steps import DetectionRules, LevelStep, detect_steps, step_time_evidence

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
"""40 runs of testbed.trainer (two ranks, mean of 40 steps) on a two-core machine that five others used at the
time, 2026-11-16: logarithms of the step time off their median. Only the shape is taken from them."""
GLOO = "gloo"
GLOO_ROUNDS = Path(__file__).with_name("gloo_rounds.csv")
"""260 rounds of 20 steps by two gloo ranks (six products of 384 x 384 matrices, an all-reduce of 400,000
floats) on a two-core machine that others loaded with 3 to 90 processes, 2026-11-17: consecutive rounds, with
drifts and bursts, scaled to the scatter that is asked for."""
SIZES = (0.01, 0.02, 0.05, 0.13)
ODD_SHARE, ODD_SCATTERS = 0.03, 8.0
STAYING = 0.5
DECOYS = 3


@dataclass(frozen=True)
class Noise:
    scatter_ratio: float
    """Between nights."""
    shape: str = "normal"
    num_steps: int = 20
    """Profiled per night."""
    step_scatter_ratio: float = 0.01
    """Of the steps of a night."""


@dataclass(frozen=True)
class Injected:
    """A history with a regression put into it."""

    nights: list[Night]
    night: int
    size_ratio: float
    term: str
    kind: str | None
    """Which part of the environment changed that night, if that is recorded."""


def quiet_history(random: np.random.Generator, num_nights: int, noise: Noise) -> list[Night]:
    """Nights on which nothing happens, but that parts of the environment change without consequence."""
    deviations = deviations_of(random, num_nights, noise)
    places, kinds = random.integers(1, num_nights, DECOYS), random.choice(CHANGE_KINDS, DECOYS)
    decoys = dict(zip(places.tolist(), kinds.tolist(), strict=True))
    environment = RunEnvironment(
        versions={"torch": "1", "nccl": "1"}, plan={"tp": 1}, nodes=["n1"], data="d1"
    )
    nights = []
    for number, deviation in enumerate(deviations):
        if number in decoys:
            environment = _change_environment(environment, decoys[number], f"decoy {number}")
        nights.append(_night(random, number, float(deviation), noise, environment))
    return _as_recorded(random, nights, noise) if noise.shape == GLOO else nights


def _as_recorded(random: np.random.Generator, nights: list[Night], noise: Noise) -> list[Night]:
    """With the step times and terms of as many consecutive real rounds."""
    logs, shares, scale = _gloo_rounds()
    start = int(random.integers(len(logs) - len(nights) + 1))
    rounds = STEP_S * shares * np.exp(noise.scatter_ratio / scale * logs[start : start + len(nights)])
    return [
        night.model_copy(
            update={
                "step_time_s": float(compute_s + reduce_s),
                "terms_s": {"compute": float(compute_s), "dp_comm_exposed": float(reduce_s)},
            }
        )
        for night, (compute_s, reduce_s) in zip(nights, rounds, strict=True)
    ]


@cache
def _gloo_rounds() -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Logarithms of both terms off their medians, the terms' shares, and the scatter of the step time."""
    rounds = np.loadtxt(GLOO_ROUNDS, delimiter=",", skiprows=1)
    medians = np.median(rounds, axis=0)
    steps = np.log(rounds.sum(axis=1))
    return np.log(rounds / medians), medians / medians.sum(), scatter(steps - np.median(steps))


def with_regression(
    random: np.random.Generator,
    nights: list[Night],
    night: int,
    size_ratio: float,
    is_recorded: bool = True,
    *,
    is_alike: bool = False,
) -> Injected:
    """From that night on one part of the step takes longer, and one part of the environment is another."""
    terms = [term for term in nights[night].terms_s if term in SHARES]
    term, kind = str(random.choice(terms)), str(random.choice(CHANGE_KINDS))
    cause = kind if is_recorded else None
    grown = None if is_alike else term
    slower = [_slower(later, grown, size_ratio, cause, night) for later in nights[night:]]
    return Injected([*nights[:night], *slower], night, size_ratio, term, cause)


def with_drift(nights: list[Night], night: int, per_night: float) -> list[Night]:
    """From that night on the whole step takes longer by this much more every night."""
    slower = [_slower(each, None, per_night * (1 + k), None, night) for k, each in enumerate(nights[night:])]
    return [*nights[:night], *slower]


def deviations_of(random: np.random.Generator, count: int, noise: Noise) -> NDArray[np.float64]:
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
    random: np.random.Generator, number: int, deviation: float, noise: Noise, environment: RunEnvironment
) -> Night:
    rest = 1.0 - sum(SHARES.values())
    steps = random.normal(1.0, noise.step_scatter_ratio, noise.num_steps)
    deviation += float(np.log(np.mean(steps)))
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
        num_steps=noise.num_steps,
        step_time_s=step_s,
        step_error_ratio=error_ratio(steps.tolist()),
        mfu=0.4 * STEP_S / step_s,
        terms_s=terms_s,
        rank_spread_ratio=abs(float(random.normal(0.01, 0.2 * noise.scatter_ratio))),
        peak_memory_bytes=float(60 * 2**30 * np.exp(random.normal(0.0, 0.001))),
        environment=environment,
        source=NAME,
    )


def _slower(night: Night, term: str | None, size_ratio: float, kind: str | None, since: int) -> Night:
    """By this share of the step as it was, whatever its noise."""
    added_s, environment = size_ratio * night.step_time_s, night.environment
    step_s = night.step_time_s + added_s
    terms_s = {name: value_s * (1 + size_ratio) for name, value_s in night.terms_s.items()}
    if term:
        terms_s = {**night.terms_s, term: night.terms_s[term] + added_s}
    return night.model_copy(
        update={
            "step_time_s": step_s,
            "mfu": 0.4 * STEP_S / step_s,
            "terms_s": terms_s,
            "environment": _change_environment(environment, kind, f"cause {since}") if kind else environment,
        }
    )


def _change_environment(environment: RunEnvironment, kind: str, text: str) -> RunEnvironment:
    changes: dict[str, dict[str, object]] = {
        "software": {"versions": {**environment.versions, "torch": text}},
        "plan": {"plan": {**environment.plan, "tp": text}},
        "nodes": {"nodes": [text]},
        "data": {"data": text},
    }
    return environment.model_copy(update=changes[kind])


MONTH = 30
LEARNT = 21
"""Nights before false alarms are counted."""

Detect = Callable[[Sequence[Night]], list[int]]
"""From a history to the nights on which an alarm is raised."""


@dataclass(frozen=True)
class Task:
    """A regression after some quiet nights, to be found within some nights."""

    size_ratio: float
    noise: Noise
    num_quiet: int
    within: int
    is_recorded: bool | None = None
    """Whether its cause is recorded; None: in every second history."""
    has_terms: bool = True
    is_alike: bool = False
    """Whether every term grows by the same share, as with slower clocks."""


def histories(random: np.random.Generator, task: Task, count: int) -> Iterator[Injected]:
    for number in range(count):
        quiet = quiet_history(random, task.num_quiet + task.within, task.noise)
        is_recorded = number % 2 == 0 if task.is_recorded is None else task.is_recorded
        case = with_regression(
            random, quiet, task.num_quiet, task.size_ratio, is_recorded, is_alike=task.is_alike
        )
        yield case if task.has_terms else replace(case, nights=without_terms(case.nights))


def without_terms(nights: Sequence[Night]) -> list[Night]:
    return [night.model_copy(update={"terms_s": {}}) for night in nights]


def recall(cases: Sequence[Injected], detect: Detect) -> float:
    """Share of the histories whose regression raises an alarm before they end."""
    return sum(any(night >= case.night for night in detect(case.nights)) for case in cases) / len(cases)


def quiet_months(random: np.random.Generator, noise: Noise, count: int) -> list[list[Night]]:
    """Each month is a history of its own, after the nights in which its level is learnt."""
    return [quiet_history(random, LEARNT + MONTH, noise) for _ in range(count)]


def false_alarms(months: Sequence[Sequence[Night]], detect: Detect) -> tuple[float, float]:
    """Per workload: in the month after the level is learnt, and in the first month of all."""
    raised = [night for nights in months for night in detect(nights)]
    later, first = sum(night >= LEARNT for night in raised), sum(night < MONTH for night in raised)
    return later / len(months), first / len(months)


def review_alarms(nights: Sequence[Night]) -> list[int]:
    """Nights on which the review reports that the step got slower."""
    return [night for night, _ in alarms_of(nights)]


def otava_alarms(max_pvalue: float, start: int) -> Detect:
    """Apache Otava (Hunter) on the step time, run every night from `start` on.

    A change point that moves by up to three nights while nights are added is reported once.
    """
    from otava.analysis import compute_change_points

    def detect(nights: Sequence[Night]) -> list[int]:
        times_s = [night.step_time_s for night in nights]
        reported: list[int] = []
        alarms = []
        for night in range(start, len(nights)):
            points, _ = compute_change_points(
                times_s[: night + 1], max_pvalue=max_pvalue, min_magnitude=OTAVA_MIN_CHANGE
            )
            for point in points:
                is_new = all(abs(point.index - known) > OTAVA_SAME_NIGHTS for known in reported)
                if is_new:
                    reported.append(int(point.index))
                    if point.stats.mean_2 > point.stats.mean_1:
                        alarms.append(night)
        return alarms

    return detect


OTAVA_MIN_CHANGE = 0.01
OTAVA_SAME_NIGHTS = 3


def alarms_of(nights: Sequence[Night]) -> list[tuple[int, LevelStep]]:
    """Every night on which the step time is reported to have got worse."""
    series, changed = list_series(nights)[0], nights_with_changes(nights)
    strict, hints = step_time_evidence(nights, changed, DetectionRules())
    steps = detect_steps(series.values, USUAL_SCATTER, series.figure.min_change, strict, hints).steps
    raised = [(alarm_night(step, series, changed), step) for step in new_regressions(steps)]
    return [(night, step) for night, step in raised if night is not None]


def attributed(cases: Sequence[Injected]) -> tuple[float, float]:
    """Of the regressions found: shares whose term, and whose recorded cause, is named first."""
    terms, causes = [], []
    for case in cases:
        found = next(((night, step) for night, step in alarms_of(case.nights) if night >= case.night), None)
        if found:
            why = attribute(case.nights[: found[0] + 1], found[1].night)
            terms.append(bool(why.terms) and why.terms[0].term == case.term)
            if case.kind:
                causes.append(bool(why.changes) and why.changes[0].kind == case.kind)
    return float(np.mean(terms or [False])), float(np.mean(causes or [False]))


def fit_scatter_prior(scatters: Sequence[float], nights: Sequence[int]) -> tuple[float, float]:
    """The scale and the degrees of freedom of a scaled inverse chi-squared prior, by maximum likelihood.

    A sample variance over the scale is then a ratio of variances, which has Fisher's F distribution.
    """
    variances, freedom = np.square(scatters), np.asarray(nights) - 1

    def loss(logs: NDArray[np.float64]) -> float:
        scale, prior_freedom = np.exp(logs)
        densities = ratio_of_variances.logpdf(variances / scale**2, freedom, prior_freedom)
        return -float(np.sum(densities - 2 * np.log(scale)))

    scale, prior_freedom = np.exp(minimize(loss, [np.log(0.005), 0.0], method="Nelder-Mead").x)
    return float(scale), float(prior_freedom)
