"""What the user fixes or restricts: allowed values of plan fields, a memory cap, how much may change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, cast

from pydantic import Field, JsonValue

from tools.errors import InputError
from tools.model.calibration import shipped_calibration
from tools.model.predict import memory_fraction_for
from tools.scenario import SEARCHED_FIELDS, Plan
from tools.scenario.columns import CHOICES, MIN_VALUES, ColumnValue
from tools.scenario.fields import Allowed, StrictModel, build, get_object, refuse_unknown, shown
from tools.scenario.spec import PlanValue

CHECKPOINT_FIELDS = ("tp", "pp")
"""Degrees that the layout of a saved checkpoint depends on, unless it is resharded on load."""
DEFAULT_MEMORY_FRACTION = 0.92
"""Share of the device's memory a proposal may fill: published peaks are met within about 4%."""
_FORMS = 'allowed: a value of that field, a list of values, or {"not": [...], "min": n, "max": n}'

_AVOIDED = 'allowed: a list of plan fields that are left out together, such as [{"tp": 8, "pp": 4}]'

Space = Literal["practice", "all"]
PlanPart = Mapping[str, PlanValue]
"""Values of some fields of a plan."""


@dataclass(frozen=True)
class Limit:
    """The form `{"not": [...], "min": n, "max": n}` of a constraint; each part may be absent."""

    excluded: tuple[PlanValue, ...] = ()
    minimum: int | None = None
    maximum: int | None = None

    def permits(self, value: ColumnValue) -> bool:
        if value in self.excluded:
            return False
        low = self.minimum is None or cast(int, value) >= self.minimum
        return low and (self.maximum is None or cast(int, value) <= self.maximum)

    def __str__(self) -> str:
        parts = [f"not {' or '.join(map(str, self.excluded))}"] if self.excluded else []
        parts += [] if self.minimum is None else [f"at least {self.minimum}"]
        parts += [] if self.maximum is None else [f"at most {self.maximum}"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Constraints:
    """`allowed` maps a plan field to the values it may take, `limits` to what it may not; a field that is in
    neither may take any value, one that is in both must satisfy both.

    `space` is what is searched: `practice` (plans that people run, by what kb_seed knows of the framework;
    all legal ones if none of those fits) or `all`.
    """

    allowed: Mapping[str, tuple[PlanValue, ...]] = field(default_factory=dict)
    max_memory_fraction: float = DEFAULT_MEMORY_FRACTION
    max_changes: int | None = None
    """At most this many fields may differ from today's plan; dp and schedule follow from the others."""
    excluded: tuple[PlanPart, ...] = ()
    """A plan that has all values of one of these is left out: it was measured, or would fail like another."""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    space: Space = "practice"

    @property
    def fields(self) -> tuple[str, ...]:
        """The plan fields that are restricted."""
        return tuple(dict.fromkeys((*self.allowed, *self.limits)))

    def permits(self, name: str, value: ColumnValue) -> bool:
        """Whether the plan field may have the value."""
        limit = self.limits.get(name)
        return (name not in self.allowed or value in self.allowed[name]) and (
            limit is None or limit.permits(value)
        )

    def describe(self, name: str) -> str:
        """The restriction of a plan field in words: "4 or 8", "not 8, at most 16"."""
        parts = [" or ".join(map(str, self.allowed[name]))] if name in self.allowed else []
        return ", ".join([*parts, *([str(self.limits[name])] if name in self.limits else [])])


class _Settings(StrictModel):
    """The constraints that are not values of plan fields."""

    max_memory_fraction: Annotated[float, Field(gt=0, le=1), Allowed("above 0 and at most 1")] = (
        DEFAULT_MEMORY_FRACTION
    )
    min_fit_probability: Annotated[float | None, Field(gt=0, lt=1), Allowed("above 0 and below 1")] = None
    keep_checkpoint_layout: bool = False
    max_changes: Annotated[int | None, Field(ge=0), Allowed("0 or more, if the scenario has a plan")] = None
    space: Space | None = None
    avoid: JsonValue = None


def parse_constraints(fields: JsonValue, today: Plan | None) -> Constraints:
    """From the scenario's `constraints`: `{"tp": [4, 8], "pp": {"max": 4}, "max_memory_fraction": 0.9}`."""
    given = get_object(fields, "constraints")
    refuse_unknown(given, (*SEARCHED_FIELDS, *_Settings.model_fields), "constraints.")
    rest = {name: value for name, value in given.items() if name not in SEARCHED_FIELDS}
    settings = build(_Settings, rest, "constraints")
    stated = {name: given[name] for name in SEARCHED_FIELDS if given.get(name) is not None}
    limits = {name: _limit(name, value) for name, value in stated.items() if isinstance(value, dict)}
    allowed = {
        name: _values(name, value, f"constraints.{name}")
        for name, value in stated.items()
        if name not in limits
    }
    if settings.keep_checkpoint_layout:
        if today is None:
            raise InputError("constraints.keep_checkpoint_layout", True, "needs a plan in the scenario")
        others = Constraints(allowed, limits=limits)
        for name in CHECKPOINT_FIELDS:
            value = getattr(today, name)
            if not others.permits(name, value):
                rule = f"keep_checkpoint_layout keeps today's {value}; leave one of the two out"
                raise InputError(f"constraints.{name}", others.describe(name), rule)
            allowed[name] = (value,)
    if settings.max_changes is not None and today is None:
        rule = "allowed: 0 or more, if the scenario has a plan"
        raise InputError("constraints.max_changes", settings.max_changes, rule)
    fraction = settings.max_memory_fraction
    if settings.min_fit_probability is not None:
        surely = memory_fraction_for(settings.min_fit_probability, shipped_calibration().memory_error)
        fraction = min(fraction, surely) if "max_memory_fraction" in given else surely
    excluded = _avoided(settings.avoid)
    return Constraints(
        allowed, fraction, settings.max_changes, excluded, limits, settings.space or "practice"
    )


def _values(name: str, stated: JsonValue, place: str) -> tuple[PlanValue, ...]:
    values = tuple(stated) if isinstance(stated, list) else (stated,)
    if not values or any(value is None for value in values):
        raise InputError(place, shown(stated), _FORMS)
    return tuple(_value(name, value, place) for value in values)


def _value(name: str, stated: JsonValue, place: str) -> PlanValue:
    try:
        value: PlanValue = getattr(build(Plan, {**MIN_VALUES, name: stated}, "constraints."), name)
        return value
    except InputError as error:
        raise error.at(place) from None


def _limit(name: str, fields: JsonValue) -> Limit:
    place = f"constraints.{name}"
    given = get_object(fields, place)
    refuse_unknown(given, ("not", "min", "max"), f"{place}.")
    stated = {key: value for key, value in given.items() if value is not None}
    if not stated:
        raise InputError(place, shown(fields), _FORMS)
    bounds: dict[str, int] = {}
    for key in stated.keys() & {"min", "max"}:
        if name in CHOICES:
            rule = f'{name} has no order; use "not" or a list'
            raise InputError(f"{place}.{key}", shown(stated[key]), rule)
        bounds[key] = cast(int, _value(name, stated[key], f"{place}.{key}"))
    excluded = _values(name, stated["not"], f"{place}.not") if "not" in stated else ()
    limit = Limit(excluded, bounds.get("min"), bounds.get("max"))
    if limit.minimum is not None and limit.maximum is not None and limit.minimum > limit.maximum:
        raise InputError(f"{place}.min", limit.minimum, f"must not exceed max ({limit.maximum})")
    if name in CHOICES and not any(map(limit.permits, CHOICES[name])):
        raise InputError(f"{place}.not", shown(list(limit.excluded)), f"leaves no value of {name}")
    return limit


def _avoided(stated: JsonValue) -> tuple[PlanPart, ...]:
    """`avoid`: combinations of plan fields, each left out as a whole: `[{"tp": 8, "pp": 4}]`."""
    if stated is not None and not isinstance(stated, list):
        raise InputError("constraints.avoid", shown(stated), _AVOIDED)
    out = []
    for plan in stated or ():
        if not isinstance(plan, dict) or not plan:
            raise InputError("constraints.avoid", shown(plan), _AVOIDED)
        refuse_unknown(plan, SEARCHED_FIELDS, "constraints.avoid.")
        out.append({name: _value(name, value, f"constraints.avoid.{name}") for name, value in plan.items()})
    return tuple(out)
