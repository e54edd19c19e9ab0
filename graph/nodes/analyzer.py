"""The analyzer: what limits a plan, with the numbers and where they come from."""

from graph.reasoner.answers import Question, Weighing
from graph.services import NodeServices
from graph.state import Data, State
from graph.tuning import baseline_of, seen
from tools.errors import InputError


def analyzer(state: State, services: NodeServices) -> State:
    scenario = state["reading"]["scenario"]
    subject, plan = _subject(state)
    profile = _profile(state, services)
    analysis = services.call("analyse_plan", scenario=scenario, plan=plan, profile=profile)
    diagnosis = _weighed(analysis, services)
    told = {"subject": subject, "plan": plan, "profile": profile, "diagnosis": diagnosis, **seen(state)}
    return services.done(analysis={**analysis, **told})


def _profile(state: State, services: NodeServices) -> Data | None:
    """Of the traces that came with the request, or else that the baseline's trial left; read once."""
    known: Data | None = state.get("analysis", {}).get("profile")
    given = state["reading"]["scenario"].get("traces")
    baseline = baseline_of(state.get("trials", []))
    folder = given or (baseline["traces"] if baseline else None)
    if known or not folder:
        return known
    try:
        read: Data = services.call("read_traces", folder=folder)
    except InputError as error:
        if given:
            raise
        services.report_incident("traces not read", f"of the baseline's trial: {error}")
        return None
    # A trial's own steps ran without the profiler.
    return read if given or baseline is None else {**read, "step_time_s": baseline["step_time_s"]}


def _subject(state: State) -> tuple[str, Data]:
    """Today's plan, or in a cold start the best one found."""
    today = state["session"]["plan"]
    return ("today", today) if today else ("proposal 1", state["found"]["proposals"][0]["plan"])


def _weighed(analysis: Data, services: NodeServices) -> Data:
    """The diagnosis with the cause that counts; several near ones are weighed, and the reason is kept."""
    diagnosis, competing = analysis["diagnosis"], analysis["competing"]
    payload = {"competing": competing, "evidence": diagnosis["evidence"], "facts": analysis["facts"]}
    weighing = services.ask(Question("weigh_diagnoses", payload, Weighing))
    if weighing.bottleneck not in [one["bottleneck"] for one in competing]:
        offered = ", ".join(one["bottleneck"] for one in competing)
        services.report_incident("impossible diagnosis", f"{weighing.bottleneck} is none of {offered}")
        return {**diagnosis, "competing": competing, "weighed": competing[0]["says"]}
    return {
        **diagnosis,
        "bottleneck": weighing.bottleneck,
        "competing": competing,
        "weighed": weighing.reason,
    }
