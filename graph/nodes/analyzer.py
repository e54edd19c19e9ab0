"""The analyzer: what limits a plan, with the numbers and where they come from."""

from typing import Literal

from graph import tools
from graph.answers import Question, Weighing
from graph.services import NodeServices
from graph.state import Analysis, State, plain
from graph.tuning import baseline_of, trials_seen
from tools.errors import InputError
from tools.recommend.report import Diagnosis
from tools.scenario import Plan
from tools.trace.report import Profile


def analyzer(state: State, services: NodeServices) -> State:
    subject, plan = _subject(state)
    profile = _profile(state, services)
    found = services.run(tools.analyse_plan, scenario=state["scenario"], plan=plan, profile=profile)
    analysis = Analysis(
        subject=subject,
        plan=plan,
        prediction=found.prediction,
        diagnosis=_weighed(found, services),
        facts=found.facts,
        profile=profile,
        trials_seen=trials_seen(state),
    )
    return services.done(analysis=analysis)


def _profile(state: State, services: NodeServices) -> Profile | None:
    """Of the traces that came with the request, or else that the baseline's trial left; read once."""
    known = state["analysis"].profile if "analysis" in state else None
    own = state["scenario"].traces
    baseline = baseline_of(state.get("trials", []))
    folder = own or (baseline.traces if baseline else None)
    if known or not folder:
        return known
    try:
        profile = services.run(tools.read_traces, folder=folder)
    except InputError as error:
        if own:
            raise
        services.report_incident("traces not read", f"of the baseline's trial: {error}")
        return None
    if own or baseline is None:
        return profile
    # A trial's own steps ran without the profiler.
    return profile.model_copy(update={"step_time_s": baseline.step_time_s})


def _subject(state: State) -> tuple[Literal["today", "proposal 1"], Plan]:
    """Today's plan, or in a cold start the best one found."""
    today = state["session"].plan
    return ("today", today) if today else ("proposal 1", state["search"].proposals[0].plan)


def _weighed(found: tools.PlanAnalysis, services: NodeServices) -> Diagnosis:
    """The diagnosis with the cause that counts; several near ones are weighed, and the reason is kept."""
    diagnosis, competing = found.diagnosis, found.competing
    payload = plain({"competing": competing, "evidence": diagnosis.evidence, "facts": found.facts})
    weighing = services.ask(Question("weigh_diagnoses", payload, Weighing))
    update = {"competing": competing, "bottleneck": weighing.bottleneck, "weighed": weighing.reason}
    offered = [one.bottleneck for one in competing]
    if weighing.bottleneck not in offered:
        says = f"{weighing.bottleneck} is none of {', '.join(offered)}"
        services.report_incident("impossible diagnosis", says)
        update |= {"bottleneck": diagnosis.bottleneck, "weighed": competing[0].says}
    return diagnosis.model_copy(update=update)
