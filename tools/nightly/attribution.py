"""Why a figure changed: which part of the step grew, what else changed that night, which ranks are slow; and
which runs would decide between several recorded changes, each a request of `tune` mode with some of them
reverted.

Coincident changes are reported as coincident, not as the cause.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from pydantic import Field

from tools.nightly.findings import NightFinding
from tools.nightly.night import Night, SlowRank, StoredResult, parse_plan_value
from tools.nightly.noise import level
from tools.recommend.report import PlanFields
from tools.trace.compare import ChangeCause, compare_parts

WINDOW = 28
NEAR_NIGHTS = 3
MIN_SHARE = 0.1
"""A part that makes up less of the change than this is not named."""
MIN_RANK_RATIO = 0.05
MAX_CAUSES = 3
ABSENT = "none"
PRESENT = "in use"
ChangeKind = Literal["software", "plan", "nodes", "data"]
CHANGE_KINDS: tuple[ChangeKind, ...] = get_args(ChangeKind)

Recorded = Mapping[str, str]
MAX_OFFSET = 1
"""Nights after the step's first one that a cause may be recorded: its date is uncertain by about one."""
MAX_SUSPECTS = 8
PROOF_SCATTERS = 3.0
"""The difference of two measurements that decides a run, in its standard errors."""
MAX_REPEATS = 10
MIN_STEPS, WARM_UP_STEPS = 20, 5


class TermGrowth(StoredResult):
    term: str
    before_s: float
    now_s: float
    share: float
    """Share of the step's change."""


class EnvironmentChange(StoredResult):
    kind: ChangeKind
    name: str
    before: str
    now: str
    night: float
    """Time of the night on which it changed."""
    offset: int
    """Nights after the step began; 0 is the same night."""


class Attribution(StoredResult):
    terms: list[TermGrowth]
    changes: list[EnvironmentChange]
    slow_ranks: list[SlowRank]
    """Ranks slow on the last night and not before."""
    causes: list[ChangeCause] = Field(default_factory=list)
    """What the traces of the last night say beside those of the last night before the change."""
    unknown: list[str]
    """Kinds of environment that no night records, so that nothing can be said about them."""


def attribute(nights: Sequence[Night], since: int) -> Attribution:
    """Why the nights from `since` on differ from those before."""
    before, after = nights[max(0, since - WINDOW) : since], nights[since:]
    usual = [{slow.rank: slow.ratio for slow in night.slow_ranks} for night in before]
    ratios = {
        slow: float(np.median([night.get(slow.rank, 0.0) for night in usual])) if usual else 0.0
        for slow in (after[-1].slow_ranks if after else ())
    }
    changes = _lasting_changes(nights, since)
    traced = [next((night.parts for night in reversed(side) if night.parts), []) for side in (before, after)]
    causes = compare_parts(*traced)[1] if all(traced) else []
    return Attribution(
        causes=[cause for cause in causes if cause.change_us * causes[0].change_us > 0][:MAX_CAUSES],
        terms=_changed_terms(before, after),
        changes=sorted(changes, key=lambda change: (abs(change.offset), change.kind, change.name)),
        slow_ranks=[slow for slow, ratio in ratios.items() if slow.ratio - ratio >= MIN_RANK_RATIO],
        unknown=[kind for kind in CHANGE_KINDS if not any(_recorded(night, kind) for night in nights)],
    )


def nights_with_changes(nights: Sequence[Night]) -> set[int]:
    """Those whose environment differs from the last recorded one."""
    return {
        night
        for night in range(1, len(nights))
        for kind in CHANGE_KINDS
        if (was := _last_recorded(nights[:night], kind))
        and (now := _recorded(nights[night], kind))
        and was != now
    }


def _changed_terms(before: Sequence[Night], after: Sequence[Night]) -> list[TermGrowth]:
    """Parts that moved in the direction of the step, the largest first."""

    def level_of(values: list[float]) -> float:
        return level(np.asarray(values)) if values else 0.0

    fast_s, slow_s = (level_of([night.step_time_s for night in side]) for side in (before, after))
    changes = []
    for term in sorted({term for night in [*before, *after] for term in night.terms_s}):
        was_s, is_s = (level_of([night.terms_s.get(term, 0.0) for night in side]) for side in (before, after))
        share = (is_s - was_s) / (slow_s - fast_s) if slow_s != fast_s else 0.0
        if share >= MIN_SHARE:
            changes.append(TermGrowth(term=term, before_s=was_s, now_s=is_s, share=share))
    return sorted(changes, key=lambda change: -change.share)


def _lasting_changes(nights: Sequence[Night], since: int) -> list[EnvironmentChange]:
    """Changes near the step that are still so and were not so before: what was reverted is no cause."""
    start, end = max(1, since - NEAR_NIGHTS), min(len(nights), since + NEAR_NIGHTS + 1)
    found = []
    for kind in CHANGE_KINDS:
        first, latest = _last_recorded(nights[:start], kind), _last_recorded(nights, kind)
        for night in range(start, end):
            was, now = _last_recorded(nights[:night], kind), _recorded(nights[night], kind)
            at, offset = nights[night].at, night - since
            for name in sorted(now.keys() | was.keys()) if was and now else []:
                old, new = was.get(name, ABSENT), now.get(name, ABSENT)
                is_new = not first or first.get(name, ABSENT) != new
                if old != new and is_new and latest.get(name, ABSENT) == new:
                    found.append(
                        EnvironmentChange(kind=kind, name=name, before=old, now=new, night=at, offset=offset)
                    )
    return found


def _last_recorded(nights: Sequence[Night], kind: ChangeKind) -> Recorded:
    return next((recorded for night in reversed(nights) if (recorded := _recorded(night, kind))), {})


def _recorded(night: Night, kind: ChangeKind) -> Recorded:
    """What the night records of one kind, as names and texts; empty if nothing."""
    environment = night.environment
    if kind == "software":
        return environment.versions
    if kind == "plan":
        return {name: str(value) for name, value in environment.plan.items()}
    if kind == "nodes":
        return dict.fromkeys(environment.nodes, PRESENT)
    return {"data": environment.data} if environment.data else {}


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
    """How often each run is made, so that the change stands out of the scatter."""
    device_hours: float
    """The sum over all runs it takes in the worst case."""


Suspect = tuple[str, list[EnvironmentChange]]


def plan_bisection(
    changes: Sequence[EnvironmentChange], finding: NightFinding, night: Night
) -> Bisection | None:
    """None if no recorded change can be reverted. Nodes are replaced together, all else by itself."""
    suspects: list[Suspect] = []
    nodes = []
    for change in (change for change in changes if change.offset <= MAX_OFFSET):
        if change.kind == "nodes":
            nodes.append(change)
            continue
        name = change.name if change.kind == "data" else f"{change.kind} {change.name}"
        suspects.append((f"{name} {change.before} to {change.now}", [change]))
    if nodes:
        gone = [change.name for change in nodes if change.now == ABSENT]
        suspects.append((f"the new nodes{' (before: ' + ', '.join(gone) + ')' if gone else ''}", nodes))
    suspects = suspects[:MAX_SUSPECTS]
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


def _runs(suspects: Sequence[Suspect], name: str = "1", *, is_first: bool = True) -> list[BisectionRun]:
    """The first run reverts everything, to show that the cause was recorded; each other half the suspects."""
    half = len(suspects) if is_first else -(-len(suspects) // 2)
    reverted, names = suspects[:half], [f"{name}.1", f"{name}.2"]
    texts, below = [], []
    for part, part_name in zip((reverted, suspects[half:]), names, strict=True):
        if len(part) > 1:
            texts.append(f"continue with run {part_name}")
            below += _runs(part, part_name, is_first=False)
        elif part:
            texts.append(f"the cause is {part[0][0]}")
        else:
            texts.append("no recorded change is the cause: check the nodes and whatever is not recorded")
    changes = [change for _, listed in reverted for change in listed if change.kind == "plan"]
    run = BisectionRun(
        name=name,
        revert=[text for text, _ in reverted],
        plan={change.name: parse_plan_value(change.before) for change in changes},
        if_fast=texts[0],
        if_slow=texts[1],
    )
    return [run, *below]
