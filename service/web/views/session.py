"""A session as its page shows it: a report, a draft of one while a person is asked, or neither yet."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from graph.decisions import MOST_PROPOSALS
from graph.request import parse_request
from service.report.figures import Bar, Figure, figures_of
from service.report.view import Planned, View, view_of
from service.store.rows import Data, SessionRow
from service.store.states import BUSY, CANCELLED, COMPLETED, FAILED, TERMINAL, WAITING
from tools.recommend.optimize import analyse, workload_of
from tools.recommend.proposal import proposal
from tools.scenario import Plan, parse_scenario

NOTHING_YET: Data = {
    "id": None,
    "verdict": "The proposals are computed and verified. Decide which one to take; the report follows.",
    "first_step": None,
    "would_change": None,
    **{name: [] for name in ("rejected", "sensitivity", "beyond_contract", "pareto", "considered", "advice")},
    **{name: [] for name in ("cases", "decisions", "trials", "incidents", "route")},
    "notes": None,
    "profile": None,
    "searched": None,
}


@dataclass(frozen=True)
class Card:
    """A proposal beside today's plan."""

    planned: Planned
    step: Figure
    memory: Figure
    gain: Figure | None

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
    def cards(self) -> list[Card]:
        return _cards(self.view) if self.view else []

    @property
    def decided(self) -> dict[int, str]:
        """The last decision about each rank, where it is one of this report's proposals."""
        made = (self.report or {}).get("decisions", [])
        return {one["proposal"]: one["action"] for one in made if one["action"] in ("approve", "reject")}


def session_view(row: SessionRow) -> SessionView:
    report = row.report or (_draft(row) if row.state == WAITING and row.waiting_for else None)
    view = view_of(row.request or {}, report) if report else None
    return SessionView(row, report, view)


def _draft(row: SessionRow) -> Data:
    """What the graph asks about, by the same tools that write the report when a person has decided."""
    described = parse_request(row.request or {}).scenario
    workload = workload_of(parse_scenario({**described, "traces": None}, need_plan=False))
    asked = (row.waiting_for or {})["proposals"][:MOST_PROPOSALS]
    plans, today = [Plan.model_validate(one["plan"]) for one in asked], workload.today()
    told = [
        proposal(workload, one["rank"], plan, prediction, today)
        for one, plan, prediction in zip(asked, plans, workload.predict(plans), strict=True)
    ]
    prediction, diagnosis = analyse(workload, workload.scenario.plan or plans[0])
    return {
        **NOTHING_YET,
        "diagnosis": {**diagnosis, "weighed": ""},
        "baseline": prediction if today else None,
        "proposals": told,
    }


def _cards(view: View) -> list[Card]:
    figures = {one.id: one for one in figures_of(view)}
    return [
        Card(
            one,
            _own(figures["step"], one, "Step time", has_today=True),
            _own(figures["memory"], one, "Memory a device", has_today=True),
            _own(figures["gain"], one, "Speed over today's", has_today=False) if "gain" in figures else None,
        )
        for one in view.proposals
    ]


def _own(figure: Figure, planned: Planned, title: str, has_today: bool) -> Figure:
    """The same figure with this plan alone, under today's; on the scale of all."""
    names = ("today", planned.name) if has_today else (planned.name,)
    bars: Sequence[Bar] = [_short(bar) for bar in figure.bars if bar.name in names]
    id = f"{figure.id}-{planned.name.replace(' ', '-')}"
    return replace(figure, id=id, title=title, caption="", bars=bars, legend={})


def _short(bar: Bar) -> Bar:
    return replace(bar, name="today" if bar.name == "today" else "this")
