"""A report beside the scenario it answers: plans and evidence as every format shows them.

Made once per request; layout is in the templates and tables.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pydantic import JsonValue

from graph.report import CaseReference, PendingDecision, Report, Trial, Usage
from graph.request import MAX_PROPOSALS, parse_request
from service.db.models import WAITING, SessionRow
from service.errors import ConflictError
from service.render.text import MEMORY, STEP, seconds, seconds_span, size_of, times, visible_terms
from service.render.trials import TrialRow, gain_text, trial_rows
from tools.cost.calibration import Calibration
from tools.cost.predict import Prediction
from tools.cost.sizes import count_parameters
from tools.recommend.notes import apply_statements
from tools.recommend.optimize import analyse, workload_of
from tools.recommend.proposal import proposal
from tools.recommend.report import (
    Diagnosis,
    Evidence,
    MeasuredPlan,
    PlanFields,
    Proposal,
    ScoredPlan,
    Searched,
    Sensitivity,
    Verification,
)
from tools.recommend.score import with_roles
from tools.recommend.words import listing, short
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario

RawJson = Mapping[str, JsonValue]
"""A request or a question as it was stored."""
TODAY = "today"
"""The baseline's name in addresses, whether it runs today or is the framework's default."""
QUESTIONS = {
    "advise": "Decide which one to take; the report follows.",
    "tune": "Approve the one to measure next, or reject one to end the trials.",
}
REPEATED_RISK = "the prediction's 80% interval"


@dataclass(frozen=True)
class Planned:
    """A plan with its prediction, as it is compared with others."""

    name: str
    plan: Plan
    prediction: Prediction
    limit_gib: float
    """Memory that a plan may fill, of its own device."""
    capacity_gib: float
    proposal: Proposal | None = None
    """None for the baseline."""
    trial: Trial | None = None
    """The trial of the baseline."""

    @property
    def summary(self) -> str:
        return short(self.plan)

    @property
    def key(self) -> str:
        """How addresses name it: `today`, or the rank of a proposal."""
        return str(self.proposal.rank) if self.proposal else TODAY

    @property
    def gain(self) -> str | None:
        """How much faster than today, with its interval."""
        return gain_text(self.proposal) if self.proposal else None

    @property
    def measured(self) -> MeasuredPlan | Trial | None:
        return self.proposal.measured if self.proposal else self.trial

    @property
    def interval(self) -> str:
        step = self.prediction
        return seconds_span(step.step_time_low_s, step.step_time_high_s, step.step_time_s)

    @property
    def risks(self) -> list[str]:
        """Without the interval, which is shown beside the step time."""
        risks = self.proposal.risks if self.proposal else []
        return [risk for risk in risks if not risk.startswith(REPEATED_RISK)]

    @property
    def evidence(self) -> list[Evidence]:
        """Without what the diagnosis or the rationale already says."""
        if self.proposal is None:
            return []
        rationale = self.proposal.rationale.lower()
        return [
            evidence
            for evidence in self.proposal.evidence
            if evidence.ref != "baseline" and evidence.says.lower() not in rationale
        ]


def planned_of(name: str, workload: Workload, plan: Plan) -> Planned:
    return Planned(name, plan, workload.predict([plan])[0], workload.limit_gib, workload.capacity_gib)


@dataclass(frozen=True)
class View:
    """A report, the workload it is about, and its plans side by side."""

    workload: Workload
    report: Report
    is_draft: bool = False
    """Proposals that wait for a person; the report is written after the decision."""

    @property
    def title(self) -> str:
        return title_of(self.workload.scenario)

    @property
    def contract(self) -> str:
        """What is trained and how, in one line: two plans are comparable only if it is equal."""
        model, training = self.workload.scenario.model, self.workload.scenario.training
        parameters = count_parameters(model)
        parts = [
            size_of(parameters.total, parameters.active, " parameters"),
            *([f"text model without {' and '.join(model.left_out)}"] if model.left_out else []),
            training.framework,
            training.precision,
            f"global batch {training.global_batch_size:,}",
            f"sequence length {training.seq_len:,}",
            *(f"{name} {value}" for name, value in training.options().items()),
        ]
        return ", ".join(parts)

    @property
    def tie(self) -> str | None:
        """Which proposals a prediction cannot tell from the first, if any; a measurement could."""
        proposals = self.report.proposals
        if not proposals or any(proposal.measured for proposal in proposals):
            return None
        first, *others = proposals
        error, first_s = self.workload.pair_error, first.prediction.step_time_s
        apart = {other.rank: abs(math.log(other.prediction.step_time_s / first_s)) for other in others}
        tied = {rank: ratio for rank, ratio in apart.items() if ratio <= error}
        if not tied:
            return None
        names = listing([str(rank) for rank in tied])
        subject, verb = (f"Proposals {names}", "tie") if len(tied) > 1 else (f"Proposal {names}", "ties")
        return (
            f"{subject} {verb} with the first: within {math.expm1(max(tied.values())):.1%} of its step time, "
            f"and a comparison errs by {math.expm1(error):.0%}. Take the first unless a short run says "
            "otherwise."
        )

    @property
    def limit_gib(self) -> float:
        return self.workload.limit_gib

    @property
    def capacity_gib(self) -> float:
        return self.workload.capacity_gib

    @property
    def baseline_plan(self) -> Plan | None:
        """What gains are counted from."""
        stated = self.report.baseline_plan
        return stated.plan if stated else self.workload.scenario.plan

    @property
    def baseline_name(self) -> str:
        return "default" if self.workload.scenario.plan is None else TODAY

    @cached_property
    def plans(self) -> list[Planned]:
        """The baseline, if there is one, then the proposals."""
        limits = self.limit_gib, self.capacity_gib
        proposals = [
            Planned(f"proposal {p.rank}", p.plan, p.prediction, *limits, proposal=p)
            for p in self.report.proposals
        ]
        if self.baseline_plan is None or self.report.baseline is None:
            return proposals
        measured = [t for t in self.report.trials if t.role == "baseline" and t.status == "measured"]
        trial = measured[0] if measured else None
        baseline = Planned(self.baseline_name, self.baseline_plan, self.report.baseline, *limits, trial=trial)
        return [baseline, *proposals]

    @property
    def proposals(self) -> list[Planned]:
        return [plan for plan in self.plans if plan.proposal]

    def find_plan(self, key: str) -> Plan | None:
        """`today`, or the rank of a proposal."""
        if key == TODAY:
            return self.baseline_plan
        return next((p.plan for p in self.report.proposals if str(p.rank) == key), None)

    @property
    def step_terms(self) -> dict[str, str]:
        return visible_terms(STEP, [plan.prediction.breakdown_s for plan in self.plans])

    @property
    def memory_terms(self) -> dict[str, str]:
        return visible_terms(MEMORY, [plan.prediction.memory_gib for plan in self.plans])

    @property
    def other_clusters(self) -> list[tuple[str, str]]:
        """What the cluster might be instead, and which plan would then be the fastest."""
        return [(case.if_, self._fastest(case)) for case in self.report.sensitivity]

    def _fastest(self, case: Sensitivity) -> str:
        if case.best is None or case.step_time_s is None:
            return case.says
        rank = self._rank_of(case.best)
        plan = f"proposal {rank}" if rank else short(case.best)
        return f"{plan} ({seconds(case.step_time_s)})"

    @property
    def rejected(self) -> list[tuple[str, str, str]]:
        return [(plan.summary, plan.binding, plan.why) for plan in self.report.rejected]

    @property
    def considered(self) -> list[tuple[str, str, str]]:
        """Plans from a playbook, a model or an engineer: by whom, which, and the result."""
        return [(plan.origin, plan.summary, self._result(plan)) for plan in self.report.considered]

    def _result(self, scored: ScoredPlan) -> str:
        rank = self._rank_of(scored.plan)
        if rank:
            return f"proposal {rank}"
        if scored.binding == "time" and scored.step_time_ratio is not None:
            return f"step {scored.step_time_ratio - 1:.1%} longer than proposal 1"
        return scored.why

    def _rank_of(self, plan: Plan | PlanFields) -> int | None:
        fields = plan.model_dump() if isinstance(plan, Plan) else plan
        return next((p.rank for p in self.report.proposals if p.plan.model_dump() == fields), None)

    @property
    def warnings(self) -> list[CaseReference]:
        """Past cases that a measurement refuted."""
        return [case for case in self.report.cases if case.warning]

    @property
    def precedents(self) -> list[CaseReference]:
        return [case for case in self.report.cases if not case.warning]

    @property
    def trials(self) -> list[TrialRow]:
        return trial_rows(self.report.trials)

    @property
    def has_measured(self) -> bool:
        return any(plan.measured for plan in self.plans)


def title_of(s: Scenario) -> str:
    place = f" in {s.cluster.name}" if s.cluster.name else ""
    return f"{s.model.name or 'Model'} on {s.cluster.num_devices:,} x {s.cluster.device}{place}"


def view_of(request: RawJson, report: Report) -> View:
    """The scenario as the session used it: with the accepted notes, and the calibration it ended with."""
    scenario = parse_request(request).scenario
    if report.notes and report.notes.accepted:
        scenario = apply_statements(report.notes.accepted, scenario).scenario
    return View(workload_of(scenario, _calibration(report.calibration)), report)


def find_view(row: SessionRow) -> View | None:
    """The report of a session, or its proposals while it waits for a decision about them."""
    if row.report:
        return view_of(row.request or {}, Report.model_validate(row.report))
    if row.state == WAITING and row.waiting_for:
        return draft_of(row.request or {}, row.waiting_for, row.mode)
    return None


def get_view(row: SessionRow, lacking: str) -> View:
    """`lacking` says what a session without plans cannot do yet."""
    view = find_view(row)
    if view is None:
        raise ConflictError(f"session {row.id} is {row.state}; {lacking}", field="state")
    return view


def _calibration(data: RawJson | None) -> Calibration | None:
    """The cost model as the session's trials have made it; None if there were none."""
    return Calibration.from_data(data) if data else None


def draft_of(request: RawJson, waiting_for: RawJson, mode: str) -> View:
    """The proposals a session waits with, computed by the same tools that write the report."""
    scenario = parse_request(request).scenario.model_copy(update={"traces": None})
    question = PendingDecision.model_validate(waiting_for)
    workload = workload_of(scenario, _calibration(question.calibration))
    waiting = question.proposals[:MAX_PROPOSALS]
    plans, today = [choice.plan for choice in waiting], workload.today()
    proposals = [
        proposal(workload, choice.rank, choice.plan, prediction, today).model_copy(
            update={"measured": choice.measured}
        )
        for choice, prediction in zip(waiting, workload.predict(plans), strict=True)
    ]
    proposals = with_roles(proposals)
    prediction, diagnosis = analyse(workload, scenario.plan or plans[0])
    report = Report(
        id=None,
        verdict=_draft_verdict(prediction, diagnosis, proposals[0], mode),
        first_step="",
        would_change="",
        diagnosis=diagnosis,
        baseline=prediction if today else None,
        baseline_plan=None,
        proposals=proposals,
        rejected=[],
        searched=Searched(plans=0, timed=0, seconds=0.0),
        sensitivity=[],
        beyond_contract=[],
        pareto=[],
        considered=[],
        advice=[],
        cases=[],
        notes=None,
        profile=None,
        decisions=[],
        trials=question.trials,
        stopping=None,
        calibration=question.calibration,
        verification=Verification(checked=0, faults=[], holds=True),
        incidents=[],
        route=[],
        usage=Usage(tokens=0.0, cost=0.0, answered=0.0, fell_back=0.0),
        case=None,
        reasoner="",
    )
    return View(workload, report, is_draft=True)


def _draft_verdict(prediction: Prediction, diagnosis: Diagnosis, first: Proposal, mode: str) -> str:
    """What is slow and what is proposed, before anyone has decided."""
    question = f"Every number was computed twice. {QUESTIONS[mode]}"
    limit = f"limited by {diagnosis.bottleneck}"
    if first.speedup is None:
        step = seconds(first.prediction.step_time_s)
        return f"Proposal 1 is predicted to take {step} per step, {limit}. {question}"
    return (
        f"Today's plan is predicted to take {seconds(prediction.step_time_s)} per step, {limit}. "
        f"Proposal 1 is predicted to be {times(first.speedup)} as fast. {question}"
    )
