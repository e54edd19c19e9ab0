"""The coordinator: what the notes state, a worklist from a closed set, and which step comes next.

The workflow's rules (kb_seed/workflow/steps.toml) are the floor and the stop condition: they decide what must
be done. Once that is done a model may add items, a few times; without a model the rules are all. Notes are
read by the deterministic reader, which needs no model; a model's statement counts if that reader says the
same, or if a second, independent question about the quote alone is answered yes, and its opposite no.
"""

import tomllib
from functools import cache
from typing import Any, Literal

from langgraph.types import Command
from pydantic import JsonValue

import kb_seed
from graph import tools
from graph.answers import Confirmation, PlannedItem, Question, Reading, Worklist
from graph.context import NodeServices
from graph.prompts import digest_of
from graph.report import PersonQuestion, RouteStep
from graph.request import PLAN_ACTIONS
from graph.rules import Rules
from graph.state import State, WorkItem, plain
from graph.tuning import baseline_of, has_current_analysis, has_current_search, time_left_s, why_ended
from tools.errors import DataError, InputError
from tools.kb.conditions import applies, parse_conditions
from tools.recommend.hypotheses import CAUSES
from tools.recommend.notes import (
    KINDS,
    SecondAnswer,
    apply_judged,
    judge,
    second_question,
    without_impossible,
)
from tools.recommend.report import Notes, Statement
from tools.recommend.situation import Facts
from tools.search.constraints import parse_constraints

NODE_OF = {
    "reconcile": "analyzer",
    "test_hypothesis": "analyzer",
    "search": "proposal",
    "compare_ties": "proposal",
}
CLOSING = ("approve", "learn", "report")
"""Steps that come once everything is verified."""
Step = Literal["analyzer", "proposal", "verify", "approve", "trial", "learn", "report"]


@cache
def rules() -> list[dict[str, Any]]:
    return list(tomllib.loads(kb_seed.folder("workflow").joinpath("steps.toml").read_text("utf-8"))["rule"])


def first_rule(facts: Facts) -> RouteStep:
    """The step and its reason."""
    for rule in rules():
        if applies(parse_conditions(rule["when"]), facts):
            return RouteStep(step=rule["step"], reason=rule["reason"])
    raise DataError("kb_seed/workflow/steps.toml: no rule holds; the last one must have no condition")


def coordinator(state: State, services: NodeServices) -> Command[Step]:
    update: State = {} if "scenario" in state else _open(state, services)
    facts = _facts(state, services)
    rule = first_rule(facts)
    listed = update["worklist"] if "worklist" in update else state.get("worklist", [])
    worklist = [_status(work, facts, state.get("item")) for work in listed]
    questions: list[PersonQuestion] = []
    if _may_revise(state, rule, facts, worklist, services):
        added, questions = _revise(state, services)
        worklist += added
    item = next((work for work in worklist if work.status == "open" and work.by != Rules.name), None)
    choice = rule
    if item is not None and rule.step in CLOSING:
        choice = RouteStep(step=NODE_OF[item.task], reason=item.reason)
    services.log.emit("routed", step=choice.step, reason=choice.reason)
    update["worklist"], update["item"] = worklist, item if choice is not rule else None
    asked = [*update.get("questions", []), *questions]
    done = services.done(**{**update, "questions": asked}, route=[choice])
    return Command(goto=choice.step, update=done)  # type: ignore[arg-type]


def _open(state: State, services: NodeServices) -> State:
    """The request with what its notes say, the first facts, and what the rules put on the worklist."""
    update = read_notes(state, services)
    facts = services.run(tools.catalogue_facts, scenario=update["scenario"])
    update["facts"] = [*facts, *update.get("facts", [])]
    request, session = state["request"], state["session"]
    wanted: list[tuple[bool, str, str]] = [
        (bool(request.notes), "read_notes", "the engineer's words come before any search"),
        (bool(request.traces), "reconcile", "what was measured rules over what is predicted"),
        (True, "search", "every legal plan is searched before anybody argues for one"),
        (True, "compare_ties", "plans within the error of a comparison are ordered by evidence"),
        (session.mode == "tune", "measure", "advice that is never measured is opinion"),
    ]
    update["worklist"] = [
        WorkItem.model_validate({"task": task, "reason": reason, "by": Rules.name})
        for is_due, task, reason in wanted
        if is_due
    ]
    return update


def _status(item: WorkItem, facts: Facts, sent: WorkItem | None) -> WorkItem:
    """Done if a node was just sent for it, or if the rules' own facts say so."""
    if item.by != Rules.name:
        is_done = item.status == "done" or item == sent
    else:
        is_done = {
            "read_notes": True,
            "reconcile": bool(facts["analysed"]),
            "search": bool(facts["searched"]),
            "compare_ties": bool(facts["verified"]),
            "measure": not facts["trial_due"] and not facts["baseline_due"] and bool(facts["verified"]),
        }[item.task]
    return item.model_copy(update={"status": "done" if is_done else "open"})


def _may_revise(
    state: State, rule: RouteStep, facts: Facts, worklist: list[WorkItem], services: NodeServices
) -> bool:
    """Once all that must be done is verified and nobody has decided; a bounded number of times."""
    revisions = sum(turn.question == "revise_worklist" for turn in state.get("turns", []))
    fell_back = any(entry.says.startswith("revise_worklist") for entry in state.get("incidents", []))
    settled = (
        rule.step in CLOSING and facts["verified"] and not state.get("decisions") and not state.get("learnt")
    )
    has_open = any(entry.status == "open" and entry.by != Rules.name for entry in worklist)
    is_late = float(facts["time_left_s"] or 0) < 0
    return bool(
        services.has_model
        and settled
        and not has_open
        and not fell_back
        and not is_late
        and revisions < services.context.limits.rounds
    )


def _revise(state: State, services: NodeServices) -> tuple[list[WorkItem], list[PersonQuestion]]:
    """What a model adds, each item checked; what is impossible is named and left out."""
    options = ["test_hypothesis", "search", "compare_ties", "ask_person"]
    options += ["reconcile"] if state["scenario"].traces else []
    payload = plain({"digest": digest_of(state, "coordinator"), "options": options, "causes": CAUSES})
    answer = services.ask(Question("revise_worklist", payload, Worklist))
    items: list[WorkItem] = []
    questions: list[PersonQuestion] = []
    for planned in answer.items:
        try:
            _check_item(planned, options, state)
        except InputError:
            # Not what exactly it asked for: a model's own words stay out of the report.
            services.report_incident("impossible step", f"{planned.task}: it cannot be done so now; left out")
            continue
        if planned.task == "ask_person":
            text = services.accept_text(planned.about, {}, "revise_worklist.about")
            questions += [PersonQuestion(field="", text=text, by=services.last_author)] if text else []
            continue
        reason = services.accept_text(planned.reason, {}, "revise_worklist.reason") or "a model asked for it"
        constraints: dict[str, JsonValue] = plain(planned.constraints)
        item = WorkItem(
            task=planned.task,
            about=planned.about[:60],
            constraints=constraints,
            reason=reason,
            by=services.last_author,
        )
        items += [] if item.model_copy(update={"status": "done"}) in state.get("worklist", []) else [item]
    return items, questions


def _check_item(item: PlannedItem, options: list[str], state: State) -> None:
    """Raises InputError for what cannot be done now."""
    if item.task not in options:
        raise InputError("task", item.task, f"allowed now: {', '.join(options)}")
    if item.task == "test_hypothesis":
        known = [hypothesis.cause for hypothesis in state["analysis"].hypotheses]
        if item.about not in known:
            raise InputError("about", item.about[:60], f"allowed: {', '.join(known)}")
    if item.task == "search":
        if not item.constraints:
            raise InputError("constraints", {}, "a search needs a constraint that the first one did not have")
        parse_constraints({**state["scenario"].constraints, **plain(item.constraints)}, state["session"].plan)
    if item.task == "ask_person" and not item.about.strip():
        raise InputError("about", item.about, "must hold the question")


def _facts(state: State, services: NodeServices) -> Facts:
    """What the workflow's rules ask about."""
    decisions, handled = state.get("decisions", []), state.get("handled", 0)
    limits, now, trials = services.context.limits, services.context.clock(), state.get("trials", [])
    learnt, texts = state.get("learnt"), state.get("texts")
    is_explained = texts is not None and texts.decisions_seen == len(decisions)
    return {
        "time_left_s": time_left_s(state, limits, now),
        "has_plan": state["session"].plan is not None,
        "analysed": has_current_analysis(state),
        "searched": has_current_search(state),
        "informed": "knowledge" in state,
        "plan_waiting": any(decision.action in PLAN_ACTIONS for decision in decisions[handled:]),
        "verified": state.get("verification") is not None and has_current_search(state) and is_explained,
        "learnt": learnt is not None
        and (learnt.decisions_seen, learnt.trials_seen) == (len(decisions), len(trials)),
        "trial_learnt": (learnt.trials_seen if learnt else 0) == len(trials),
        **_permissions(state, why_ended(state, limits, now) is not None),
    }


def _permissions(state: State, ended: bool) -> Facts:
    """What is due next, of what somebody must allow."""
    decisions, trials = state.get("decisions", []), state.get("trials", [])
    tunes, approval = state["session"].mode == "tune", state["session"].approval
    last = decisions[-1].action if decisions else None
    if not tunes:
        due = approval == "person" and last not in ("approve", "reject")
        return {"baseline_due": False, "trial_due": False, "approval_due": due, "trials_unsettled": False}
    approved = any(decision.action == "approve" for decision in decisions[state.get("handled", 0) :])
    closed = "search" in state and state["search"].closed
    return {
        "baseline_due": approval != "person" and baseline_of(trials) is None and not ended,
        "trial_due": approved or (approval == "none" and not ended),
        "approval_due": approval != "none" and not approved and not ended,
        "trials_unsettled": ended and not approved and bool(trials) and not closed,
    }


CHOICE_VALUES = frozenset(("none", "selective", "full", "1f1b", "interleaved", "zero_bubble", "gpipe"))
RULES_ONLY = "read by the expert rules: what they do not understand changes nothing"


def read_notes(state: State, services: NodeServices) -> State:
    """The request with what its notes say applied; what is unclear becomes a question to the person."""
    request = state["request"]
    if not request.notes:
        return State(scenario=request, notes=Notes(accepted=[], refused=[], says=None))
    statements: list[Statement] = []
    answers: dict[int, tuple[SecondAnswer, SecondAnswer]] = {}
    if services.has_model:
        described = plain(request.model_copy(update={"notes": None}))
        question = Question("read_notes", {"notes": request.notes, "scenario": described}, Reading)
        statements = [
            Statement.model_validate(entry.model_dump()) for entry in services.ask(question).statements
        ]
        # What the deterministic reader says too needs no second voice.
        judged = [(entry, judge(request.notes, entry, request).verdict) for entry in statements]
        judged = [(entry, verdict) for entry, verdict in judged if verdict != "counts"]
        statements = [entry for entry, _ in judged]
        answers = {
            place: _second_answers(entry, services)
            for place, (entry, verdict) in enumerate(judged)
            if verdict == "ask again"
        }
    read = services.compute(
        apply_judged, notes=request.notes, statements=statements, scenario=request, answers=answers
    )
    if read.accepted:
        read = without_impossible(
            read, request, lambda held: services.run(tools.why_infeasible, scenario=held)
        )
    notes = Notes(
        accepted=read.accepted,
        refused=[entry for entry in read.refused if _is_about(entry, request.notes)],
        says=None if services.has_model else RULES_ONLY,
        questions=read.questions,
        facts=read.facts,
    )
    asked = [
        PersonQuestion(field=entry.field, text=entry.text, quotes=entry.quotes, by=Rules.name)
        for entry in read.questions
    ]
    return State(scenario=read.scenario, notes=notes, facts=read.facts, questions=asked)


def _is_about(statement: Statement, notes: str) -> bool:
    """Whether a refused statement is worth showing: words of the notes, a known field, a plain value."""
    values = statement.value if isinstance(statement.value, list) else [statement.value]
    is_plain = all(not isinstance(value, str | dict | list) or value in CHOICE_VALUES for value in values)
    return (
        statement.field in KINDS and is_plain and bool(statement.quote.strip()) and statement.quote in notes
    )


def _second_answers(statement: Statement, services: NodeServices) -> tuple[SecondAnswer, SecondAnswer]:
    """Each in a conversation of its own, with the quote and nothing around it."""
    asked = second_question(statement)

    def answer(claim: str) -> SecondAnswer:
        payload = {"quote": statement.quote, "statement": claim}
        return services.ask(Question("confirm_reading", payload, Confirmation)).verdict

    return answer(asked.claim), answer(asked.control)
