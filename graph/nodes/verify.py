"""Verification: every number is computed again, and prose states only what code writes into its slots."""

from typing import Any

from graph import tools
from graph.answers import Prose, Question
from graph.digest import chosen_rank, decision_in_words, slots_of
from graph.rules import Rules
from graph.services import NodeServices
from graph.state import SessionSearch, State, Texts, plain
from tools.errors import AsapError
from tools.recommend.report import Diagnosis, Fault, Proposal
from tools.recommend.score import with_roles
from tools.recommend.words import short

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
        [f"{fault.place}: {fault.says}" for fault in result.faults],
    )
    is_baseline_wrong = any(fault.place.startswith("baseline") for fault in result.faults)
    if is_baseline_wrong or not kept:  # every speedup and the diagnosis rest on the baseline
        raise UnverifiedError(f"the numbers do not hold when computed again: {'; '.join(says)}")
    for fault in says:
        services.report_incident("unverified", f"{fault}; it is not reported")
    diagnosis = services.run(
        tools.judge_lever,
        diagnosis=analysis.diagnosis,
        proposals=kept,
        prediction=analysis.prediction,
        subject=analysis.subject,
    )
    search = search.model_copy(update={"proposals": kept})
    texts = _texts(state, search, diagnosis, services)
    return services.done(
        search=search,
        analysis=analysis.model_copy(update={"diagnosis": diagnosis}),
        texts=texts,
        verification=result.model_copy(update={"texts_refused": services.refused}),
    )


def _without(faults: list[Fault], proposals: list[Proposal]) -> list[Proposal]:
    """The proposals in which nothing is wrong, ranked anew."""
    wrong = {fault.place.partition(".")[0] for fault in faults}
    return with_roles(
        [proposal for index, proposal in enumerate(proposals) if f"proposals[{index}]" not in wrong]
    )


def _payload(state: State, search: SessionSearch, diagnosis: Diagnosis) -> dict[str, Any]:
    """All that prose may rest on, as JSON."""
    trials = state.get("trials", [])
    is_default = state["session"].plan_is_default
    payload: dict[str, Any] = plain(
        {
            "scenario": state["scenario"],
            "baseline": state["analysis"].baseline,
            "diagnosis": diagnosis,
            "proposals": [{**plain(entry), "summary": short(entry.plan)} for entry in search.proposals],
            "sensitivity": search.sensitivity,
            "trials": [entry.model_dump(mode="json", include=SHOWN) for entry in trials],
            "trials_run": len(trials),
            "stopping": state.get("stopping"),
            "baseline_name": "the framework's default plan" if is_default else "today's plan",
            "decision": decision_in_words(state.get("decisions", [])),
            "chosen": chosen_rank(state.get("decisions", []), len(search.proposals)),
        }
    )
    return payload


def _texts(state: State, search: SessionSearch, diagnosis: Diagnosis, services: NodeServices) -> Texts:
    """Code's text, and in its place what a model writes, if code can fill its slots and it states no more."""
    payload, slots = _payload(state, search, diagnosis), slots_of(state, search, diagnosis)
    by_rules = _parts(Rules().ask(Question("explain", payload, Prose)).answer)
    texts, authors = by_rules, dict.fromkeys(by_rules, Rules.name)
    if services.has_model:
        written = _parts(services.ask(Question("explain", {**payload, "slots": slots}, Prose)))
        if services.last_author != Rules.name:
            for name, text in by_rules.items():
                accepted = (
                    services.accept_text(written[name], slots, f"explain.{name}") if name in written else None
                )
                texts = {**texts, name: accepted or text}
                authors[name] = services.last_author if accepted else Rules.name
    return Texts(
        verdict=texts["verdict"],
        first_step=texts["first_step"],
        would_change=texts["would_change"],
        rationales=[text for name, text in texts.items() if name.startswith("rationale ")],
        authors=authors,
        decisions_seen=len(state.get("decisions", [])),
    )


def _parts(prose: Prose) -> dict[str, str]:
    parts = {name: getattr(prose, name) for name in ("verdict", "first_step", "would_change")}
    return parts | {f"rationale {rank}": text for rank, text in enumerate(prose.rationales, start=1)}
