"""What every page of a session shares: its name, state, tabs, figures and proposals."""

from dataclasses import dataclass, replace

from service.db.models import BUSY, CANCELLED, COMPLETED, FAILED, TERMINAL, WAITING, SessionRow
from service.render.bars import BarChart, Waterfall, measured_step_s, plan_charts, trial_chart, waterfall_of
from service.render.plan_figures import AXES, axes_of
from service.render.text import count, gib, percent, seconds, times
from service.render.view import Planned, View
from service.sessions import MAX_NAME_CHARACTERS
from tools.frameworks import EXPORT_FORMATS
from tools.recommend.report import Change, PlanFields
from tools.scenario import Plan

DERIVED_FIELDS = ("dp", "schedule")
"""Follow from the other fields, so they cannot be edited."""
_FORMAT_OF_FRAMEWORK = {"megatron-core": "megatron", "torch-fsdp": "accelerate", "torch-fsdp2": "torchtitan"}


@dataclass(frozen=True)
class Tile:
    """A figure of the session: what was measured, or predicted, with the other beside it."""

    name: str
    value: str
    aside: str


@dataclass(frozen=True)
class Card:
    """A proposal beside the baseline."""

    planned: Planned

    @property
    def rank(self) -> int:
        return self.planned.proposal.rank if self.planned.proposal else 0

    @property
    def fields(self) -> PlanFields:
        """Those of the plan that a person may edit."""
        plan = self.planned.plan.model_dump(exclude_none=True, exclude=set(DERIVED_FIELDS))
        return {name: value for name, value in plan.items() if isinstance(value, bool | int | str)}

    @property
    def changes(self) -> list[Change]:
        changes = self.planned.proposal.changes if self.planned.proposal else []
        return [change for change in changes if change.from_ != change.to]


@dataclass(frozen=True)
class SessionPage:
    """A session with its report, or with a draft of it while it waits for a decision."""

    row: SessionRow
    view: View | None
    max_name: int = MAX_NAME_CHARACTERS

    @property
    def is_busy(self) -> bool:
        return self.row.state in BUSY

    @property
    def is_live(self) -> bool:
        """Whether something may still happen without this page."""
        return self.row.state not in TERMINAL

    @property
    def can_decide(self) -> bool:
        return self.row.state in (WAITING, COMPLETED) and self.view is not None

    @property
    def is_infeasible(self) -> bool:
        return bool(self.row.error and self.row.error["kind"] == "infeasible")

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
    def name(self) -> str:
        return self.row.name or self.title

    @property
    def tabs(self) -> list[tuple[str, str, str]]:
        """Key, address and name of the pages of this session that there is something for."""
        here = f"/sessions/{self.row.id}"
        own = [("", here, "Overview")]
        if self.view:
            own += [(key, f"{here}/{key}", key.capitalize()) for key in ("schedule", "plans", "figures")]
            own.append(("topology", f"/topology?session={self.row.id}", "Topology"))
        if self.has_traces:
            own.append(("traces", f"/trace?a={self.row.id}", "Traces"))
        if self.row.mode == "tune":
            own.append(("trials", f"{here}/trials", "Trials"))
        return [*own, ("trail", f"{here}/trail", "Trail")]

    @property
    def decision(self) -> str | None:
        """What people decided last, in words."""
        made = (
            [d for d in self.view.report.decisions if d.action in ("approve", "reject")] if self.view else []
        )
        if not made:
            return None
        verb = "approved" if made[-1].action == "approve" else "rejected"
        return f"proposal {made[-1].proposal} {verb}" + (f" by {made[-1].by}" if made[-1].by else "")

    @property
    def waterfall(self) -> Waterfall | None:
        return waterfall_of(self.view) if self.view and self.view.plans else None

    @property
    def full_charts(self) -> list[BarChart]:
        """All plans side by side, under the ids that the waterfall links to."""
        charts = plan_charts(self.view.plans) if self.view else []
        return [replace(chart, id=f"f-{chart.id}") for chart in charts]

    @property
    def charts(self) -> list[BarChart]:
        """The same in brief."""
        titles = {"step": "Step time", "memory": "Memory per device"}
        charts = plan_charts(self.view.plans) if self.view else []
        return [replace(chart, caption="", title=titles[chart.id]) for chart in charts]

    @property
    def tiles(self) -> list[Tile]:
        """Of the plan that runs today and of the proposal that counts, measured beside predicted."""
        return tiles_of(self.view) if self.view else []

    @property
    def trial_chart(self) -> BarChart | None:
        return trial_chart(self.view) if self.view else None

    @property
    def axes(self) -> dict[str, str]:
        """The groups that some plan has, for the figure of the mesh."""
        used = {axis for plan in self._plans for axis in axes_of(plan)}
        return {axis: name for axis, name in AXES.items() if axis in used}

    @property
    def plan_choices(self) -> list[tuple[str, str]]:
        return [(plan.key, plan.name) for plan in self.view.plans] if self.view else []

    @property
    def first_axis(self) -> str:
        return next(iter(axes_of(self._plans[0])), "")

    @property
    def _plans(self) -> list[Plan]:
        """The proposals, then the baseline."""
        if self.view is None:
            return []
        baseline = self.view.baseline_plan
        return [proposal.plan for proposal in self.view.report.proposals] + ([baseline] if baseline else [])

    @property
    def has_experts(self) -> bool:
        return self.view is not None and self.view.workload.scenario.model.is_moe

    @property
    def cards(self) -> list[Card]:
        if self.view is None:
            return []
        return [Card(planned) for planned in self.view.proposals]

    @property
    def decided(self) -> dict[int, str]:
        """The last decision about each proposal, by rank."""
        decisions = self.view.report.decisions if self.view else []
        return {made.proposal: made.action for made in decisions if made.action in ("approve", "reject")}

    @property
    def suggested_questions(self) -> list[str]:
        """What the rules answer too."""
        proposals = [card.planned.proposal for card in self.cards if card.planned.proposal]
        fastest = next((proposal.plan for proposal in proposals if proposal.role == "fastest"), None)
        devices = self.row.num_devices or 0
        asked = [f"Why not tp {fastest.tp}, pp {fastest.pp}, cp {fastest.cp}?"] if fastest else []
        return [*asked, "What limits it?", "How sure is that?", f"What if {2 * devices} devices?"]

    @property
    def export_format(self) -> str:
        """The format of the framework that the session trains with."""
        framework = self.view.workload.scenario.training.framework if self.view else ""
        format = _FORMAT_OF_FRAMEWORK.get(framework, framework)
        return format if format in EXPORT_FORMATS else next(iter(EXPORT_FORMATS))


def tiles_of(view: View) -> list[Tile]:
    report, plans = view.report, view.plans
    best = view.proposals[(report.chosen or 1) - 1]
    proposal, before = best.proposal, plans[0] if not plans[0].proposal else None
    tiles = []
    if before:
        tiles.append(_step_tile(f"step time {before.name}", before, measured_step_s(report, before)))
    measured = proposal.measured if proposal else None
    name = f"proposal {best.key}" if not before or best.key != "1" else "recommended step"
    tiles.append(_step_tile(name, best, measured.step_time_s if measured else None))
    if measured and measured.speedup and measured.speedup_low and measured.speedup_high:
        interval = f"80% interval {times(measured.speedup_low)} to {times(measured.speedup_high)}"
        tiles.append(Tile(f"measured speedup over {view.baseline_name}", times(measured.speedup), interval))
    elif proposal and proposal.speedup and proposal.speedup_low and proposal.speedup_high:
        interval = f"80% interval {times(proposal.speedup_low)} to {times(proposal.speedup_high)}"
        interval += ": no clear gain" if report.diagnosis.lever else ""
        tiles.append(Tile(f"speedup over {view.baseline_name}", times(proposal.speedup), interval))
    was = f"{before.name} {percent(before.prediction.mfu)}" if before else ""
    rate = f"{count(best.prediction.tokens_per_s_per_device)} tokens/s per device"
    tiles.append(Tile("MFU, predicted", percent(best.prediction.mfu), was or rate))
    memory = f"of {gib(view.limit_gib)} usable, {best.prediction.fit_probability:.0%} likely to fit"
    return [*tiles, Tile("memory per device", gib(best.prediction.peak_memory_gib), memory)]


def _step_tile(name: str, plan: Planned, measured_s: float | None) -> Tile:
    predicted = f"{seconds(plan.prediction.step_time_s)} predicted"
    if measured_s:
        return Tile(name, f"{seconds(measured_s)} measured", f"{predicted} ({plan.interval})")
    return Tile(name, predicted, f"80% interval {plan.interval}")
