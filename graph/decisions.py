"""What a person may decide about a session's proposals, and how a decision must look."""

from collections.abc import Mapping
from typing import Any

from graph.state import Data
from tools.errors import InputError
from tools.scenario import Plan, did_you_mean

ACTIONS = ("approve", "reject", "edit", "submit")
PLAN_ACTIONS = ("edit", "submit")
"""These bring a plan, which is scored beside the others."""
KEYS = ("id", "action", "proposal", "plan", "by", "comment")
MOST_COMMENT = 4000
MOST_PROPOSALS = 3


def parse_decision(given: Mapping[str, Any]) -> Data:
    """approve or reject a proposal by its rank, edit fields of one, or submit a plan of one's own."""
    for key in given:
        if key not in KEYS:
            raise InputError(key, given[key], did_you_mean(key, KEYS))
    action = given.get("action")
    if action not in ACTIONS:
        raise InputError("action", action, f"allowed: {', '.join(ACTIONS)}")
    return {
        "id": _text(given, "id", 100),
        "action": action,
        "proposal": _rank(given),
        "plan": _plan(given, action),
        "by": _text(given, "by", 200),
        "comment": _text(given, "comment", MOST_COMMENT),
    }


def _rank(given: Mapping[str, Any]) -> int:
    rank = given.get("proposal", 1)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= MOST_PROPOSALS:
        raise InputError("proposal", rank, f"allowed: the rank of a proposal, 1 to {MOST_PROPOSALS}")
    return rank


def _plan(given: Mapping[str, Any], action: str) -> Data | None:
    plan = given.get("plan")
    if action not in PLAN_ACTIONS:
        if plan is not None:
            raise InputError("plan", plan, f"allowed with {' or '.join(PLAN_ACTIONS)} only")
        return None
    if not isinstance(plan, dict) or not plan:
        raise InputError("plan", plan, "allowed: an object with the plan's fields")
    for name in plan:
        if name not in Plan.model_fields:
            raise InputError(f"plan.{name}", plan[name], did_you_mean(name, tuple(Plan.model_fields)))
    return dict(plan)


def _text(given: Mapping[str, Any], name: str, most: int) -> str | None:
    text = given.get(name)
    if text is not None and (not isinstance(text, str) or len(text) > most):
        raise InputError(name, text, f"allowed: a text of at most {most} characters")
    return text
