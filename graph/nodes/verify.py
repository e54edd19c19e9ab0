"""Verification: every number is computed again, and text keeps only numbers that tools returned."""

from typing import Any

from graph import tools
from graph.answers import Prose, Question
from graph.rules import Rules
from graph.services import NodeServices
from graph.state import SessionSearch, State, Texts, plain
from tools.errors import AsapError
from tools.recommend.report import Diagnosis, Fault, Proposal
from tools.recommend.score import ranked
from tools.recommend.words import short

OUTSIDE = ("notes", "id", "traces", "origin", "reason")
"""Text that came from outside."""
SHOWN = {"role", "summary", "predicted", "status", "step_time_s", "interval_s", "speedup", "says"}
"""What prose may say of a trial; not what a job printed."""


class UnverifiedError(AsapError):
    """ASAP contradicts itself: better no answer than one that does not hold."""


def verify(state: State, services: NodeServices) -> State:
    analysis, search = state["analysis"], state["search"]
    result = services.run(
        tools.verify_numbers,
        scenario=state["scenario"],
        proposals=search.proposals,
        baseline=analysis.baseline,
    )
    kept, says = (
        _without(result.faults, search.proposals),
        [f"{one.place}: {one.says}" for one in result.faults],
    )
    is_baseline_wrong = any(one.place.startswith("baseline") for one in result.faults)
    if is_baseline_wrong or not kept:  # every speedup and the diagnosis rest on the baseline
        raise UnverifiedError(f"the numbers do not hold when computed again: {'; '.join(says)}")
    for one in says:
        services.report_incident("unverified", f"{one}; it is not reported")
    diagnosis = services.run(
        tools.judge_lever,
        diagnosis=analysis.diagnosis,
        proposals=kept,
        prediction=analysis.prediction,
        subject=analysis.subject,
    )
    search = search.model_copy(update={"proposals": kept})
    texts, struck = _texts(state, _payload(state, search, diagnosis), services)
    return services.done(
        search=search,
        analysis=analysis.model_copy(update={"diagnosis": diagnosis}),
        texts=texts,
        verification=result.model_copy(update={"numbers_struck": struck}),
    )


def _without(faults: list[Fault], proposals: list[Proposal]) -> list[Proposal]:
    """The proposals in which nothing is wrong, ranked anew."""
    wrong = {fault.place.partition(".")[0] for fault in faults}
    return ranked([one for index, one in enumerate(proposals) if f"proposals[{index}]" not in wrong])


def _payload(state: State, search: SessionSearch, diagnosis: Diagnosis) -> dict[str, Any]:
    """All that prose may rest on, as JSON."""
    trials, knowledge = state.get("trials", []), state.get("knowledge")
    is_default = state["session"].plan_is_default
    payload: dict[str, Any] = plain(
        {
            "scenario": state["scenario"],
            "baseline": state["analysis"].baseline,
            "diagnosis": diagnosis,
            "proposals": [{**plain(one), "summary": short(one.plan)} for one in search.proposals],
            "rejected": search.rejected,
            "sensitivity": search.sensitivity,
            "considered": search.considered,
            "trials": [one.model_dump(mode="json", include=SHOWN) for one in trials],
            "trials_run": len(trials),
            "stopping": state.get("stopping"),
            "baseline_name": "the framework's default plan" if is_default else "today's plan",
            "playbooks": knowledge.playbooks if knowledge else [],
        }
    )
    return payload


def _texts(state: State, payload: dict[str, Any], services: NodeServices) -> tuple[Texts, list[str]]:
    """The reasoner's text if its numbers hold; a text of which too little is left gives way to the rules'."""
    question = Question("explain", payload, Prose)
    written = services.ask(question)
    if len(written.rationales) != len(payload["proposals"]):
        services.report_incident(
            "malformed", "explain: not one rationale for each proposal; the expert rules wrote"
        )
        written = Rules().ask(question).answer
    parts = {name: getattr(written, name) for name in ("verdict", "first_step", "would_change")}
    parts |= {f"rationale {rank}": text for rank, text in enumerate(written.rationales, start=1)}
    names = [state["scenario"].model.name]
    checked = services.run(tools.check_prose, texts=parts, figures=_figures(payload), names=names)
    if checked.struck:
        numbers = ", ".join(checked.struck)
        services.report_incident("unfounded numbers", f"no tool returned {numbers}: struck out of the text")
    texts = Texts(
        verdict=checked.texts["verdict"],
        first_step=checked.texts["first_step"],
        would_change=checked.texts["would_change"],
        rationales=[text for name, text in checked.texts.items() if name.startswith("rationale ")],
    )
    return texts, checked.struck


def _figures(payload: dict[str, Any]) -> dict[str, Any]:
    """What may support a number in prose: results of tools, and no words from outside."""
    scenario = {name: part for name, part in payload["scenario"].items() if name not in OUTSIDE}
    scenario["model"] = {name: part for name, part in scenario["model"].items() if name != "name"}
    considered = [
        {name: part for name, part in one.items() if name not in OUTSIDE} for one in payload["considered"]
    ]
    return {**payload, "scenario": scenario, "considered": considered}
