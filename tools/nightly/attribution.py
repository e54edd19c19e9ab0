"""Why a figure changed: which part of the step grew, what else changed that night, which ranks are slow.

Coincident changes are reported as coincident, not as the cause.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tools.nightly.night import Night, SlowRank
from tools.nightly.noise import level

WINDOW = 28
NEAR_NIGHTS = 3
LEAST_SHARE = 0.1
"""A part that makes less than this of the change is not named."""
LEAST_RANK_RATIO = 0.05
ABSENT = "none"
PRESENT = "in use"
KINDS = ("software", "plan", "nodes", "data")

Facts = Mapping[str, str]


@dataclass(frozen=True)
class TermChange:
    term: str
    before_s: float
    now_s: float
    share: float
    """Of the change of the step."""


@dataclass(frozen=True)
class SurroundingChange:
    kind: str
    """software, plan, nodes or data."""
    name: str
    before: str
    now: str
    night: int
    offset: int
    """Nights after the step began; 0 is the same night."""


@dataclass(frozen=True)
class Attribution:
    terms: list[TermChange]
    changes: list[SurroundingChange]
    slow_ranks: list[SlowRank]
    """Of the last night, where they were not slow before."""
    unknown: list[str]
    """Kinds of surroundings that no night records, so that nothing can be said about them."""


def attribute(nights: Sequence[Night], since: int) -> Attribution:
    """Why the nights from `since` on differ from those before."""
    before, after = nights[max(0, since - WINDOW) : since], nights[since:]
    return Attribution(
        terms=_terms(before, after),
        changes=sorted(_changes(nights, since), key=lambda one: (abs(one.offset), one.kind, one.name)),
        slow_ranks=_slow_ranks(before, after),
        unknown=[kind for kind in KINDS if not any(_facts(night, kind) for night in nights)],
    )


def nights_with_changes(nights: Sequence[Night]) -> set[int]:
    """Those on which some of the surroundings were not what they had been."""
    return {
        night
        for night in range(1, len(nights))
        for kind in KINDS
        if (was := _last_known(nights[:night], kind)) and (now := _facts(nights[night], kind)) and was != now
    }


def _terms(before: Sequence[Night], after: Sequence[Night]) -> list[TermChange]:
    """Parts that went the way the step went, the largest first."""
    step_s = _level([night.step_time_s for night in after]) - _level([night.step_time_s for night in before])
    found = []
    for term in sorted({term for night in [*before, *after] for term in night.terms_s}):
        was_s, is_s = (_level([night.terms_s.get(term, 0.0) for night in some]) for some in (before, after))
        share = (is_s - was_s) / step_s if step_s else 0.0
        if share >= LEAST_SHARE:
            found.append(TermChange(term, was_s, is_s, share))
    return sorted(found, key=lambda one: -one.share)


def _level(values: list[float]) -> float:
    return level(np.asarray(values)) if values else 0.0


def _changes(nights: Sequence[Night], since: int) -> Iterator[SurroundingChange]:
    """Changes near the step that have lasted."""
    start, end = max(1, since - NEAR_NIGHTS), min(len(nights), since + NEAR_NIGHTS + 1)
    for kind in KINDS:
        first, lasting = _last_known(nights[:start], kind), _last_known(nights, kind)
        for night in range(start, end):
            was, now = _last_known(nights[:night], kind), _facts(nights[night], kind)
            if was and now:
                names = [name for name in now.keys() | was.keys() if _lasts(name, now, lasting, first)]
                yield from _differences(kind, was, now, names, night, night - since)


def _lasts(name: str, now: Facts, lasting: Facts, first: Facts) -> bool:
    """It is still so, and was not so before: what was taken back is no cause."""
    value = now.get(name, ABSENT)
    return lasting.get(name, ABSENT) == value and (not first or first.get(name, ABSENT) != value)


def _last_known(nights: Sequence[Night], kind: str) -> Facts:
    return next((facts for night in reversed(nights) if (facts := _facts(night, kind))), {})


def _differences(
    kind: str, was: Facts, now: Facts, names: list[str], night: int, offset: int
) -> Iterator[SurroundingChange]:
    for name in sorted(names):
        before, after = was.get(name, ABSENT), now.get(name, ABSENT)
        if before != after:
            yield SurroundingChange(kind, name, before, after, night, offset)


def _facts(night: Night, kind: str) -> Facts:
    """Of one kind, as names and texts; empty where the night does not tell."""
    around = night.surroundings
    if kind == "software":
        return around.versions
    if kind == "plan":
        return {name: str(value) for name, value in around.plan.items()}
    if kind == "nodes":
        return dict.fromkeys(around.nodes, PRESENT)
    return {"data": around.data} if around.data else {}


def _slow_ranks(before: Sequence[Night], after: Sequence[Night]) -> list[SlowRank]:
    """Ranks of the last night that were at least five percent less slow before."""
    if not after:
        return []
    kept = [{one.rank: one.ratio for one in night.slow_ranks} for night in before]

    def usual(rank: int) -> float:
        return float(np.median([night.get(rank, 0.0) for night in kept])) if kept else 0.0

    return [one for one in after[-1].slow_ranks if one.ratio - usual(one.rank) >= LEAST_RANK_RATIO]
