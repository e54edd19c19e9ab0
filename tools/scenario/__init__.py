"""The scenario vocabulary: what is trained, where, how, and by which plan.

Covers reading and checking a scenario and the rules of each training framework. Does not predict anything.
"""

from tools.names import did_you_mean, nearest
from tools.scenario.columns import NOT_STATED, RECOMPUTES, SCHEDULES, PlanColumns, PlanFacts
from tools.scenario.frameworks import FrameworkData, framework_names, get_framework
from tools.scenario.model import ModelSpec
from tools.scenario.parse import StatedScenario, parse_scenario
from tools.scenario.rules import Rule, check_framework, check_plan, legal_mask, practice_for, rules_for
from tools.scenario.spec import SEARCHED_FIELDS, ClusterSpec, Plan, Scenario, TopologySpec, TrainingSpec
from tools.scenario.stated import StatedPlan, resolve_defaults

__all__ = [
    "NOT_STATED",
    "RECOMPUTES",
    "SCHEDULES",
    "SEARCHED_FIELDS",
    "ClusterSpec",
    "FrameworkData",
    "ModelSpec",
    "Plan",
    "PlanColumns",
    "PlanFacts",
    "Rule",
    "Scenario",
    "StatedPlan",
    "StatedScenario",
    "TopologySpec",
    "TrainingSpec",
    "check_framework",
    "check_plan",
    "did_you_mean",
    "framework_names",
    "get_framework",
    "legal_mask",
    "nearest",
    "parse_scenario",
    "practice_for",
    "resolve_defaults",
    "rules_for",
]
