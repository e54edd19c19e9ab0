"""Synthetic nights with known regressions, and precision, recall and false alarms of the review on them.

Noise of 1 to 13 percent as in repeated real jobs, in five shapes: normal, heavy, slow, odd, measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tools.nightly.attribution import KINDS, attribute, nights_with_changes
from tools.nightly.findings import MFU, STEP_TIME, STRICTER, Series, alarm_night, list_series
from tools.nightly.night import Night, RunEnvironment
from tools.nightly.noise import scatter
from tools.nightly.steps import Rules, Step, detect_steps

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
    """A history with a regression put into it."""

    nights: list[Night]
    night: int
    size_ratio: float
    term: str
    kind: str | None
    """Which part of the environment changed that night, if that is recorded."""


def quiet_history(random: np.random.Generator, num_nights: int, noise: Noise) -> list[Night]:
    """Nights on which nothing happens, but that parts of the environment change without consequence."""
    deviations = _deviations(random, num_nights, noise)
    places, kinds = random.integers(1, num_nights, DECOYS), random.choice(KINDS, DECOYS)
    decoys = dict(zip(places.tolist(), kinds.tolist(), strict=True))
    environment = RunEnvironment(
        versions={"torch": "1", "nccl": "1"}, plan={"tp": 1}, nodes=["n1"], data="d1"
    )
    nights = []
    for number, deviation in enumerate(deviations):
        if number in decoys:
            environment = _changed(environment, decoys[number], f"decoy {number}")
        nights.append(_night(random, number, float(deviation), noise, environment))
    return nights


def with_regression(
    random: np.random.Generator, nights: list[Night], night: int, size_ratio: float, is_recorded: bool = True
) -> Injected:
    """From that night on one part of the step takes longer, and one part of the environment is another."""
    term, kind = str(random.choice(list(SHARES))), str(random.choice(KINDS))
    cause = kind if is_recorded else None
    slower = [_slower(later, term, size_ratio, cause, night) for later in nights[night:]]
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
    random: np.random.Generator, number: int, deviation: float, noise: Noise, environment: RunEnvironment
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
        environment=environment,
        source=NAME,
    )


def _slower(night: Night, term: str, size_ratio: float, kind: str | None, since: int) -> Night:
    """By this share of the step as it was, whatever its noise."""
    added_s, environment = size_ratio * night.step_time_s, night.environment
    step_s = night.step_time_s + added_s
    return night.model_copy(
        update={
            "step_time_s": step_s,
            "mfu": 0.4 * STEP_S / step_s,
            "terms_s": {**night.terms_s, term: night.terms_s[term] + added_s},
            "environment": _changed(environment, kind, f"cause {since}") if kind else environment,
        }
    )


def _changed(environment: RunEnvironment, kind: str, text: str) -> RunEnvironment:
    changes: dict[str, dict[str, object]] = {
        "software": {"versions": {**environment.versions, "torch": text}},
        "plan": {"plan": {**environment.plan, "tp": text}},
        "nodes": {"nodes": [text]},
        "data": {"data": text},
    }
    return environment.model_copy(update=changes[kind])


MONTH = 30
LEARNT = 21
"""Nights before a regression is injected."""
WATCHED = 14
"""Nights after it in which an alarm counts as having found it."""
WEEK = 7

Alarm = tuple[int, Step]
"""The night on which it is raised."""


@dataclass(frozen=True)
class Quiet:
    """Scores of histories in which nothing happened, per workload and month."""

    months: float
    alarms: float
    """Of the step time: what changes the exit status."""
    suspicions: float
    """Slow nights that the next one cleared."""
    notices: float
    """Of the other figures."""


@dataclass(frozen=True)
class Found:
    """Scores of histories with one regression each."""

    size_ratio: float
    histories: int
    two_nights: float
    week: float
    fortnight: float
    """Shares that were reported within that time."""
    precision: float
    """Share of all alarms of the step time that are the regression's."""
    term_right: float
    """Share of the found ones whose grown part of the step comes first."""
    cause_right: float
    """Share of the found ones with a recorded cause that comes first."""


def score_quiet(random: np.random.Generator, noise: Noise, months: int, rules: Rules | None = None) -> Quiet:
    """Each month is a history of its own, after the nights in which its level is learnt."""
    alarms = suspicions = notices = 0
    for _ in range(months):
        nights = quiet_history(random, LEARNT + MONTH, noise)
        alarms += sum(night >= LEARNT for night, _ in alarms_of(nights, rules))
        suspicions += _suspicions(nights, rules)
        notices += _notices(nights, rules)
    return Quiet(months, alarms / months, suspicions / months, notices / months)


def score_found(
    random: np.random.Generator, noise: Noise, size_ratio: float, histories: int, rules: Rules | None = None
) -> Found:
    """Of every second regression the cause is recorded: a change of environment on its night."""
    delays: list[int] = []
    alarms = terms = causes = recorded = 0
    for number in range(histories):
        night = int(random.integers(LEARNT, LEARNT + WEEK))
        quiet = quiet_history(random, LEARNT + WEEK + WATCHED, noise)
        case = with_regression(random, quiet, night, size_ratio, is_recorded=number % 2 == 0)
        raised = alarms_of(case.nights, rules)
        alarms += len(raised)
        found = next((alarm for alarm in raised if night <= alarm[0] < night + WATCHED), None)
        if found:
            delays.append(found[0] - night)
            recorded += case.kind is not None
            term, cause = _attributed(case, found)
            terms, causes = terms + term, causes + cause
    return Found(
        size_ratio,
        histories,
        sum(delay < 2 for delay in delays) / histories,
        sum(delay < WEEK for delay in delays) / histories,
        len(delays) / histories,
        len(delays) / alarms if alarms else 1.0,
        terms / max(len(delays), 1),
        causes / max(recorded, 1),
    )


def alarms_of(nights: Sequence[Night], rules: Rules | None = None) -> list[Alarm]:
    """Every night on which the step time is reported to have got worse."""
    rules = rules or Rules()
    series, changed = list_series(nights)[0], nights_with_changes(nights)
    recorded = recorded_hints(changed)
    hints = [*recorded, *term_hints(nights, recorded, rules)]
    steps = detect_steps(series.values, USUAL_SCATTER, series.figure.min_change, rules, hints).steps
    raised = [(alarm_night(step, series, changed), step) for step in new_regressions(steps)]
    return [(night, step) for night, step in raised if night is not None]


def _attributed(case: Injected, found: Alarm) -> tuple[bool, bool]:
    """As reported on the night of the alarm."""
    night, step = found
    why = attribute(case.nights[: night + 1], step.night)
    term = why.terms[0].term if why.terms else None
    cause = why.changes[0].kind if why.changes else None
    return term == case.term, case.kind is not None and cause == case.kind
