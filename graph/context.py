"""What the nodes work with (reasoner, knowledge base, trials, limits), built by the service, and the events
that they emit while they work, each with a key that survives a rerun.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from graph.answers import Reasoner
from graph.rules import Rules
from tools.calibrate.runs import Run
from tools.cost.calibration import Calibration
from tools.kb import KnowledgeBase
from tools.kb.recipes import Recipe
from tools.recommend.workload import Workload
from tools.scenario import Scenario
from tools.search.ranked import Ranked
from tools.trials.order import TrialObserver, TrialOrder, TrialResult

BUDGETS = ("session_s", "tokens", "cost", "device_hours", "trials")
"""What a request may have less of than the installation allows."""


@dataclass(frozen=True)
class Limits:
    """What one session may spend."""

    session_s: float = 900.0
    steps: int = 60
    tokens: int = 200_000
    cost: float = 5.0
    rounds: int = 2
    """How often the proposal agent may be sent back to work."""
    device_hours: float = 8.0
    """What all trials of a session may take of the cluster: ranks times hours."""
    trials: int = 8
    """Plans that a session may measure, the baseline among them."""

    def within(self, budget: Mapping[str, Any] | None) -> "Limits":
        """These, or what of the budget is smaller."""
        wanted = {
            name: value for name, value in (budget or {}).items() if name in BUDGETS and value is not None
        }
        return replace(self, **{name: min(value, getattr(self, name)) for name, value in wanted.items()})


class TrialRunner(Protocol):
    """Measures plans on the user's cluster; the same key never launches twice."""

    def check(self, scenario: Scenario, template: str | None = None) -> None:
        """Raises InputError for a scenario that cannot be measured here."""
        ...

    def run(self, order: TrialOrder, observer: TrialObserver) -> TrialResult: ...


@dataclass(frozen=True)
class Context:
    knowledge: KnowledgeBase
    reasoner: Reasoner = field(default_factory=Rules)
    saves_cases: bool = False
    """Whether outcomes are kept in the knowledge base."""
    calibration: Calibration | None = None
    """The installation's; None is the one that comes with the package."""
    runs: tuple[Run, ...] = ()
    """The cluster's own, that `calibration` was learned from; trials of a session join them."""
    session_calibration: Calibration | None = None
    """What a session's own trials made of it."""
    recipes: Sequence[Recipe] | None = None
    """Published plans; None are those that come with the package."""
    trials: TrialRunner | None = None
    must_cancel: Callable[[], bool] = lambda: False
    """Asked while a trial runs: True ends its job; whoever must let go of the session raises."""
    limits: Limits = Limits()
    clock: Callable[[], float] = time.time
    progress: Callable[[float], None] | None = None
    """Told how far the search is, where somebody watches."""
    keep_plans: Callable[[Ranked], None] | None = None
    """Handed every plan that the session's search timed, where they are kept."""
    workloads: list[Workload] | None = None
    """Of one session, so that what a node has predicted is not predicted again."""

    def check(self) -> None:
        """For work that has no progress to tell: raises if the session must stop."""
        if self.progress is not None:
            self.progress(0.0)


Event = dict[str, Any]
MAX_CHARACTERS = 4000
MAX_ITEMS = 5


@dataclass
class EventLog:
    """Writes the events of one run of one node."""

    node: str
    step: int
    write: Callable[[Event], None]
    clock: Callable[[], float] = time.time
    _count: int = field(default=0, init=False)

    def emit(self, kind: str, **content: object) -> None:
        self._count += 1
        self._write(str(self._count), kind, content)

    def emit_named(self, name: str, kind: str, **content: object) -> None:
        """For what a rerun of the node may not repeat: the name takes the place of the counter."""
        self._write(name, kind, content)

    def _write(self, name: str, kind: str, content: dict[str, object]) -> None:
        key = f"{self.step}/{self.node}/{name}"
        self.write({**content, "key": key, "at": self.clock(), "node": self.node, "kind": kind})


def brief(value: object) -> object:
    """The value itself, or a shortened one if it would make an event long."""
    return value if _length(value) <= MAX_CHARACTERS else _shortened(value, depth=4)


def _length(value: object) -> int:
    return len(json.dumps(value, default=str))


def _shortened(value: object, depth: int) -> object:
    if isinstance(value, Mapping):
        if depth == 0:
            return f"{len(value)} fields"
        return {str(name): _shortened(part, depth - 1) for name, part in value.items()}
    if isinstance(value, list | tuple):
        if depth == 0:
            return f"{len(value)} items"
        shown = [_shortened(part, depth - 1) for part in value[:MAX_ITEMS]]
        return [*shown, f"and {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else shown
    if isinstance(value, str) and len(value) > MAX_CHARACTERS // 4:
        return value[: MAX_CHARACTERS // 4] + "…"
    return value
