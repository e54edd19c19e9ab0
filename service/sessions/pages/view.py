"""What every page of a session shares: its name, state, tabs and decisions."""

from dataclasses import dataclass
from typing import NamedTuple

from service.jobs.model import BUSY, TERMINAL
from service.render.text import count, gib, percent, seconds, times
from service.render.view import PlanView, ReportView, find_view, get_view
from service.sessions.event_store import events_after
from service.sessions.model import MAX_NAME_CHARACTERS, EventRow, SessionRow
from service.sessions.store import get_session
from service.sessions.usecases import Sessions
from service.web.rendering import Page
from tools.frameworks import EXPORT_FORMATS
from tools.frameworks.formats import FORMAT_ALIASES

VERDICTS = {"approve": "approved", "reject": "rejected"}
SUGGESTED_FORMATS = FORMAT_ALIASES | {"torch-fsdp2": "torchtitan"}  # Accelerate has no pipeline


def open_session(
    page: Page, id: str, lacking: str = "it has no plans yet"
) -> tuple["SessionView", ReportView]:
    """A session that has plans; `lacking` says what one without them cannot do yet."""
    row = page.app.get(Sessions).get(page.caller, id)
    view = get_view(row, lacking)
    return SessionView(row, view), view


def follow_session(page: Page, id: str) -> tuple["SessionView", list[EventRow]]:
    """A session in any state, with what happened so far."""
    with page.app.database.read() as conn:
        row = get_session(conn, page.caller.tenant, id)
        events = events_after(conn, id, 0)
    return SessionView(row, find_view(row)), events


@dataclass(frozen=True)
class SessionView:
    """A session with its report, or with a draft of it while it waits for a decision."""

    row: SessionRow
    view: ReportView | None
    max_name: int = MAX_NAME_CHARACTERS

    @property
    def is_busy(self) -> bool:
        return self.row.state in BUSY

    @property
    def is_live(self) -> bool:
        """Whether something may still happen without this page."""
        return self.row.state not in TERMINAL

    @property
    def is_infeasible(self) -> bool:
        return bool(self.row.error and self.row.error.kind == "infeasible")

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
        base = f"/sessions/{self.row.id}"
        tabs = [("", base, "Overview")]
        if self.view:
            tabs += [(key, f"{base}/{key}", key.capitalize()) for key in ("schedule", "plans", "figures")]
            tabs.append(("topology", f"/topology?session={self.row.id}", "Topology"))
        if self.row.request.get("traces"):
            tabs.append(("traces", f"/trace?a={self.row.id}", "Traces"))
        if self.row.mode == "tune":
            tabs.append(("trials", f"{base}/trials", "Trials"))
        return [*tabs, ("trail", f"{base}/trail", "Trail")]

    @property
    def decided(self) -> dict[int, str]:
        """The last approval or rejection of each proposal, by rank."""
        made = self.view.report.decisions if self.view else []
        return {each.proposal: VERDICTS[each.action] for each in made if each.action in VERDICTS}

    @property
    def decision(self) -> str | None:
        """What people decided last, in words."""
        made = self.view.report.decisions if self.view else []
        last = next((decision for decision in reversed(made) if decision.action in VERDICTS), None)
        if last is None:
            return None
        return f"proposal {last.proposal} {VERDICTS[last.action]}" + (f" by {last.by}" if last.by else "")

    @property
    def suggested_questions(self) -> list[str]:
        """What the rules answer too."""
        proposals = self.view.report.proposals if self.view else []
        fastest = next((proposal.plan for proposal in proposals if proposal.role == "fastest"), None)
        why_not = [f"Why not tp {fastest.tp}, pp {fastest.pp}, cp {fastest.cp}?"] if fastest else []
        devices = 2 * (self.row.num_devices or 0)
        return [*why_not, "What limits it?", "How sure is that?", f"What if {devices} devices?"]

    @property
    def export_format(self) -> str:
        """The format of the framework that the session trains with."""
        framework = self.view.workload.scenario.training.framework if self.view else ""
        format = SUGGESTED_FORMATS.get(framework, framework)
        return format if format in EXPORT_FORMATS else next(iter(EXPORT_FORMATS))


class Tile(NamedTuple):
    """A figure of the session: what was measured, or predicted, with the other beside it."""

    name: str
    value: str
    aside: str


def tiles_of(view: ReportView) -> list[Tile]:
    """Today's plan and the one that counts, measured beside predicted; a speedup only where there is one."""
    headline, counts = view.headline, view.counts
    before = next((plan for plan in view.plans if not plan.proposal), None)
    tiles = []
    if before:
        tile = _step_tile(f"step time {before.name}", before, view.measured_step_s(before))
        if told := view.report.diagnosis.recalibrated:
            tile = tile._replace(aside=f"{seconds(told.model_s)} predicted before it was measured")
        tiles.append(tile)
    if counts is not before:
        tiles.append(_step_tile(f"step time {counts.name}", counts, view.measured_step_s(counts)))
    if gain := headline.gain:
        how = "measured speedup" if headline.is_measured else "speedup"
        interval = f"80% interval {times(gain.low)} to {times(gain.high)}"
        interval += "" if gain.low > 1.0 else ": no clear gain"
        tiles.append(Tile(f"{how} over {view.baseline_name}", times(gain.speedup), interval))
    was = f"{before.name} {percent(before.prediction.mfu)}" if before and counts is not before else ""
    rate = f"{count(counts.prediction.tokens_per_s_per_device)} tokens/s per device"
    tiles.append(Tile("MFU, predicted", percent(headline.mfu), was or rate))
    memory = f"of {gib(view.workload.limit_gib)} usable, {headline.fit_probability:.0%} likely to fit"
    return [*tiles, Tile("memory per device", gib(headline.memory_gib), memory)]


def _step_tile(name: str, plan: PlanView, measured_s: float | None) -> Tile:
    predicted = f"{seconds(plan.prediction.step_time_s)} predicted"
    if measured_s:
        return Tile(name, f"{seconds(measured_s)} measured", f"{predicted} ({plan.interval})")
    return Tile(name, predicted, f"80% interval {plan.interval}")
