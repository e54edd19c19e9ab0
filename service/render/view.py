"""A report beside the scenario it answers: plans and evidence as every format shows them.

Made once per request; layout is in the templates and tables.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from graph.headline import Headline, headline_of, measured_today_s
from graph.report import CaseReference, PendingDecision, Report, Trial, Usage
from graph.request import parse_request
from service.errors import ConflictError
from service.render.text import MEMORY, STEP, seconds, seconds_span, size_of, visible_terms
from service.render.trials import TrialRow, gain_text, trial_rows
from service.sessions.model import WAITING, SessionRow
from tools.model.calibration import Calibration
from tools.model.predict import Prediction
from tools.physics.sizes import count_parameters
from tools.recommend.choose import MAX_PROPOSALS
from tools.recommend.notes import apply_statements
from tools.recommend.optimize import analyse, workload_of
from tools.recommend.proposal import interval_risk, proposal
from tools.recommend.report import (
    Change,
    Evidence,
    MeasuredPlan,
    PlanFields,
    Proposal,
    Searched,
    Verification,
)
from tools.recommend.score import with_roles, without_gains
from tools.recommend.words import listing, short
from tools.recommend.workload import PredictedPlan, Workload
from tools.scenario import Plan, Scenario

TODAY = "today"
"""The baseline's name in addresses, whether it runs today or is the framework's default."""
QUESTIONS = {
    "advise": "Decide which one to take; the report follows.",
    "tune": "Approve the one to measure next, or reject one to end the trials.",
}
NOT_WRITTEN = {
    **dict.fromkeys(("id", "baseline_plan", "notes", "profile", "stopping", "case")),
    **dict.fromkeys(("first_step", "would_change", "reasoner"), ""),
    **dict.fromkeys(("rejected", "sensitivity", "beyond_contract", "pareto", "considered", "advice"), ()),
    **dict.fromkeys(("cases", "decisions", "incidents", "route"), ()),
    "searched": Searched(plans=0, timed=0, seconds=0.0),
    "verification": Verification(checked=0, faults=[], holds=True),
    "usage": Usage(tokens=0.0, cost=0.0, answered=0.0, fell_back=0.0),
}
"""Fields that a report lacks before a person has decided."""
CHECKPOINT = {
    "as it is": "loads as it is",
    "resharded": "is resharded as it loads",
    "converted": "must be converted",
    "unknown": "no way to load it is known",
}
DERIVED_FIELDS = {"dp", "schedule"}
"""Follow from the other fields of a plan, so they cannot be edited."""


@dataclass(frozen=True)
class PlanView:
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
        return [risk for risk in risks if risk != interval_risk(self.prediction)]

    @property
    def robustness(self) -> list[tuple[str, str]]:
        """The step if things are worse than they seem, in the order of a table; empty for today's plan."""
        told = self.proposal and self.proposal.robustness
        if not told:
            return []
        return [
            ("expected", seconds(told.expected_s)),
            ("worst of 80%", seconds(told.worst_s)),
            ("half the network", seconds(told.half_network_s)),
            ("one slow node", seconds(told.slow_node_s)),
            ("fits a tenth less memory", f"{told.fits_less_memory:.0%}"),
        ]

    @property
    def checkpoint(self) -> str | None:
        """What becomes of today's checkpoint, by what command, at what cost; None if nothing is known."""
        kept = self.proposal and self.proposal.checkpoint
        if not kept:
            return None
        moved = f", {kept.moved_gib:,.0f} GiB moved" if kept.moved_gib else ""
        how = f": {kept.command}" if kept.command else ""
        return f"Today's checkpoint: {CHECKPOINT[kept.loads]}{moved}{how}."

    @property
    def changes(self) -> list[Change]:
        changes = self.proposal.changes if self.proposal else []
        return [change for change in changes if change.from_ != change.to]

    @property
    def fields(self) -> PlanFields:
        """Those of the plan that a person may edit."""
        plan = self.plan.model_dump(exclude_none=True, exclude=DERIVED_FIELDS)
        return {name: value for name, value in plan.items() if isinstance(value, bool | int | str)}

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


def planned_of(name: str, workload: Workload, plan: Plan) -> PlanView:
    return PlanView(name, plan, workload.predict([plan])[0], workload.limit_gib, workload.capacity_gib)


@dataclass(frozen=True)
class ReportView:
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

    @cached_property
    def headline(self) -> Headline:
        """The result, as the session stored it; judged here for a draft, and for reports of version 0.2."""
        report, today = self.report, self.baseline_plan
        if report.headline:
            return report.headline
        return headline_of(
            self.workload,
            PredictedPlan(today, report.baseline) if today and report.baseline else None,
            report.diagnosis,
            report.proposals,
            hypotheses=report.hypotheses,
            decisions=report.decisions,
            trial_s=next((t.step_time_s for t in report.trials if t.role == "baseline"), None),
            others_tried=any(trial.role == "candidate" for trial in report.trials),
            is_default=self.baseline_name != TODAY,
            is_tuned=report.stopping is not None,
        )

    @property
    def calibrated_by(self) -> str:
        """Which of the cluster's runs the predictions stand on, and what they changed; empty without any."""
        used = self.report.calibrated_by
        if used is None:
            return ""
        version = f", version {used.version}" if used.version else ""
        proposals = self.report.proposals
        first_s = proposals[0].prediction.step_time_s if proposals else used.proposal_without_s
        return (
            f"predicted with {used.label} of {used.cluster or 'this cluster'}{version}; the first proposal: "
            f"{seconds(first_s)} with them, {seconds(used.proposal_without_s)} without"
        )

    @property
    def tie(self) -> str | None:
        """Which proposals a prediction cannot tell from the first, if any; a measurement could."""
        proposals = self.report.proposals
        if self.headline.decision or self.headline.rank != 1 or self.headline.stance == "foreign":
            return None
        if any(proposal.measured for proposal in proposals):
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
            f"and a comparison errs by {math.expm1(error):.0%}; a short run would tell."
        )

    @property
    def baseline_plan(self) -> Plan | None:
        """What gains are counted from."""
        stated = self.report.baseline_plan
        return stated.plan if stated else self.workload.scenario.plan

    @property
    def baseline_name(self) -> str:
        return "default" if self.workload.scenario.plan is None else TODAY

    @cached_property
    def plans(self) -> list[PlanView]:
        """The baseline, if there is one, then the proposals."""
        limits = self.workload.limit_gib, self.workload.capacity_gib
        proposals = [
            PlanView(f"proposal {p.rank}", p.plan, p.prediction, *limits, proposal=p)
            for p in self.report.proposals
        ]
        if self.baseline_plan is None or self.report.baseline is None:
            return proposals
        measured = [t for t in self.report.trials if t.role == "baseline" and t.status == "measured"]
        trial = measured[0] if measured else None
        baseline = PlanView(
            self.baseline_name, self.baseline_plan, self.report.baseline, *limits, trial=trial
        )
        return [baseline, *proposals]

    @property
    def proposals(self) -> list[PlanView]:
        return [plan for plan in self.plans if plan.proposal]

    @property
    def counts(self) -> PlanView:
        """The plan that the headline is about: a proposal, or today's if none is to be taken."""
        rank = self.headline.rank
        return self.proposals[rank - 1] if rank else self.plans[0]

    def measured_step_s(self, plan: PlanView) -> float | None:
        """By a trial, or by traces of today's plan that are of this job."""
        if plan.measured and plan.measured.step_time_s:
            return plan.measured.step_time_s
        return None if plan.proposal else measured_today_s(self.report.diagnosis)

    def find_plan(self, key: str) -> Plan | None:
        """`today`, or the rank of a proposal."""
        if key == TODAY:
            return self.baseline_plan
        return next((p.plan for p in self.report.proposals if str(p.rank) == key), None)

    def role_of(self, plan: PlanView) -> str:
        """What a proposal is to this session; nothing is recommended beside a verdict that keeps today's plan
        or sells nothing."""
        if plan.proposal is None:
            return ""
        if self.report.baseline and not (plan.changes or plan.proposal.settings):
            return f"the same as {self.plans[0].name}"
        is_open = self.headline.stance in ("switch", "start", "unfit")
        recommended = plan.proposal.role == "recommended"
        return "alternative" if recommended and not is_open else plan.proposal.role

    @property
    def step_terms(self) -> dict[str, str]:
        return visible_terms(STEP, [plan.prediction.breakdown_s for plan in self.plans])

    @property
    def memory_terms(self) -> dict[str, str]:
        return visible_terms(MEMORY, [plan.prediction.memory_gib for plan in self.plans])

    @property
    def other_clusters(self) -> list[tuple[str, str]]:
        """What the cluster might be instead, and which plan would then be the fastest."""
        rows = []
        for case in self.report.sensitivity:
            fastest = case.summary
            if case.best is not None and case.step_time_s is not None:
                rank = self._rank_of(case.best)
                plan = f"proposal {rank}" if rank else short(case.best)
                fastest = f"{plan} ({seconds(case.step_time_s)})"
            rows.append((case.if_, fastest))
        return rows

    @property
    def rejected(self) -> list[tuple[str, str, str]]:
        return [(plan.summary, plan.binding, plan.why) for plan in self.report.rejected]

    @property
    def considered(self) -> list[tuple[str, str, str]]:
        """Plans from a playbook, a model or an engineer: by whom, which, and the result."""
        rows = []
        for scored in self.report.considered:
            result = scored.why
            if rank := self._rank_of(scored.plan):
                result = f"proposal {rank}"
            elif scored.binding == "time" and scored.step_time_ratio is not None:
                result = f"step {scored.step_time_ratio - 1:.1%} longer than proposal 1"
            rows.append((scored.origin, scored.summary, result))
        return rows

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


def view_of(scenario: Scenario, report: Report) -> ReportView:
    """The scenario as the session used it: with the accepted notes, and the calibration it ended with."""
    if report.notes and report.notes.accepted:
        scenario = apply_statements(report.notes.accepted, scenario).scenario
    calibration = Calibration.from_data(report.calibration) if report.calibration else None
    return ReportView(workload_of(scenario, calibration), report)


def find_view(row: SessionRow) -> ReportView | None:
    """The report of a session, or its proposals while it waits for a decision about them."""
    if row.report:
        return view_of(parse_request(row.request).scenario, Report.model_validate(row.report))
    if row.state == WAITING and row.waiting_for:
        scenario = parse_request(row.request).scenario
        return draft_of(scenario, PendingDecision.model_validate(row.waiting_for), row.mode)
    return None


def get_view(row: SessionRow, lacking: str) -> ReportView:
    """`lacking` says what a session without plans cannot do yet."""
    view = find_view(row)
    if view is None:
        raise ConflictError(f"session {row.id} is {row.state}; {lacking}", path="state")
    return view


def draft_of(scenario: Scenario, question: PendingDecision, mode: str) -> ReportView:
    """The proposals a session waits with, computed by the same tools that write the report."""
    calibration = Calibration.from_data(question.calibration) if question.calibration else None
    workload = workload_of(scenario.model_copy(update={"traces": None}), calibration)
    choices = question.proposals[:MAX_PROPOSALS]
    plans, today = [choice.plan for choice in choices], workload.today()
    proposals = []
    for choice, predicted in zip(choices, workload.predict(plans), strict=True):
        written = proposal(workload, choice.rank, choice.plan, predicted, today)
        proposals.append(written.model_copy(update={"measured": choice.measured}))
    proposals = with_roles(proposals)
    prediction, diagnosis = analyse(workload, scenario.plan or plans[0])
    known = {
        "verdict": "",
        "headline": question.headline,
        "first_step": QUESTIONS[mode],
        "diagnosis": diagnosis,
        "baseline": prediction if today else None,
        "proposals": proposals,
        "trials": question.trials,
        "calibration": question.calibration,
    }
    view = ReportView(workload, Report.model_validate({**NOT_WRITTEN, **known}), is_draft=True)
    headline = view.headline
    if today and not headline.sells:
        proposals = without_gains(proposals)
    update = {"headline": headline, "verdict": headline.text, "chosen": headline.rank, "proposals": proposals}
    return replace(view, report=view.report.model_copy(update=update))
