"""Which of several recorded changes made the step slower: runs that halve the suspects, each one request of
`tune` mode with some of the changes reverted.
"""

import math
from collections.abc import Sequence

from pydantic import Field

from tools.nightly.attribution import ABSENT, EnvironmentChange
from tools.nightly.findings import Finding
from tools.nightly.night import Night, StoredResult, parse_plan_value
from tools.recommend.report import PlanFields

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
        name=name,
        revert=[text for text, _ in suspects],
        plan=fields,
        if_fast=if_fast,
        if_slow=if_slow,
    )
