"""The analyzer: which cause limits a plan, what it costs, and where that is seen."""

from typing import Literal

from graph import tools
from graph.answers import Finding, Question
from graph.context import NodeServices
from graph.prompts import digest_of
from graph.rules import Rules
from graph.state import Analysis, State, plain
from graph.toolbox import ANALYZER_TOOLS, Toolbox
from graph.tuning import baseline_of, trials_seen
from tools.errors import InputError
from tools.recommend.hypotheses import Hypothesis, accepted, competing
from tools.recommend.report import CompetingCause, Diagnosis, Fact
from tools.scenario import Plan
from tools.trace.report import Profile

MAX_CALLS = 8
"""Of tools, in one investigation."""


def analyzer(state: State, services: NodeServices) -> State:
    subject, plan = _subject(state)
    profile, facts = _profile(state, services)
    found = services.run(
        tools.analyse_plan,
        scenario=state["scenario"],
        plan=plan,
        profile=profile if subject == "today" else None,
        measured_step_s=_stated_step_s(state) if subject == "today" else None,
        has_trials=bool(state.get("trials")),
    )
    hypotheses, reason = _weigh(state, found, plan, services)
    analysis = Analysis(
        subject=subject,
        plan=plan,
        prediction=found.prediction,
        diagnosis=_diagnosis(found.diagnosis, hypotheses, reason),
        hypotheses=hypotheses,
        facts=found.facts,
        profile=profile,
        trials_seen=trials_seen(state),
    )
    update: State = {"verification": None} if state.get("item") else {}
    if found.calibration:
        update["calibration"] = found.calibration
    return services.done(analysis=analysis, facts=facts, **update)


def _stated_step_s(state: State) -> float | None:
    """What the notes say that a step of today's plan takes."""
    for fact in state.get("facts", []):
        if fact.name == "measured_step_time_s" and isinstance(fact.value, int | float):
            return float(fact.value)
    return None


def _profile(state: State, services: NodeServices) -> tuple[Profile | None, list[Fact]]:
    """Of the traces that came with the request, or else that the baseline's trial left; read once."""
    known = state["analysis"].profile if "analysis" in state else None
    own = state["scenario"].traces
    baseline = baseline_of(state.get("trials", []))
    folder = own or (baseline.traces if baseline else None)
    if known or not folder:
        return known, []
    try:
        profile = services.run(tools.read_traces, folder=folder, scenario=state["scenario"])
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


def _subject(state: State) -> tuple[Literal["today", "proposal 1"], Plan]:
    """Today's plan, or in a cold start the best one found."""
    today = state["session"].plan
    return ("today", today) if today else ("proposal 1", state["search"].proposals[0].plan)


def _weigh(
    state: State, found: tools.PlanAnalysis, plan: Plan, services: NodeServices
) -> tuple[list[Hypothesis], str]:
    """The hypotheses with the cause that counts first. A model chooses among the near ones, and argues."""
    offered = competing(found.hypotheses)
    item = state.get("item")
    payload = plain(
        {
            "digest": digest_of(state, "analyzer") if services.has_model else {},
            "hypotheses": found.hypotheses,
            "competing": offered,
            "diagnosis": found.diagnosis,
            "to_test": item.about if item else "",
            "slots": {},
        }
    )
    box = Toolbox(services.context, state["scenario"], plan, state["session"].tenant)
    lookups = services.lookups(box.named(ANALYZER_TOOLS)) if services.has_model else {}
    finding = services.ask(Question("find_cause", payload, Finding, lookups, MAX_CALLS))
    by, default = services.last_author, Rules().ask(Question("find_cause", payload, Finding)).answer
    chosen = next((hypothesis for hypothesis in offered if hypothesis.cause == finding.cause), None)
    if chosen is None or not chosen.references & {*finding.references}:
        names = ", ".join(hypothesis.cause for hypothesis in offered)
        says = f"{finding.cause} is not shown by what it refers to; offered: {names}"
        services.report_incident("impossible diagnosis", says)
        finding, by = default, Rules.name
    reason = (
        finding.reason if by == Rules.name else services.accept_text(finding.reason, {}, "find_cause.reason")
    )
    return accepted(found.hypotheses, finding.cause, by), reason or default.reason


def _diagnosis(diagnosis: Diagnosis, hypotheses: list[Hypothesis], reason: str) -> Diagnosis:
    """Bottleneck and lever follow from the accepted hypothesis."""
    causes = [
        CompetingCause(
            bottleneck=hypothesis.bottleneck,
            source="model" if hypothesis.source == "model" else "profile",
            says=hypothesis.says,
        )
        for hypothesis in competing(hypotheses)
    ]
    update = {"competing": causes, "weighed": reason}
    if hypotheses[0].cause != "trace_mismatch":
        # Traces of another job say nothing about what limits this one.
        update["bottleneck"] = hypotheses[0].bottleneck
    return diagnosis.model_copy(update=update)
