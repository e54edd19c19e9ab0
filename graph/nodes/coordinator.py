"""Coordinator: which step comes next, and why. The rules are data of kb_seed."""

import tomllib
from functools import cache
from typing import Any, Literal

from langgraph.types import Command

import kb_seed
from graph import tools
from graph.answers import Choice, Question, Reading
from graph.report import RouteStep
from graph.request import PLAN_ACTIONS
from graph.rules import Rules
from graph.services import NodeServices
from graph.state import State, plain
from graph.tuning import baseline_of, has_current_analysis, has_current_search, time_left_s, why_ended
from tools.errors import DataError
from tools.kb.conditions import applies, parse_conditions
from tools.recommend.report import Notes, Statement
from tools.recommend.situation import Facts


@cache
def rules() -> list[dict[str, Any]]:
    return list(tomllib.loads(kb_seed.folder("workflow").joinpath("steps.toml").read_text("utf-8"))["rule"])


def first_rule(facts: Facts) -> RouteStep:
    """The step and its reason."""
    for rule in rules():
        if applies(parse_conditions(rule["when"]), facts):
            return RouteStep(step=rule["step"], reason=rule["reason"])
    raise DataError("kb_seed/workflow/steps.toml: no rule holds; the last one must have no condition")


Step = Literal["analyzer", "proposal", "verify", "approve", "trial", "learn", "report"]


def coordinator(state: State, services: NodeServices) -> Command[Step]:
    update: State = {} if "scenario" in state else _read_notes(state, services)
    facts = _facts(state, services)
    rule = first_rule(facts)
    options = [rule, *_further(state, services, facts)]
    choice = _choose(options, facts, services) if len(options) > 1 else rule
    services.log.emit("routed", step=choice.step, reason=choice.reason)
    return Command(goto=choice.step, update=services.done(**update, route=[choice]))  # type: ignore[arg-type]


def _read_notes(state: State, services: NodeServices) -> State:
    """The request with what its notes say, in the words that say so."""
    request = state["request"]
    if not request.notes:
        return State(scenario=request, notes=Notes(accepted=[], refused=[], says=None))
    described = plain(request.model_copy(update={"notes": None}))
    question = Question("read_notes", {"notes": request.notes, "scenario": described}, Reading)
    statements = [Statement.model_validate(one.model_dump()) for one in services.ask(question).statements]
    read = services.run(tools.read_statements, notes=request.notes, statements=statements, scenario=request)
    rules_only = isinstance(services.context.reasoner, Rules)
    says = "read by the expert rules: what they do not understand changes nothing" if rules_only else None
    notes = Notes(
        accepted=read.accepted,
        refused=read.refused,
        says=says,
        questions=read.questions,
        facts=read.facts,
    )
    return State(scenario=read.scenario, notes=notes)


def _facts(state: State, services: NodeServices) -> Facts:
    """What the workflow's rules ask about."""
    decisions, handled = state.get("decisions", []), state.get("handled", 0)
    limits, now, trials = services.context.limits, services.context.clock(), state.get("trials", [])
    learnt = state.get("learnt")
    return {
        "time_left_s": time_left_s(state, limits, now),
        "has_plan": state["session"].plan is not None,
        "analysed": has_current_analysis(state),
        "searched": has_current_search(state),
        "informed": "knowledge" in state,
        "plan_waiting": any(one.action in PLAN_ACTIONS for one in decisions[handled:]),
        "verified": state.get("verification") is not None and has_current_search(state),
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
    approved = any(one.action == "approve" for one in decisions[state.get("handled", 0) :])
    closed = "search" in state and state["search"].closed
    return {
        "baseline_due": approval != "person" and baseline_of(trials) is None and not ended,
        "trial_due": approved or (approval == "none" and not ended),
        "approval_due": approval != "none" and not approved and not ended,
        "trials_unsettled": ended and not approved and bool(trials) and not closed,
    }


def _further(state: State, services: NodeServices, facts: Facts) -> list[RouteStep]:
    """A second look is worth a thought once the numbers are verified and nobody has decided."""
    rounds = sum(one.step == "proposal" for one in state.get("route", []))
    settled = facts["verified"] and not state.get("decisions") and not state.get("learnt")
    context = services.context
    if not settled or rounds >= context.limits.rounds or isinstance(context.reasoner, Rules):
        return []
    return [RouteStep(step="proposal", reason="another plan is worth scoring before this is reported")]


def _choose(options: list[RouteStep], facts: Facts, services: NodeServices) -> RouteStep:
    choice = services.ask(Question("choose_step", plain({"options": options, "facts": facts}), Choice))
    if choice.step in [one.step for one in options]:
        return RouteStep(step=choice.step, reason=choice.reason)
    services.report_incident(
        "impossible step", f"{choice.step!r} is not offered now; the workflow's rule decided"
    )
    return options[0]
