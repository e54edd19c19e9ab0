"""The scenario vocabulary: what is trained, where, how, and by which plan.

Covers reading and checking a scenario and the rules of each training framework. Does not predict anything.
"""

from tools.names import did_you_mean, nearest
from tools.scenario.columns import NOT_STATED, RECOMPUTES, SCHEDULES, Facts, PlanColumns, columns_of
from tools.scenario.frameworks import FrameworkData, StatedPlan, get_framework, resolve_defaults
from tools.scenario.model import ModelSpec
from tools.scenario.parse import parse_scenario
from tools.scenario.rules import Rule, check_plan, legal_mask, practice_for, rules_for
from tools.scenario.spec import SEARCHED_FIELDS, ClusterSpec, Plan, Scenario, TopologySpec, TrainingSpec

__all__ = [
    "NOT_STATED",
    "RECOMPUTES",
    "SCHEDULES",
    "SEARCHED_FIELDS",
    "ClusterSpec",
    "Facts",
    "FrameworkData",
    "ModelSpec",
    "Plan",
    "PlanColumns",
    "Rule",
    "Scenario",
    "StatedPlan",
    "TopologySpec",
    "TrainingSpec",
    "check_plan",
    "columns_of",
    "did_you_mean",
    "get_framework",
    "legal_mask",
    "nearest",
    "parse_scenario",
    "practice_for",
    "resolve_defaults",
    "rules_for",
]
