"""A plan and constraints as a caller writes them: their fields are those of `Plan`, and may be left open.

`recompute` stays None if not stated: the cost model uses none if that fits, else selective, else full.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model

from tools.scenario.fields import Integer, StrictModel
from tools.scenario.frameworks import get_framework
from tools.scenario.spec import DEGREES, PLAN_ROLES, SEARCHED_FIELDS, Plan

SearchSpace = Literal["practice", "all"]
"""What is searched: plans that people run (all legal ones if none of those fits), or all."""


def _typed(name: str) -> Any:  # noqa: ANN401 - a type, made at run time
    """The type of a plan field, with its bounds."""
    field = Plan.model_fields[name]
    return Annotated[(field.annotation, *field.metadata)]


class FieldLimit(StrictModel):
    """What a plan field may not be, and its least and greatest value."""

    excluded: int | str | bool | list[int | str | bool] | None = Field(None, alias="not")
    min: Integer | None = None
    max: Integer | None = None


class OtherConstraints(StrictModel):
    """What a search is restricted by beside the values of plan fields."""

    max_memory_fraction: float | None = Field(None, gt=0, le=1)
    min_fit_probability: float | None = Field(None, gt=0, lt=1)
    keep_checkpoint_layout: bool | None = None
    """Keeps tp and pp as in today's plan."""
    max_changes: Annotated[int, Field(ge=0)] | None = None
    """How many fields may differ from today's plan."""
    space: SearchSpace | None = None
    avoid: "list[PlanPart] | None" = None
    """Combinations of plan fields, each left out as a whole."""


if TYPE_CHECKING:
    # Made from `Plan` below; type checkers see the fields that are read by name.
    class StatedPlan(StrictModel):
        tp: int
        pp: int
        cp: int
        dp: int
        dp_shard: int | None
        micro_batch_size: int

    class PlanPart(StrictModel): ...

    class StatedConstraints(OtherConstraints): ...

else:
    StatedPlan = create_model(
        "StatedPlan",
        __base__=StrictModel,
        __module__=__name__,
        __doc__="A plan as written: null or absent if the source did not say.",
        **{
            name: (_typed(name) | None, None) if role.may_be_open else (_typed(name), ...)
            for name, role in PLAN_ROLES.items()
        },
        zero_stage_known=(bool | None, None),
    )
    PlanPart = create_model(
        "PlanPart",
        __base__=StrictModel,
        __module__=__name__,
        __doc__="Some fields of a plan.",
        **{name: (_typed(name) | None, None) for name in PLAN_ROLES},
    )
    StatedConstraints = create_model(
        "StatedConstraints",
        __base__=OtherConstraints,
        __module__=__name__,
        __doc__="Per plan field a value, a list of allowed values, or what it may not be; and more.",
        **{
            name: (kind | Annotated[list[kind], Field(min_length=1)] | FieldLimit | None, None)
            for name, kind in ((name, _typed(name)) for name in SEARCHED_FIELDS)
        },
    )


def resolve_defaults(stated: StatedPlan, framework: str, num_hidden_layers: int) -> Plan:
    """The plan that would really run: open fields get what the framework does by default."""
    data, plan = get_framework(framework), stated.model_dump(exclude={"zero_stage_known"})
    pp, is_split = plan["pp"], plan["sequence_parallel"]
    deepest = max(num_hidden_layers // pp, 1) if pp > 1 else 1
    vpp = plan["vpp"] or data.vpp or deepest
    usual = data.schedule_interleaved if vpp > 1 else data.schedule
    plan |= {
        **{name: plan[name] or 1 for name in DEGREES},
        "vpp": vpp,
        "etp": plan["etp"] or data.etp,
        "dp_shard": plan["dp_shard"] or 1,
        # One stage has no schedule, and one tensor rank nothing to split a sequence over.
        "schedule": plan["schedule"] if plan["schedule"] and pp > 1 else usual,
        "sequence_parallel": (data.sequence_parallel if is_split is None else is_split) and plan["tp"] > 1,
    }
    resolved = Plan.model_validate(plan)
    return resolved if stated.dp_shard else resolved.sharded_over_all()
