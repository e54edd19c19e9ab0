"""The analyzer: what limits a plan, with the numbers and where they come from."""

from graph.desk import Desk
from graph.reasoner.answers import Weighing
from graph.reasoner.question import Question
from graph.state import Data, State


def analyzer(state: State, desk: Desk) -> State:
    scenario = state["reading"]["scenario"]
    subject, plan = _subject(state)
    profile = desk.call("read_traces", folder=scenario["traces"]) if scenario.get("traces") else None
    analysis = desk.call("analyse_plan", scenario=scenario, plan=plan, profile=profile)
    diagnosis = _weighed(analysis, desk)
    return desk.done(
        analysis={**analysis, "subject": subject, "plan": plan, "profile": profile, "diagnosis": diagnosis}
    )


def _subject(state: State) -> tuple[str, Data]:
    """Today's plan, or in a cold start the best one found."""
    today = state["session"]["plan"]
    return ("today", today) if today else ("proposal 1", state["found"]["proposals"][0]["plan"])


def _weighed(analysis: Data, desk: Desk) -> Data:
    """The diagnosis with the cause that counts; several near ones are weighed, and the reason is kept."""
    diagnosis, competing = analysis["diagnosis"], analysis["competing"]
    payload = {"competing": competing, "evidence": diagnosis["evidence"], "facts": analysis["facts"]}
    weighing = desk.ask(Question("weigh_diagnoses", payload, Weighing))
    if weighing.bottleneck not in [one["bottleneck"] for one in competing]:
        offered = ", ".join(one["bottleneck"] for one in competing)
        desk.report_incident("impossible diagnosis", f"{weighing.bottleneck} is none of {offered}")
        return {**diagnosis, "competing": competing, "weighed": competing[0]["says"]}
    return {
        **diagnosis,
        "bottleneck": weighing.bottleneck,
        "competing": competing,
        "weighed": weighing.reason,
    }
