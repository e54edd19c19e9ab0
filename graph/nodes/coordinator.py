"""Coordinator: which step comes next, and why. The rules are data of kb_seed."""

import tomllib
from functools import cache
from typing import Any, Literal

from langgraph.types import Command

import kb_seed
from graph.reasoner.answers import Choice, Question, Reading
from graph.reasoner.rules import Rules
from graph.request import PLAN_ACTIONS
from graph.services import NodeServices
from graph.state import Data, State
from graph.tuning import baseline_of, is_current, time_left_s, why_ended
from tools.errors import DataError
from tools.kb.conditions import applies, parse_conditions


@cache
def rules() -> list[dict[str, Any]]:
    return list(tomllib.loads(kb_seed.folder("workflow").joinpath("steps.toml").read_text("utf-8"))["rule"])


def first_rule(facts: Data) -> Data:
    """The step and its reason."""
    for rule in rules():
        if applies(parse_conditions(rule["when"]), facts):
            return {"step": rule["step"], "reason": rule["reason"]}
    raise DataError("kb_seed/workflow/steps.toml: no rule holds; the last one must have no condition")


Step = Literal["analyzer", "proposal", "verify", "approve", "trial", "learn", "report"]


def coordinator(state: State, services: NodeServices) -> Command[Step]:
    update: Data = {} if "reading" in state else {"reading": _read_notes(state, services)}
    facts = _facts(state, services)
    rule = first_rule(facts)
    options = [rule, *_further(state, services, facts)]
    choice = _choose(options, facts, services) if len(options) > 1 else Choice.model_validate(rule)
    update["route"] = [{"step": choice.step, "reason": choice.reason}]
    services.log.emit("routed", step=choice.step, reason=choice.reason)
    return Command(goto=choice.step, update=services.done(**update))  # type: ignore[arg-type]


def _read_notes(state: State, services: NodeServices) -> Data:
    """The request with what its notes say, in the words that say so."""
    request = state["request"]
    notes = request.get("notes")
    if not notes:
        return {"accepted": [], "refused": [], "scenario": request, "says": None}
    scenario = {name: part for name, part in request.items() if name != "notes"}
    question = Question("read_notes", {"notes": notes, "scenario": scenario}, Reading)
    statements = [one.model_dump() for one in services.ask(question).statements]
    reading: Data = services.call("read_statements", notes=notes, statements=statements, scenario=request)
    unread = isinstance(services.context.reasoner, Rules)
    says = (
        "without a language model notes are kept, not read: state limits as constraints" if unread else None
    )
    return {**reading, "says": says}


def _facts(state: State, services: NodeServices) -> Data:
    """What the workflow's rules ask about."""
    decisions, handled = state.get("decisions", []), state.get("handled", 0)
    limits, now, trials = services.context.limits, services.context.clock(), state.get("trials", [])
    return {
        "time_left_s": time_left_s(state, limits, now),
        "has_plan": state["session"]["plan"] is not None,
        "analysed": is_current(state, "analysis"),
        "searched": is_current(state, "found"),
        "informed": "knowledge" in state,
        "plan_waiting": any(one["action"] in PLAN_ACTIONS for one in decisions[handled:]),
        "verified": bool(state.get("verification")) and is_current(state, "found"),
        "learnt": state.get("learnt", {}).get("seen") == [len(decisions), len(trials)],
        "trial_learnt": state.get("learnt", {}).get("seen", [0, 0])[1] == len(trials),
        **_permissions(state, why_ended(state, limits, now) is not None),
    }


def _permissions(state: State, ended: bool) -> Data:
    """What is due next, of what somebody must allow."""
    decisions, trials = state.get("decisions", []), state.get("trials", [])
    tunes, approval = state["session"]["mode"] == "tune", state["session"]["approval"]
    last = decisions[-1]["action"] if decisions else None
    if not tunes:
        due = approval == "person" and last not in ("approve", "reject")
        return {"baseline_due": False, "trial_due": False, "approval_due": due, "trials_unsettled": False}
    approved = any(one["action"] == "approve" for one in decisions[state.get("handled", 0) :])
    return {
        "baseline_due": approval != "person" and baseline_of(trials) is None and not ended,
        "trial_due": approved or (approval == "none" and not ended),
        "approval_due": approval != "none" and not approved and not ended,
        "trials_unsettled": ended
        and not approved
        and bool(trials)
        and not state.get("found", {}).get("closed"),
    }


def _further(state: State, services: NodeServices, facts: Data) -> list[Data]:
    """Where a second look is worth a thought: once the numbers are verified and nobody has decided."""
    rounds = sum(one["step"] == "proposal" for one in state.get("route", []))
    settled = facts["verified"] and not state.get("decisions") and not state.get("learnt")
    if (
        not settled
        or rounds >= services.context.limits.rounds
        or isinstance(services.context.reasoner, Rules)
    ):
        return []
    return [{"step": "proposal", "reason": "another plan is worth scoring before this is reported"}]


def _choose(options: list[Data], facts: Data, services: NodeServices) -> Choice:
    choice = services.ask(Question("choose_step", {"options": options, "facts": facts}, Choice))
    if choice.step in [one["step"] for one in options]:
        return choice
    services.report_incident(
        "impossible step", f"{choice.step!r} is not offered now; the workflow's rule decided"
    )
    return Choice.model_validate(options[0])
