"""A plan may be legal for the framework it was made for and not for the one it is exported to."""

from tools.scenario import Facts, Plan, Scenario, check_plan, columns_of, get_framework


def check_for_framework(scenario: Scenario, plan: Plan, framework: str) -> None:
    """Raises InputError for the first rule of the target framework that the plan breaks."""
    usual = get_framework(framework).schedule
    # One stage has no schedule: what the plan says about it cannot be wrong.
    looked_at = plan if plan.pp > 1 else plan.model_copy(update={"schedule": usual})
    training = scenario.training.model_copy(update={"framework": framework})
    check_plan(Facts(scenario.model, scenario.cluster, training, columns_of([looked_at])))
