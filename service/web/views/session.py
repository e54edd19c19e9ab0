"""A session as its page shows it: a report, a draft of one while a person is asked, or neither yet."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from service.report.figures import Figure, figures_of
from service.report.view import Planned, View, read_workload, view_of
from service.store.rows import Data, SessionRow
from service.store.states import BUSY, CANCELLED, COMPLETED, FAILED, TERMINAL, WAITING
from service.web.figures.mesh import AXES, axes_of
from service.web.views.baseline import find_baseline
from service.web.views.draft import draft_of
from tools.recommend.workload import Workload
from tools.scenario import Plan

SECTIONS = {
    "proposals": "Proposals",
    "trials": "Trials",
    "diagnosis": "Diagnosis",
    "first": "What to try first",
    "figures": "Figures",
    "change": "What would change it",
    "made": "How this was made",
    "request": "The request",
}
LATER = ("first", "change", "made")
"""Sections that wait for the report."""
TRIALS = "trials"


@dataclass(frozen=True)
class Card:
    """A proposal beside today's plan."""

    planned: Planned
    step: Figure
    memory: Figure

    @property
    def rank(self) -> int:
        return int(self._proposal["rank"])

    @property
    def plan(self) -> Data:
        plan: Data = self._proposal["plan"]
        return plan

    @property
    def changes(self) -> list[Data]:
        return [one for one in self._proposal["changes"] if one["from"] != one["to"]]

    @property
    def _proposal(self) -> Any:  # noqa: ANN401 - any JSON
        return self.planned.proposal or {}


@dataclass(frozen=True)
class SessionView:
    row: SessionRow
    report: Data | None
    view: View | None

    @property
    def is_busy(self) -> bool:
        return self.row.state in BUSY

    @property
    def is_live(self) -> bool:
        """Whether something may still happen without this page."""
        return self.row.state not in TERMINAL

    @property
    def is_draft(self) -> bool:
        return self.report is not None and self.row.report is None

    @property
    def can_decide(self) -> bool:
        return self.row.state in (WAITING, COMPLETED) and self.view is not None

    @property
    def can_retry(self) -> bool:
        return self.row.state in (FAILED, CANCELLED)

    @property
    def has_traces(self) -> bool:
        return bool((self.row.request or {}).get("traces"))

    @property
    def title(self) -> str:
        if self.view:
            return self.view.title
        devices = f" on {self.row.num_devices:,} x {self.row.device}" if self.row.num_devices else ""
        return f"{self.row.model or 'Model'}{devices}"

    @property
    def contents(self) -> list[tuple[str, str]]:
        """The page's sections, in their order, that this session has."""
        absent = {*(LATER if self.is_draft else ()), *(() if self._has_trials else (TRIALS,))}
        return [(id, name) for id, name in SECTIONS.items() if id not in absent]

    @property
    def trial_figures(self) -> list[Figure]:
        return [one for one in figures_of(self.view) if one.id == TRIALS] if self.view else []

    @property
    def _has_trials(self) -> bool:
        return bool(self.report and (self.report.get("stopping") or self.report["trials"]))

    @property
    def axes(self) -> dict[str, str]:
        """The groups that some plan has, for the picture of the mesh."""
        used = {axis for plan in self._plans for axis in axes_of(plan)}
        return {axis: name for axis, name in AXES.items() if axis in used}

    @property
    def first_axis(self) -> str:
        return next(iter(axes_of(self._plans[0])), "")

    @property
    def has_experts(self) -> bool:
        return self._workload is not None and self._workload.scenario.model.is_moe

    @cached_property
    def _workload(self) -> Workload | None:
        return read_workload(self.row.request or {}, self.report) if self.report else None

    @property
    def _plans(self) -> list[Plan]:
        """The proposals, then today's."""
        found = [Plan.model_validate(one["plan"]) for one in (self.report or {}).get("proposals", [])]
        today = find_baseline(self._workload, self.report) if self._workload and self.report else None
        return [*found, *([today] if today else [])]

    @property
    def cards(self) -> list[Card]:
        return _cards(self.view) if self.view else []

    @property
    def decided(self) -> dict[int, str]:
        """The last decision about each rank, where it is one of this report's proposals."""
        made = (self.report or {}).get("decisions", [])
        return {one["proposal"]: one["action"] for one in made if one["action"] in ("approve", "reject")}


def session_view(row: SessionRow) -> SessionView:
    report = row.report or (draft_of(row) if row.state == WAITING and row.waiting_for else None)
    view = view_of(row.request or {}, report) if report else None
    return SessionView(row, report, view)


def _cards(view: View) -> list[Card]:
    figures = {one.id: one for one in figures_of(view)}
    before = [one.name for one in view.plans if not one.proposal]
    return [
        Card(
            one,
            _own(figures["step"], one, "Step time", before),
            _own(figures["memory"], one, "Memory a device", before),
        )
        for one in view.proposals
    ]


def _own(figure: Figure, planned: Planned, title: str, before: Sequence[str]) -> Figure:
    """The same figure with this plan alone, under the one before it; on the scale of all."""
    bars = [
        bar if bar.name in before else replace(bar, name="this")
        for bar in figure.bars
        if bar.name in (*before, planned.name)
    ]
    id = f"{figure.id}-{planned.name.replace(' ', '-')}"
    return replace(figure, id=id, title=title, caption="", bars=bars, legend={})
