"""What the service brings to a session: reasoner, knowledge base, trials, limits."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from graph.answers import Reasoner
from graph.request import Budget
from graph.rules import Rules
from tools.kb import KnowledgeBase, open_seed
from tools.kb.recipes import Recipe
from tools.model.calibration import Calibration, shipped_calibration
from tools.model.runs import Run
from tools.recommend.optimize import workload_of
from tools.recommend.workload import Workload
from tools.scenario import Scenario
from tools.search.ranked import Ranked
from tools.trials.order import TrialObserver, TrialOrder, TrialResult


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

    def within(self, budget: Budget | None) -> "Limits":
        """These, or what of the budget is smaller."""
        wanted = budget.model_dump(exclude_none=True) if budget else {}
        return replace(self, **{name: min(value, getattr(self, name)) for name, value in wanted.items()})


class TrialRunner(Protocol):
    """Measures plans on the user's cluster; the same key never launches twice."""

    def check(self, scenario: Scenario, template: str | None = None) -> None:
        """Raises InputError for a scenario that cannot be measured here."""
        ...

    def run(self, order: TrialOrder, observer: TrialObserver) -> TrialResult: ...


@dataclass(frozen=True)
class Context:
    """Every part has a default: LangGraph's own tools make one without arguments."""

    knowledge: KnowledgeBase = field(default_factory=open_seed)
    reasoner: Reasoner = field(default_factory=Rules)
    remarks: bool = False
    """Whether a model's remarks are shown, quoted and marked as unchecked."""
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
    """Called while a trial runs: True ends its job; raises if another worker has the session now."""
    limits: Limits = Limits()
    clock: Callable[[], float] = time.time
    progress: Callable[[float], None] | None = None
    """Receives the progress of the search, if somebody watches."""
    keep_plans: Callable[[Ranked], None] | None = None
    """Receives every plan that the session's search timed, if they are kept."""
    workloads: list[Workload] | None = None
    """Kept for one session, so that what a node has predicted is not predicted again."""

    def workload(self, scenario: Scenario) -> Workload:
        """The scenario as the session predicts it now."""
        calibration = self.session_calibration or self.calibration or shipped_calibration()
        for known in self.workloads or ():
            if known.calibration is calibration and known.scenario == scenario:
                return known
        made = workload_of(scenario, calibration)
        if self.workloads is not None:
            self.workloads.append(made)
        return made

    def resumed(self, own: Calibration) -> "Context":
        """With the cost model as a session made and kept it. What published runs correct is not kept with a
        session: it is this installation's."""
        base = self.calibration or own
        return replace(self, session_calibration=replace(own, residual=base.residual))

    def check(self) -> None:
        """For work without progress to report: raises if the session must stop."""
        if self.progress is not None:
            self.progress(0.0)
