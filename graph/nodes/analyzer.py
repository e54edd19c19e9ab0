"""The analyzer: which cause limits a plan, what it costs, and where that is seen."""

from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from graph.answers import Finding, Question
from graph.context import Context
from graph.questions import FindCause, digest_of
from graph.rules import Rules
from graph.services import NodeServices
from graph.state import Analysis, State
from graph.tools import ANALYZER_TOOLS, Toolbox
from graph.tuning import baseline_of
from tools.errors import InputError
from tools.model.basis import Basis, basis_of
from tools.model.predict import Prediction
from tools.recommend.diagnosis import read_profile
from tools.recommend.hypotheses import (
    Hypothesis,
    accepted,
    competing,
    predicted_hypotheses,
    profile_hypotheses,
)
from tools.recommend.measured import measured_workload
from tools.recommend.optimize import analyse
from tools.recommend.report import CompetingCause, Diagnosis, Fact
from tools.recommend.situation import Facts, situation
from tools.recommend.workload import PredictedPlan
from tools.scenario import Plan, Scenario
from tools.trace.report import Profile

MAX_CALLS = 8
"""Tool calls in one investigation."""


def analyzer(state: State, services: NodeServices) -> State:
    today = state["session"].plan
    subject: Literal["today", "proposal 1"] = "today" if today else "proposal 1"
    plan = today or state["search"].proposals[0].plan
    profile, facts = _profile(state, services)
    stated_s = next(
        (
            float(fact.value)
            for fact in state.get("facts", [])
            if fact.name == "measured_step_time_s" and isinstance(fact.value, int | float)
        ),
        None,
    )
    found = services.run(
        analyse_plan,
        scenario=state["scenario"],
        plan=plan,
        profile=profile if today else None,
        measured_step_s=stated_s if today else None,
        has_trials=bool(state.get("trials")),
    )
    if "analysis" not in state:
        facts = [*facts, *basis_facts(found.basis)]
    hypotheses, reason = _weigh(state, found, plan, services)
    # Bottleneck and lever follow from the accepted hypothesis.
    causes = [
        CompetingCause(
            bottleneck=hypothesis.bottleneck,
            source="model" if hypothesis.source == "model" else "profile",
            summary=hypothesis.summary,
        )
        for hypothesis in competing(hypotheses)
    ]
    weighed = {"competing": causes, "weighed": reason}
    if hypotheses[0].cause != "trace_mismatch":
        # Traces of another job say nothing about what limits this one.
        weighed["bottleneck"] = hypotheses[0].bottleneck
    analysis = Analysis(
        subject=subject,
        plan=plan,
        prediction=found.prediction,
        diagnosis=found.diagnosis.model_copy(update=weighed),
        hypotheses=hypotheses,
        facts=found.facts,
        profile=profile,
        trials_seen=len(state.get("trials", [])),
    )
    update: State = {"verification": None} if state.get("item") else {}
    if found.calibration:
        update["calibration"] = found.calibration
    return services.done(analysis=analysis, facts=facts, **update)


def _profile(state: State, services: NodeServices) -> tuple[Profile | None, list[Fact]]:
    """Reads, once, the traces that came with the request, or else those that the baseline's trial left."""
    known = state["analysis"].profile if "analysis" in state else None
    own, baseline = state["scenario"].traces, baseline_of(state.get("trials", []))
    folder = own or (baseline.traces if baseline else None)
    if known or not folder:
        return known, []
    try:
        profile = services.run(read_traces, folder=folder, scenario=state["scenario"])
    except InputError as error:
        if own:
            raise
        services.report_incident("traces not read", f"of the baseline's trial: {error}")
        return None, []
    if not own and baseline is not None:
        # A trial's own steps ran without the profiler.
        profile = profile.model_copy(update={"step_time_s": baseline.step_time_s})
    fact = Fact(name="step_time_s", value=profile.step_time_s, unit="s", source="profile", reference=folder)
    return profile, [fact] if profile.step_time_s else []


def read_traces(context: Context, folder: str, scenario: Scenario) -> Profile:
    """The measured diagnosis of a folder of profiler traces, checked against the scenario."""
    return read_profile(folder, scenario, context.check)


@dataclass(frozen=True)
class PlanAnalysis:
    prediction: Prediction
    diagnosis: Diagnosis
    hypotheses: list[Hypothesis]
    """What the traces show before what is predicted."""
    facts: Facts
    calibration: dict[str, JsonValue] | None
    """The cost model as the measured step makes it; None if none was measured."""
    basis: Basis


def analyse_plan(
    context: Context,
    scenario: Scenario,
    plan: Plan,
    profile: Profile | None = None,
    measured_step_s: float | None = None,
    *,
    has_trials: bool = False,
) -> PlanAnalysis:
    """What a plan is predicted to take, what limits it, and the facts that playbooks ask for.

    The prediction is calibrated to the step of the traces, or to the one that notes state; trials measure
    without the profiler, so that what they say of the cost model stands.
    """
    workload, recalibrated = context.workload(scenario), None
    if not has_trials:
        workload, recalibrated = measured_workload(workload, plan, profile, measured_step_s)
    prediction, diagnosis = analyse(workload, plan, profile, recalibrated)
    unfit = workload.why_unfit(PredictedPlan(plan, prediction))
    return PlanAnalysis(
        prediction,
        diagnosis,
        [*(profile_hypotheses(profile) if profile else []), *predicted_hypotheses(prediction, unfit)],
        situation(workload, plan, prediction, profile),
        workload.calibration.to_data() if recalibrated else None,
        basis_of(scenario.model_copy(update={"plan": plan}), workload.calibration),
    )


def basis_facts(basis: Basis) -> list[Fact]:
    """What the prediction rests on, in the words that every other place has for it."""
    told: dict[str, tuple[JsonValue, str]] = {
        "nearest_run": (basis.nearest_run, basis.nearest_summary),
        "prediction_half_width": (float(f"{basis.half_width:.3g}"), basis.uncertainty_summary),
    }
    return [Fact(name=name, value=value, source="runs", reference=why) for name, (value, why) in told.items()]


def _weigh(
    state: State, found: PlanAnalysis, plan: Plan, services: NodeServices
) -> tuple[list[Hypothesis], str]:
    """The hypotheses with the cause that counts first. A model chooses among the near ones, and argues."""
    offered, item = competing(found.hypotheses), state.get("item")
    recalibrated, profile = found.diagnosis.recalibrated, found.diagnosis.profile
    measured_s = profile.step_time_s if profile else recalibrated.measured_s if recalibrated else None
    asked = FindCause(
        scenario=state["scenario"],
        plan=plan,
        prediction=found.prediction,
        measured_step_s=measured_s,
        digest=digest_of(state, "analyzer"),
        hypotheses=found.hypotheses,
        competing=offered,
        diagnosis=found.diagnosis,
        to_test=item.about if item else "",
    )
    box = Toolbox(services.context, state["scenario"], plan, state["session"].tenant)
    lookups = services.lookups(box.named(ANALYZER_TOOLS)) if services.has_model else {}
    finding = services.ask(Question(asked, Finding, lookups, MAX_CALLS))
    by, default = services.last_author, Rules().ask(Question(asked, Finding)).answer
    chosen = next((hypothesis for hypothesis in offered if hypothesis.cause == finding.cause), None)
    shown = chosen.references & {*finding.references} if chosen else frozenset()
    if not shown:
        names = ", ".join(hypothesis.cause for hypothesis in offered)
        message = f"{finding.cause} is not shown by what it refers to; offered: {names}"
        services.report_incident("impossible diagnosis", message)
        finding, by = default, Rules.name
    weighed = accepted(found.hypotheses, finding.cause, by)
    first, next_best = weighed[0], next((entry for entry in offered if entry.cause != finding.cause), None)
    source = "the largest share" if first.source == "model" else "measured, which outranks any prediction"
    why = source if finding.cause == default.cause else f"shown by {', '.join(sorted(shown))}"
    rest = f"; next comes {next_best.summary}" if next_best else ""
    return weighed, f"{first.summary}: {why}{rest}"
