"""Verification: every number is computed again, and texts state only what code could check."""

import hashlib
from collections.abc import Sequence

from graph.answers import Explained, Question
from graph.claims import Book, remark_of
from graph.context import Context
from graph.headline import headline_of
from graph.questions import Explain
from graph.rules import Rules, explain
from graph.services import NodeServices
from graph.state import SessionSearch, State, Texts
from graph.tuning import baseline_of
from tools.errors import AsapError
from tools.model.predict import Prediction
from tools.recommend.diagnosis import with_lever
from tools.recommend.proposal import recheck
from tools.recommend.report import Diagnosis, Proposal, Verification
from tools.recommend.score import with_roles
from tools.recommend.workload import PredictedPlan
from tools.scenario import Scenario

EFFECTS = ("faster_than", "slower_than", "even_with", "fits")
"""Without one of them about the proposal that counts, it explains nothing."""


class UnverifiedError(AsapError):
    """ASAP contradicts itself: better no answer than one that does not hold."""


def verify(state: State, services: NodeServices) -> State:
    analysis, search, scenario = state["analysis"], state["search"], state["scenario"]
    result = services.run(
        verify_numbers, scenario=scenario, proposals=search.proposals, baseline=analysis.baseline
    )
    wrong = {fault.place.partition(".")[0] for fault in result.faults}
    kept = with_roles(
        [entry for index, entry in enumerate(search.proposals) if f"proposals[{index}]" not in wrong]
    )
    faults = [f"{fault.place}: {fault.message}" for fault in result.faults]
    if "baseline" in wrong or not kept:  # every speedup and the diagnosis rest on the baseline
        raise UnverifiedError(f"the numbers do not hold when computed again: {'; '.join(faults)}")
    for fault in faults:
        services.report_incident("unverified", f"{fault}; it is not reported")
    diagnosis = analysis.diagnosis
    if analysis.subject == "today":
        diagnosis = services.compute(
            with_lever, diagnosis=diagnosis, proposals=kept, prediction=analysis.prediction
        )
    search = search.model_copy(update={"proposals": kept})
    texts = _texts(state, search, diagnosis, services)
    return services.done(
        search=search,
        analysis=analysis.model_copy(update={"diagnosis": diagnosis}),
        texts=texts,
        verification=result.model_copy(update={"texts_refused": services.refused}),
    )


def verify_numbers(
    context: Context, scenario: Scenario, proposals: Sequence[Proposal], baseline: Prediction | None
) -> Verification:
    """Every number of the proposals, computed a second time."""
    return recheck(context.workload(scenario), proposals, baseline)


def _texts(state: State, search: SessionSearch, diagnosis: Diagnosis, services: NodeServices) -> Texts:
    """Code's texts, and in their place those of a model's claims that hold.

    The headline and what to run first are code's alone.
    """
    trials, decisions, analysis = state.get("trials", []), state.get("decisions", []), state["analysis"]
    is_default, hypotheses = state["session"].plan_is_default, analysis.hypotheses
    workload, baseline = services.context.workload(state["scenario"]), baseline_of(trials)
    others_tried = any(trial.role == "candidate" for trial in trials)
    headline = headline_of(
        workload,
        PredictedPlan(analysis.plan, analysis.prediction) if analysis.baseline else None,
        diagnosis,
        search.proposals,
        hypotheses=hypotheses,
        decisions=decisions,
        trial_s=baseline.step_time_s if baseline else None,
        others_tried=others_tried,
        is_default=is_default,
        is_tuned=state["session"].mode == "tune",
    )
    asked = Explain(
        scenario=state["scenario"],
        baseline=analysis.baseline,
        diagnosis=diagnosis,
        proposals=search.proposals,
        sensitivity=search.sensitivity,
        trials=list(trials),
        trials_run=len(trials),
        others_tried=others_tried,
        stopping=state.get("stopping"),
        baseline_name="the framework's default plan" if is_default else "today's plan",
        decision=headline.text if headline.decision else None,
        chosen=headline.rank,
        cause=hypotheses[0].cause if hypotheses else None,
    )
    digest = hashlib.sha256(f"{asked.model_dump_json()}{headline!r}".encode()).hexdigest()
    if "texts" in state and state["texts"].asked == digest and Explain.name not in services.given:
        return state["texts"].model_copy(update={"decisions_seen": len(decisions)})
    texts = explain(asked, headline)
    authors = dict.fromkeys(("verdict", *texts), Rules.name)
    if services.is_open(Explain.name):
        known = analysis.baseline, search.proposals, hypotheses, search.sensitivity
        book = Book.of(*known, workload.pair_error)
        answer = services.ask(Question(asked, Explained, check=lambda said: _claimed(book, asked, said)[1]))
        by = services.last_author
        written, refused = _claimed(book, asked, answer) if by != Rules.name else ({}, [])
        services.refuse(asked.name, refused)
        authors |= dict.fromkeys(written, by)
        if services.context.remarks and by != Rules.name:
            written["explanation"] = written.get("explanation", "") + remark_of(answer.remark, by)
        texts |= written
    return Texts(
        headline=headline,
        explanation=texts.pop("explanation", "").strip(),
        first_step=texts.pop("first_step"),
        would_change=texts.pop("would_change"),
        rationales=list(texts.values()),
        authors=authors,
        decisions_seen=len(decisions),
        asked=digest,
    )


def _claimed(book: Book, asked: Explain, answer: Explained) -> tuple[dict[str, str], list[str]]:
    """The texts of the claims that hold, and what was refused."""
    parts = {"would_change": answer.would_change}
    parts |= {
        f"rationale {entry.rank}": claims
        for entry, claims in zip(asked.proposals, answer.rationales, strict=False)
    }
    texts, refused = dict[str, str](), list[str]()
    best = asked.proposals[(asked.chosen or 1) - 1]
    if asked.chosen is not None and best.measured is None:
        told = {claim.relation for claim in answer.verdict if claim.subject == f"p{best.rank}"}
        if told & {*EFFECTS}:
            parts["explanation"] = answer.verdict
        elif answer.verdict:
            refused.append(f"verdict: it does not say what p{best.rank} brings ({', '.join(EFFECTS)})")
    for name, claims in parts.items():
        text, wrong = book.write(claims, names_plans=name == "explanation")
        refused += [f"{'verdict' if name == 'explanation' else name}: {reason}" for reason in wrong]
        if text and not (wrong and name == "explanation"):
            texts[name] = text
    return texts, refused
