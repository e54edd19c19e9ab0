"""The scenario vocabulary: what is trained, where, how, and by which plan.

Covers reading and checking a scenario and the rules of each training framework. Does not predict anything.
"""

from tools.scenario.names import did_you_mean, nearest
from tools.scenario.parse import parse_scenario
from tools.scenario.spec import ClusterSpec, ModelSpec, Plan, Scenario, TopologySpec, TrainingSpec

__all__ = [
    "ClusterSpec",
    "ModelSpec",
    "Plan",
    "Scenario",
    "TopologySpec",
    "TrainingSpec",
    "did_you_mean",
    "nearest",
    "parse_scenario",
]
