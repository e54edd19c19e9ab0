"""Verification: every number is computed again, and text keeps only numbers that tools returned."""

from graph.reasoner.answers import Prose, Question
from graph.reasoner.rules import Rules
from graph.services import NodeServices
from graph.state import Data, State
from tools.errors import AsapError
from tools.recommend.words import short
from tools.scenario import Plan

OUTSIDE = ("notes", "id", "traces", "origin", "reason")
"""Text that came from outside."""
SHOWN = ("role", "summary", "predicted", "status", "step_time_s", "interval_s", "speedup", "says")
"""What prose may say of a trial; not what a job printed."""


class UnverifiedError(AsapError):
    """ASAP contradicts itself: better no answer than one that does not hold."""


def verify(state: State, services: NodeServices) -> State:
    scenario, analysis = state["reading"]["scenario"], state["analysis"]
    proposals = state["found"]["proposals"]
    baseline = analysis["prediction"] if analysis["subject"] == "today" else None
    result = services.call("verify_numbers", scenario=scenario, proposals=proposals, baseline=baseline)
    wrong = {fault["place"].partition(".")[0] for fault in result["faults"]}
    kept, says = _without(wrong, proposals), [f"{one['place']}: {one['says']}" for one in result["faults"]]
    if "baseline" in wrong or not kept:  # every speedup and the diagnosis rest on the baseline
        raise UnverifiedError(f"the numbers do not hold when computed again: {'; '.join(says)}")
    for one in says:
        services.report_incident("unverified", f"{one}; it is not reported")
    diagnosis = services.call(
        "judge_lever",
        diagnosis=analysis["diagnosis"],
        proposals=kept,
        prediction=analysis["prediction"],
        subject=analysis["subject"],
    )
    found = {**state["found"], "proposals": kept}
    prose, struck = _prose(_payload(state, found, diagnosis, baseline), services)
    return services.done(
        found=found,
        analysis={**analysis, "diagnosis": diagnosis},
        prose=prose,
        verification={**result, "numbers_struck": struck},
    )


def _without(wrong: set[str], proposals: list[Data]) -> list[Data]:
    kept = [one for index, one in enumerate(proposals) if f"proposals[{index}]" not in wrong]
    return [{**one, "rank": rank} for rank, one in enumerate(kept, start=1)]


def _payload(state: State, found: Data, diagnosis: Data, baseline: Data | None) -> Data:
    """All that prose may rest on."""
    return {
        "scenario": state["reading"]["scenario"],
        "baseline": baseline,
        "diagnosis": diagnosis,
        "proposals": [
            {**one, "summary": short(Plan.model_validate(one["plan"]))} for one in found["proposals"]
        ],
        "rejected": found["rejected"],
        "sensitivity": found["sensitivity"],
        "considered": found["considered"],
        "trials": [{name: one.get(name) for name in SHOWN} for one in state.get("trials", [])],
        "trials_run": len(state.get("trials", [])),
        "stopping": state.get("stopping"),
        "baseline_name": _baseline_name(state),
        "playbooks": state.get("knowledge", {}).get("playbooks", []),
    }


def _baseline_name(state: State) -> str:
    return "the framework's default plan" if state["session"].get("plan_is_default") else "today's plan"


def _prose(payload: Data, services: NodeServices) -> tuple[Data, list[str]]:
    """The reasoner's text if its numbers hold; a text of which too little is left gives way to the rules'."""
    question = Question("explain", payload, Prose)
    written = services.ask(question)
    if len(written.rationales) != len(payload["proposals"]):
        services.report_incident(
            "malformed", "explain: not one rationale for each proposal; the expert rules wrote"
        )
        written = Rules().ask(question).answer
    texts = {name: getattr(written, name) for name in ("verdict", "first_step", "would_change")}
    texts |= {f"rationale {rank}": text for rank, text in enumerate(written.rationales, start=1)}
    named = str(payload["scenario"]["model"].get("name", ""))
    judged = services.call("check_prose", texts=texts, figures=_figures(payload), names=[named])
    if judged["struck"]:
        numbers = ", ".join(judged["struck"])
        services.report_incident("unfounded numbers", f"no tool returned {numbers}: struck out of the text")
    return judged["texts"], judged["struck"]


def _figures(payload: Data) -> Data:
    """What may found a number in prose: results of tools, and not the words of whoever asked or suggested."""
    scenario = {name: part for name, part in payload["scenario"].items() if name not in OUTSIDE}
    scenario["model"] = {name: part for name, part in scenario["model"].items() if name != "name"}
    considered = [
        {name: part for name, part in one.items() if name not in OUTSIDE} for one in payload["considered"]
    ]
    return {**payload, "scenario": scenario, "considered": considered}
