"""What the nodes work with: reasoner, knowledge base, trials, limits. Built by the service."""

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
from tools.scenario import Scenario
from tools.search.ranked import Ranked
from tools.trials.order import TrialOrder, TrialResult, Watch

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

    def run(self, order: TrialOrder, watch: Watch) -> TrialResult: ...


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

    def check(self) -> None:
        """For work that has no progress to tell: raises if the session must stop."""
        if self.progress is not None:
            self.progress(0.0)
