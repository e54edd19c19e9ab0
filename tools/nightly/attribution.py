"""Why a figure changed: which part of the step grew, what else changed that night, which ranks are slow; and
which runs would decide between several recorded changes, each a request of `tune` mode with some of them
reverted.

Coincident changes are reported as coincident, not as the cause.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from pydantic import Field

from tools.nightly.findings import Finding
from tools.nightly.night import Night, SlowRank, StoredResult, parse_plan_value
from tools.nightly.noise import level
from tools.recommend.report import PlanFields

WINDOW = 28
NEAR_NIGHTS = 3
MIN_SHARE = 0.1
"""A part that makes up less of the change than this is not named."""
MIN_RANK_RATIO = 0.05
ABSENT = "none"
PRESENT = "in use"
Kind = Literal["software", "plan", "nodes", "data"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Facts = Mapping[str, str]


class TermChange(StoredResult):
    term: str
    before_s: float
    now_s: float
    share: float
    """Of the change of the step."""


class EnvironmentChange(StoredResult):
    kind: Kind
    name: str
    before: str
    now: str
    night: float
    """Time of the night on which it changed."""
    offset: int
    """Nights after the step began; 0 is the same night."""


class Attribution(StoredResult):
    terms: list[TermChange]
    changes: list[EnvironmentChange]
    slow_ranks: list[SlowRank]
    """Of the last night, unless they were slow before."""
    unknown: list[str]
    """Kinds of environment that no night records, so that nothing can be said about them."""


def attribute(nights: Sequence[Night], since: int) -> Attribution:
    """Why the nights from `since` on differ from those before."""
    before, after = nights[max(0, since - WINDOW) : since], nights[since:]
    changes = sorted(
        _changes(nights, since), key=lambda change: (abs(change.offset), change.kind, change.name)
    )
    return Attribution(
        terms=_terms(before, after),
        changes=changes,
        slow_ranks=_slow_ranks(before, after),
        unknown=[kind for kind in KINDS if not any(_facts(night, kind) for night in nights)],
    )


def nights_with_changes(nights: Sequence[Night]) -> set[int]:
    """Those whose environment differs from the last recorded one."""
    return {
        night
        for night in range(1, len(nights))
        for kind in KINDS
        if (was := _last_known(nights[:night], kind)) and (now := _facts(nights[night], kind)) and was != now
    }


def _terms(before: Sequence[Night], after: Sequence[Night]) -> list[TermChange]:
    """Parts that moved in the direction of the step, the largest first."""
    step_s = _level([night.step_time_s for night in after]) - _level([night.step_time_s for night in before])
    changes = []
    for term in sorted({term for night in [*before, *after] for term in night.terms_s}):
        was_s, is_s = (_level([night.terms_s.get(term, 0.0) for night in side]) for side in (before, after))
        share = (is_s - was_s) / step_s if step_s else 0.0
        if share >= MIN_SHARE:
            changes.append(TermChange(term=term, before_s=was_s, now_s=is_s, share=share))
    return sorted(changes, key=lambda change: -change.share)


def _level(values: list[float]) -> float:
    return level(np.asarray(values)) if values else 0.0


def _changes(nights: Sequence[Night], since: int) -> Iterator[EnvironmentChange]:
    """Changes near the step that have lasted."""
    start, end = max(1, since - NEAR_NIGHTS), min(len(nights), since + NEAR_NIGHTS + 1)
    for kind in KINDS:
        first, latest = _last_known(nights[:start], kind), _last_known(nights, kind)
        for night in range(start, end):
            was, now = _last_known(nights[:night], kind), _facts(nights[night], kind)
            for name in sorted(now.keys() | was.keys()) if was and now else []:
                before, after = was.get(name, ABSENT), now.get(name, ABSENT)
                if before != after and _lasts(name, after, latest, first):
                    yield EnvironmentChange(
                        kind=kind, name=name, before=before, now=after, night=nights[night].at,
                        offset=night - since,
                    )  # fmt: skip


def _lasts(name: str, value: str, latest: Facts, first: Facts) -> bool:
    """It is still so, and was not so before: what was reverted is no cause."""
    return latest.get(name, ABSENT) == value and (not first or first.get(name, ABSENT) != value)


def _last_known(nights: Sequence[Night], kind: Kind) -> Facts:
    return next((facts for night in reversed(nights) if (facts := _facts(night, kind))), {})


def _facts(night: Night, kind: Kind) -> Facts:
    """Of one kind, as names and texts; empty if the night does not record it."""
    environment = night.environment
    if kind == "software":
        return environment.versions
    if kind == "plan":
        return {name: str(value) for name, value in environment.plan.items()}
    if kind == "nodes":
        return dict.fromkeys(environment.nodes, PRESENT)
    return {"data": environment.data} if environment.data else {}


def _slow_ranks(before: Sequence[Night], after: Sequence[Night]) -> list[SlowRank]:
    """Ranks of the last night that were at least five percent less slow before."""
    if not after:
        return []
    ratios = [{slow.rank: slow.ratio for slow in night.slow_ranks} for night in before]

    def usual(rank: int) -> float:
        return float(np.median([night.get(rank, 0.0) for night in ratios])) if ratios else 0.0

    return [slow for slow in after[-1].slow_ranks if slow.ratio - usual(slow.rank) >= MIN_RANK_RATIO]


MAX_OFFSET = 1
"""Nights after the step's first one that a cause may be recorded: its date is uncertain by about one."""
MAX_SUSPECTS = 8
PROOF_SCATTERS = 3.0
"""The difference of two measurements that decides a run, in its standard errors."""
MAX_REPEATS = 10
MIN_STEPS, WARM_UP_STEPS = 20, 5


class BisectionRun(StoredResult):
    name: str
    """"1", then "1.1" and so on below the run that leads to it."""
    revert: list[str]
    """Changes to revert; the others stay."""
    plan: PlanFields = Field(default_factory=dict)
    """Fields of the plan in this run, for the request."""
    if_fast: str
    if_slow: str


class Bisection(StoredResult):
    runs: list[BisectionRun]
    num_runs: int
    """That it takes in the worst case."""
    repeats: int
    """Of each run, so that the change stands out of the scatter."""
    device_hours: float
    """Of all runs it takes in the worst case."""


Suspect = tuple[str, list[EnvironmentChange]]


def plan_bisection(changes: Sequence[EnvironmentChange], finding: Finding, night: Night) -> Bisection | None:
    """None if no recorded change can be reverted."""
    suspects = _suspects([change for change in changes if change.offset <= MAX_OFFSET])[:MAX_SUSPECTS]
    if not suspects or finding.change_ratio <= 0:
        return None
    repeats = 2 * (PROOF_SCATTERS * finding.scatter_ratio / finding.change_ratio) ** 2
    repeats = max(1, min(math.ceil(repeats), MAX_REPEATS))
    num_runs = 1 + math.ceil(math.log2(len(suspects)))
    steps = max(night.num_steps, MIN_STEPS) + WARM_UP_STEPS
    return Bisection(
        runs=_runs(suspects),
        num_runs=num_runs,
        repeats=repeats,
        device_hours=num_runs * repeats * steps * night.step_time_s * night.num_devices / 3600,
    )


def _suspects(changes: Sequence[EnvironmentChange]) -> list[Suspect]:
    """Nodes are replaced together; every other change can be reverted by itself."""
    nodes = [change for change in changes if change.kind == "nodes"]
    suspects = [
        (f"{_name(change)} {change.before} to {change.now}", [change])
        for change in changes
        if change.kind != "nodes"
    ]
    if nodes:
        gone = [change.name for change in nodes if change.now == ABSENT]
        suspects.append((f"the new nodes{' (before: ' + ', '.join(gone) + ')' if gone else ''}", nodes))
    return suspects


def _name(change: EnvironmentChange) -> str:
    return change.name if change.kind == "data" else f"{change.kind} {change.name}"


def _runs(suspects: Sequence[Suspect], name: str = "1", *, is_first: bool = True) -> list[BisectionRun]:
    """The first run reverts everything, which shows whether the cause is among the recorded changes."""
    if is_first:
        found = f"the cause is {suspects[0][0]}" if len(suspects) == 1 else f"continue with run {name}.1"
        slow = "no recorded change is the cause: check the nodes and whatever is not recorded"
        rest = _runs(suspects, f"{name}.1", is_first=False) if len(suspects) > 1 else []
        return [_run(name, suspects, found, slow), *rest]
    half = -(-len(suspects) // 2)
    first, second = suspects[:half], suspects[half:]
    names = [f"{name}.1", f"{name}.2"]
    texts, below = [], []
    for part, part_name in zip((first, second), names, strict=True):
        is_found = len(part) == 1
        texts.append(f"the cause is {part[0][0]}" if is_found else f"continue with run {part_name}")
        below += [] if is_found else _runs(part, part_name, is_first=False)
    return [_run(name, first, *texts), *below]


def _run(name: str, suspects: Sequence[Suspect], if_fast: str, if_slow: str) -> BisectionRun:
    fields = {
        change.name: parse_plan_value(change.before)
        for _, changes in suspects
        for change in changes
        if change.kind == "plan"
    }
    return BisectionRun(
        name=name, revert=[text for text, _ in suspects], plan=fields, if_fast=if_fast, if_slow=if_slow
    )
