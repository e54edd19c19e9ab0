"""/sessions/{id}: the report, and the forms to decide, cancel, retry, delete and export."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from graph.ask import Answered
from graph.report import Report
from graph.request import PLAN_ACTIONS
from service.api.deps import AppDep, Approver, Id, Reader, Submitter
from service.api.reports import Rank, file_response
from service.api.sessions import answer_in_time
from service.api.state import AppState
from service.auth import Caller
from service.db.models import (
    BUSY,
    CANCELLED,
    COMPLETED,
    FAILED,
    TERMINAL,
    WAITING,
    EventRow,
    SessionRow,
    new_id,
)
from service.db.sessions import events_after, get_session
from service.errors import NotFoundError
from service.render.bars import BarChart, memory_chart, step_chart, trial_chart
from service.render.markdown import markdown_report
from service.render.plan_figures import AXES, axes_of
from service.render.text import count, gib, percent, seconds, times
from service.render.view import Planned, View, find_view, get_view
from service.render.waterfall import Waterfall, measured_step_s, waterfall_of
from service.sessions import MAX_NAME_CHARACTERS, export_proposal, missing_result
from service.strict_json import JsonObject
from service.web.accuracy import DENSE, EXPERTS, find_trust
from service.web.forms import CheckedForm, Form, add_buttons, text_of, whole_number
from service.web.rendering import PageRoute, page
from service.web.trail import trail_of
from tools.errors import InputError
from tools.frameworks import EXPORT_FORMATS
from tools.recommend.report import Change, PlanFields
from tools.scenario import RECOMPUTES, Plan

SCORING = "score_plan"
"""The tool that scores a submitted plan."""
DERIVED_FIELDS = ("dp", "schedule")
"""Follow from the other fields, so they cannot be edited."""
_FORMAT_OF_FRAMEWORK = {"megatron-core": "megatron", "torch-fsdp": "accelerate", "torch-fsdp2": "torchtitan"}


@dataclass(frozen=True)
class SubmittedPlan:
    """A plan that a person submitted, with its score."""

    by: str
    summary: str
    says: str


def submitted_plans(events: Sequence[EventRow]) -> list[SubmittedPlan]:
    """In order: a plan is scored after the decision that submitted it, before the session waits again."""
    submitted, by = [], ""
    for event in events:
        content = event.content
        if event.kind == "decided":
            by = str(content.get("by") or "unknown") if content.get("action") in PLAN_ACTIONS else ""
        elif event.kind == "state":
            by = ""
        elif by and event.kind == "tool" and content.get("tool") == SCORING:
            submitted.append(_submitted_plan(by, content.get("result")))
    return submitted


def _submitted_plan(by: str, result: object) -> SubmittedPlan:
    """Events shorten long results, so fields may be missing."""
    score = result if isinstance(result, dict) else {}
    summary, step_s, ratio = (
        str(score.get("summary") or "a plan"),
        score.get("step_time_s"),
        score.get("step_time_ratio"),
    )
    if not score.get("accepted") or not isinstance(step_s, float) or not isinstance(ratio, float):
        return SubmittedPlan(by, summary, str(score.get("why") or "not scored"))
    return SubmittedPlan(by, summary, f"{seconds(step_s)} per step, {ratio - 1:+.1%} against proposal 1")


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
    def tabs(self) -> list[tuple[str, str]]:
        """Pages of this session that there is something for, by the end of their address."""
        own = [("", "Overview")]
        if self.view:
            own += [("schedule", "Schedule"), ("plans", "Plans"), ("figures", "Figures")]
        if self.row.mode == "tune":
            own.append(("trials", "Trials"))
        return [*own, ("trail", "Trail")]

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
    def charts(self) -> list[BarChart]:
        """All plans side by side."""
        if self.view is None:
            return []
        step, memory = step_chart(self.view.plans), memory_chart(self.view.plans)
        return [
            replace(step, caption="", title="Step time"),
            replace(memory, caption="", title="Memory per device"),
        ]

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
        kind = "indistinguishable from today's" if report.diagnosis.lever else "80% interval"
        interval = f"{kind} {times(proposal.speedup_low)} to {times(proposal.speedup_high)}"
        tiles.append(Tile(f"speedup over {view.baseline_name}", times(proposal.speedup), interval))
    was = f"{before.name} {percent(before.prediction.mfu)}" if before else ""
    rate = f"{count(best.prediction.tokens_per_s_per_device)} tokens/s per device"
    tiles.append(Tile("MFU, predicted", percent(best.prediction.mfu), was or rate))
    memory = f"of {gib(view.limit_gib)} usable, fits with {best.prediction.fit_probability:.0%}"
    return [*tiles, Tile("memory per device", gib(best.prediction.peak_memory_gib), memory)]


def _step_tile(name: str, plan: Planned, measured_s: float | None) -> Tile:
    predicted = f"{seconds(plan.prediction.step_time_s)} predicted"
    if measured_s:
        return Tile(name, f"{seconds(measured_s)} measured", f"{predicted} ({plan.interval})")
    return Tile(name, predicted, f"80% interval {plan.interval}")


HERE = "/sessions/{id}"
PLAN = "plan."

router = APIRouter(prefix=HERE, route_class=PageRoute)
add_buttons(
    router,
    "",
    {
        "cancel": (lambda app, caller, id: app.sessions.cancel(caller, id), HERE),
        "retry": (lambda app, caller, id: app.sessions.retry(caller, id), HERE),
        "delete": (lambda app, caller, id: app.sessions.delete(caller, id), "/"),
    },
)


@router.get("")
def get_page(id: Id, request: Request, app: AppDep, caller: Reader) -> Response:
    return show(id, request, app, caller)


def show(
    id: str, request: Request, app: AppState, caller: Caller, answered: Answered | None = None
) -> Response:
    with app.database.read() as conn:
        row = get_session(conn, caller.tenant, id)
        events = events_after(conn, id, 0)
    session = SessionPage(row, find_view(row))
    return page(
        request,
        "session",
        caller,
        session=session,
        tab="",
        trail=trail_of(events),
        submitted=submitted_plans(events),
        formats=EXPORT_FORMATS,
        recomputes=RECOMPUTES,
        trust=find_trust(EXPERTS if session.has_experts else DENSE),
        decision_id=new_id(),
        answered=answered,
    )


@router.get("/figures")
def show_figures(id: Id, request: Request, app: AppDep, caller: Reader) -> Response:
    row = app.sessions.get(caller, id)
    session = SessionPage(row, get_view(row, "there is nothing to draw yet"))
    return page(request, "session_figures", caller, session=session, tab="figures")


@router.post("/name")
def rename(id: Id, form: CheckedForm, app: AppDep, caller: Submitter) -> Response:
    app.sessions.rename(caller, id, text_of(form, "name"))
    return RedirectResponse(f"/sessions/{id}", 303)


@router.post("/decision")
def decide(id: Id, form: CheckedForm, app: AppDep, caller: Approver) -> Response:
    rank = whole_number("proposal", form.get("proposal", ""))
    decision: JsonObject = {
        "action": form.get("action"),
        "proposal": rank,
        "id": text_of(form, "id"),
        "comment": text_of(form, "comment"),
    }
    if decision["action"] == "edit":
        plan = get_view(app.sessions.get(caller, id), "it has no proposals yet").find_plan(str(rank))
        if plan is None:
            raise NotFoundError("proposal", str(rank))
        decision["plan"] = dict(changed_fields(form, plan.model_dump()))
    app.sessions.decide(caller, id, decision)
    return RedirectResponse(f"/sessions/{id}", 303)


@router.post("/ask")
def ask_question(id: Id, form: CheckedForm, request: Request, app: AppDep, caller: Submitter) -> Response:
    """The page again, with the answer below its question."""
    answered = answer_in_time(app, caller, id, text_of(form, "question") or "")
    return show(id, request, app, caller, answered)


@router.get("/report.md")
def markdown(id: Id, app: AppDep, caller: Reader) -> Response:
    row = app.sessions.get(caller, id)
    if row.report is None:
        raise missing_result(row, "it has a report when it is completed")
    report = Report.model_validate(row.report)
    return Response(markdown_report(row.request or {}, report), media_type="text/markdown")


@router.get("/proposals/{rank}/export")
def export(id: Id, rank: Rank, format: str, app: AppDep, caller: Reader) -> Response:
    """The configuration as a file."""
    return file_response(export_proposal(app.sessions.get(caller, id), rank, format))


def changed_fields(form: Form, plan: PlanFields) -> PlanFields:
    """The fields that were edited in the form, each with the type that it has in the plan."""
    texts = {name.removeprefix(PLAN): text for name, text in form.items() if name.startswith(PLAN)}
    typed = {name: _parse_field(name, text, plan.get(name)) for name, text in texts.items() if text}
    changed: PlanFields = {name: value for name, value in typed.items() if value != plan.get(name)}
    if not changed:
        raise InputError("plan", "the proposal unchanged", "change at least one field")
    return changed


def _parse_field(name: str, text: str, value: object) -> bool | int | str:
    if isinstance(value, bool):
        return text == "true"
    if isinstance(value, int):
        return whole_number(f"plan.{name}", text)
    return text
