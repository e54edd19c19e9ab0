"""What a caller may ask for, and what a person may decide about proposals."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graph.context import BUDGETS
from graph.report import Decision
from graph.state import Approval, Mode, Policy, SessionInfo, State
from tools.errors import InputError
from tools.recommend.optimize import workload_of
from tools.recommend.report import PlanFields
from tools.scenario import Plan, Scenario, did_you_mean, parse_scenario
from tools.scenario.fields import refuse_unknown, shown
from tools.scenario.parse import refuse_bare_model

MODES = ("advise", "tune")
APPROVALS = ("none", "person", "policy")
CHOICES = {"mode": MODES, "approval": APPROVALS}
OPTIONS = (*CHOICES, "template", "budget", "policy")
MAX_NAME = 253
COUNTED = ("tokens", "trials")


@dataclass(frozen=True)
class Request:
    """Checked once, when it arrives."""

    scenario: Scenario
    """With the defaults of today's plan filled in."""
    mode: Mode = "advise"
    approval: Approval = "none"
    tenant: str | None = None
    template: str | None = None
    """The launch template of its trials; None is the installation's."""
    budget: Mapping[str, float | None] = field(default_factory=dict)
    policy: Policy | None = None
    """Which fields of the plan trials may change, if a policy approves them."""

    def first_state(self, id: str, now: float) -> State:
        session = SessionInfo(
            id=id,
            tenant=self.tenant,
            started_at=now,
            plan=self.scenario.plan,
            mode=self.mode,
            approval=self.approval,
            template=self.template,
            policy=self.policy,
        )
        return State(session=session, request=self.scenario)


def parse_request(given: Mapping[str, Any], tenant: str | None = None) -> Request:
    """Raises InputError for the first thing that is wrong."""
    options = {name: given[name] for name in OPTIONS if given.get(name) is not None}
    for name, allowed in CHOICES.items():
        if name in options and options[name] not in allowed:
            raise InputError(name, options[name], f"allowed: {', '.join(allowed)}")
    _check_trial_options(options)
    refuse_bare_model(given)
    refuse_unknown(given, (*Scenario.model_fields, *OPTIONS), "")
    described = {name: part for name, part in given.items() if name not in OPTIONS and part is not None}
    scenario = parse_scenario(described, need_plan=False)
    workload_of(scenario)  # refuses impossible constraints
    if "policy" in options:
        options["policy"] = Policy.model_validate(options["policy"])
    return Request(scenario, tenant=tenant, **options)


def _check_trial_options(options: Mapping[str, Any]) -> None:
    template = options.get("template")
    if template is not None and not (isinstance(template, str) and 0 < len(template) <= MAX_NAME):
        raise InputError("template", template, "allowed: the name of a registered launch template")
    if "budget" in options:
        _check_budget(options["budget"])
    if "policy" in options:
        _check_policy(options["policy"], options.get("approval"))
    if options.get("approval") == "policy" and options.get("mode") != "tune":
        raise InputError("approval", "policy", 'a policy approves trials: allowed with "mode": "tune"')


def _check_budget(budget: object) -> None:
    if not isinstance(budget, Mapping):
        raise InputError("budget", shown(budget), f"allowed: an object with {', '.join(BUDGETS)}")
    for name, value in budget.items():
        if name not in BUDGETS:
            raise InputError(f"budget.{str(name)[:60]}", value, did_you_mean(str(name), BUDGETS))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # Not by math.isfinite, which raises for an integer that is longer than a float can be.
        if value is not None and not (is_number and 0 <= value < math.inf):
            raise InputError(f"budget.{name}", value, "allowed: a number, 0 or more")
        if name in COUNTED and isinstance(value, float) and not value.is_integer():
            raise InputError(f"budget.{name}", value, "allowed: a whole number, 0 or more")


def _check_policy(policy: object, approval: object) -> None:
    if approval != "policy":
        raise InputError("policy", shown(policy), 'allowed with "approval": "policy" only')
    if not isinstance(policy, Mapping) or set(policy) - {"fields"}:
        raise InputError("policy", shown(policy), 'allowed: {"fields": [names of plan fields]}')
    fields = policy.get("fields", [])
    if not isinstance(fields, list):
        raise InputError("policy.fields", shown(fields), "allowed: a list of plan fields")
    for name in fields:
        if name not in tuple(Plan.model_fields):
            raise InputError("policy.fields", name, did_you_mean(str(name), tuple(Plan.model_fields)))


ACTIONS = ("approve", "reject", "edit", "submit")
PLAN_ACTIONS = ("edit", "submit")
"""These bring a plan, which is scored beside the others."""
KEYS = ("id", "action", "proposal", "plan", "by", "comment")
MAX_COMMENT = 4000
MAX_PROPOSALS = 3


def parse_decision(given: Mapping[str, Any]) -> Decision:
    """approve or reject a proposal by its rank, edit fields of one, or submit a plan of one's own."""
    for key in given:
        if key not in KEYS:
            raise InputError(key, given[key], did_you_mean(key, KEYS))
    action = given.get("action")
    if action not in ACTIONS:
        raise InputError("action", action, f"allowed: {', '.join(ACTIONS)}")
    return Decision(
        id=_text(given, "id", 100),
        action=action,
        proposal=_rank(given),
        plan=_plan(given, action),
        by=_text(given, "by", 200),
        comment=_text(given, "comment", MAX_COMMENT),
    )


def _rank(given: Mapping[str, Any]) -> int:
    rank = given.get("proposal", 1)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= MAX_PROPOSALS:
        raise InputError("proposal", rank, f"allowed: the rank of a proposal, 1 to {MAX_PROPOSALS}")
    return rank


def _plan(given: Mapping[str, Any], action: str) -> PlanFields | None:
    plan = given.get("plan")
    if action not in PLAN_ACTIONS:
        if plan is not None:
            raise InputError("plan", plan, f"allowed with {' or '.join(PLAN_ACTIONS)} only")
        return None
    if not isinstance(plan, dict) or not plan:
        raise InputError("plan", plan, "allowed: an object with the plan's fields")
    for name, value in plan.items():
        if name not in Plan.model_fields:
            raise InputError(f"plan.{name}", value, did_you_mean(name, tuple(Plan.model_fields)))
        if value is not None and not isinstance(value, int | str):
            allowed = "allowed: a whole number, a word, true or false; modules are those of the proposal"
            raise InputError(f"plan.{name}", shown(value), allowed)
    return dict(plan)


def _text(given: Mapping[str, Any], name: str, most: int) -> str | None:
    text = given.get(name)
    if text is not None and (not isinstance(text, str) or len(text) > most):
        raise InputError(name, text, f"allowed: a text of at most {most} characters")
    return text
