"""A plan is proposed as a file to start with: what the framework's own configuration cannot say is left out.

Such plans may run all the same (Megatron-DeepSpeed splits the sequence, by arguments of its own):
they are predicted, and once today's plan is one of them they are proposed too.
"""

from dataclasses import replace

from tools.errors import InputError
from tools.export import export_plan
from tools.scenario import Plan, Scenario, get_framework
from tools.sharding.constraints import Constraints

OWN_FORMATS = {
    "torchtitan": "torchtitan",
    "megatron-core": "megatron",
    "deepspeed": "deepspeed",
    "maxtext": "maxtext",
}
"""Frameworks that read a configuration which decides the whole plan; plain FSDP is a program's own code."""


def narrowed(scenario: Scenario, constraints: Constraints) -> Constraints:
    """The user's constraints and, for fields they leave open, the values that the configuration can say."""
    if not _is_written(scenario):
        return constraints
    values = get_framework(scenario.training.framework).writable
    return replace(constraints, allowed={**values, **constraints.allowed})


def find_unwritable(scenario: Scenario, plan: Plan) -> str | None:
    """Why the framework's own configuration cannot say the plan, where that matters."""
    return _unwritable(scenario, plan) if _is_written(scenario) else None


def _is_written(scenario: Scenario) -> bool:
    return scenario.plan is None or _unwritable(scenario, scenario.plan) is None


def _unwritable(scenario: Scenario, plan: Plan) -> str | None:
    name = OWN_FORMATS.get(scenario.training.framework)
    if name is None:
        return None
    try:
        export_plan(scenario.model_copy(update={"plan": plan}), name)
    except InputError as error:
        # A precision that the configuration lacks is no fault of the plan: all plans share it.
        return str(error) if error.field.startswith("plan.") else None
    return None
