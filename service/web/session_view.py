"""A session as its page shows it: its report, or a draft while it waits for a decision; its baseline plan
and the plans people proposed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from graph.request import MOST_PROPOSALS, PLAN_ACTIONS, parse_request
from service.db.models import (
    BUSY,
    CANCELLED,
    COMPLETED,
    FAILED,
    TERMINAL,
    WAITING,
    Data,
    EventRow,
    SessionRow,
)
from service.render.bars import Figure, figures_of
from service.render.plan_figures import AXES, axes_of
from service.render.text import seconds, times
from service.render.view import Planned, View, learned_of, read_workload, view_of
from tools.recommend.optimize import analyse, workload_of
from tools.recommend.proposal import proposal
from tools.recommend.workload import Workload
from tools.scenario import Plan, parse_scenario

TODAY = "today"
"""How addresses call it, whichever it is."""
NO_REPORT: Mapping[str, Any] = {"trials": []}
"""Of a view that no session made."""


def find_baseline(workload: Workload, report: Mapping[str, Any]) -> Plan | None:
    known = report.get("baseline_plan")
    return Plan.model_validate(known["plan"]) if known else workload.scenario.plan


ASKS = {
    "advise": "Decide which one to take; the report follows.",
    "tune": "Approve the one to be measured next, or reject one to end the trials.",
}
NOTHING_YET: Data = {
    "id": None,
    "first_step": None,
    "would_change": None,
    **{name: [] for name in ("rejected", "sensitivity", "beyond_contract", "pareto", "considered", "advice")},
    **{name: [] for name in ("cases", "decisions", "trials", "incidents", "route")},
    "notes": None,
    "profile": None,
    "searched": None,
}


def draft_of(row: SessionRow) -> Data:
    """What the graph asks about, by the same tools that write the report when a person has decided."""
    described = parse_request(row.request or {}).scenario
    question = row.waiting_for or {}
    scenario = parse_scenario({**described, "traces": None}, need_plan=False)
    workload = workload_of(scenario, learned_of(question))
    asked = question["proposals"][:MOST_PROPOSALS]
    plans, today = [Plan.model_validate(one["plan"]) for one in asked], workload.today()
    told = [
        {
            **proposal(workload, one["rank"], plan, prediction, today).model_dump(),
            "measured": one.get("measured"),
        }
        for one, plan, prediction in zip(asked, plans, workload.predict(plans), strict=True)
    ]
    prediction, diagnosis = analyse(workload, workload.scenario.plan or plans[0])
    return {
        **NOTHING_YET,
        "verdict": _asks(prediction.step_time_s, diagnosis.bottleneck, told[0], row.mode),
        "diagnosis": {**diagnosis.model_dump(), "weighed": ""},
        "baseline": prediction.model_dump() if today else None,
        "proposals": told,
        "trials": question.get("trials", []),
        "calibration": question.get("calibration"),
    }


def _asks(today_s: float, bottleneck: str, first: Data, mode: str) -> str:
    """What is slow and what is proposed, before anybody has decided."""
    asks = f"Every number was computed twice. {ASKS[mode]}"
    limit = f"limited by {bottleneck}"
    if first["speedup"] is None:
        step_s = float(first["prediction"]["step_time_s"])
        return f"Proposal 1 is predicted to take {seconds(step_s)} a step, {limit}. {asks}"
    return (
        f"Today's step is predicted to take {seconds(today_s)}, {limit}. "
        f"Proposal 1 is predicted to be {times(first['speedup'])} as fast. {asks}"
    )


SCORING = "score_plan"


@dataclass(frozen=True)
class Brought:
    by: str
    summary: str
    says: str


def brought_by_people(events: Sequence[EventRow]) -> list[Brought]:
    """In order. A plan is scored right after the decision that brought it, before the session waits again."""
    found, by = [], ""
    for event in events:
        told = event.content
        if event.kind == "decided":
            by = str(told.get("by") or "somebody") if told.get("action") in PLAN_ACTIONS else ""
        elif event.kind == "state":
            by = ""
        elif by and event.kind == "tool" and told.get("tool") == SCORING:
            found.append(_scored(by, told.get("result") or {}))
    return found


def _scored(by: str, result: Data) -> Brought:
    summary, ratio, step_s = (
        result.get("summary", "a plan"),
        result.get("step_time_ratio"),
        result.get("step_time_s"),
    )
    if not result.get("accepted") or not isinstance(ratio, float) or not isinstance(step_s, float):
        return Brought(by, str(summary), str(result.get("why") or "not scored"))
    return Brought(by, str(summary), f"{seconds(step_s)} a step, {ratio - 1:+.1%} against proposal 1's")


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
