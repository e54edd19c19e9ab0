"""What the user fixes or restricts: allowed values of plan fields, a memory cap, how much may change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeGuard, cast, get_args

from pydantic import JsonValue

from tools.cost.calibration import shipped_calibration
from tools.cost.predict import memory_fraction_for
from tools.errors import InputError
from tools.scenario import SEARCHED_FIELDS, Plan
from tools.scenario.columns import CHOICES, MIN_VALUES
from tools.scenario.fields import build, refuse_unknown, shown
from tools.scenario.spec import PlanValue

CHECKPOINT_FIELDS = ("tp", "pp")
"""Degrees that the layout of a saved checkpoint depends on, unless it is resharded on load."""
DEFAULT_MEMORY_FRACTION = 0.92
"""Share of the device's memory a proposal may fill: published peaks are met within about 4%."""
_OTHER_KEYS = (
    "max_memory_fraction",
    "min_fit_probability",
    "keep_checkpoint_layout",
    "max_changes",
    "space",
    "avoid",
)
_FORMS = 'allowed: a value of that field, a list of values, or {"not": [...], "min": n, "max": n}'

Space = Literal["practice", "all"]


@dataclass(frozen=True)
class Limit:
    """The form `{"not": [...], "min": n, "max": n}` of a constraint; each part may be absent."""

    excluded: tuple[PlanValue, ...] = ()
    minimum: int | None = None
    maximum: int | None = None

    def permits(self, value: PlanValue) -> bool:
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
    excluded: tuple[Mapping[str, PlanValue], ...] = ()
    """A plan that has all values of one of these is left out: it was measured, or would fail like another."""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    space: Space = "practice"

    @property
    def fields(self) -> tuple[str, ...]:
        """The plan fields that are restricted."""
        return tuple(dict.fromkeys((*self.allowed, *self.limits)))

    def permits(self, name: str, value: PlanValue) -> bool:
        """Whether the plan field may have the value."""
        limit = self.limits.get(name)
        return (name not in self.allowed or value in self.allowed[name]) and (
            limit is None or limit.permits(value)
        )

    def describe(self, name: str) -> str:
        """The restriction of a plan field in words: "4 or 8", "not 8, at most 16"."""
        parts = [" or ".join(map(str, self.allowed[name]))] if name in self.allowed else []
        return ", ".join([*parts, *([str(self.limits[name])] if name in self.limits else [])])


def parse_constraints(fields: Mapping[str, JsonValue], today: Plan | None) -> Constraints:
    """From the scenario's `constraints`: `{"tp": [4, 8], "pp": {"max": 4}, "max_memory_fraction": 0.9}`."""
    refuse_unknown(fields, (*SEARCHED_FIELDS, *_OTHER_KEYS), "constraints.")
    stated = {name: fields[name] for name in SEARCHED_FIELDS if fields.get(name) is not None}
    limits = {name: _limit(name, value) for name, value in stated.items() if isinstance(value, dict)}
    allowed = {
        name: _values(name, value, f"constraints.{name}")
        for name, value in stated.items()
        if name not in limits
    }
    if _flag(fields, "keep_checkpoint_layout"):
        allowed |= _keep_layout(today, Constraints(allowed, limits=limits))
    return Constraints(
        allowed,
        _fraction(fields),
        _max_changes(fields, today),
        _avoided(fields),
        limits,
        _space(fields),
    )


def _max_changes(fields: Mapping[str, JsonValue], today: Plan | None) -> int | None:
    value = fields.get("max_changes")
    if value is None or (today is not None and _is_count(value)):
        return value
    raise InputError("constraints.max_changes", value, "allowed: 0 or more, if the scenario has a plan")


def _values(name: str, stated: object, place: str) -> tuple[PlanValue, ...]:
    values = tuple(stated) if isinstance(stated, list | tuple) else (stated,)
    if not values or any(value is None for value in values):
        raise InputError(place, shown(stated), _FORMS)
    return tuple(_value(name, value, place) for value in values)


def _value(name: str, stated: object, place: str) -> PlanValue:
    try:
        value: PlanValue = getattr(build(Plan, {**MIN_VALUES, name: stated}, "constraints."), name)
        return value
    except InputError as error:
        raise InputError(place, error.given, error.allowed) from None


def _limit(name: str, fields: Mapping[str, JsonValue]) -> Limit:
    place = f"constraints.{name}"
    refuse_unknown(fields, ("not", "min", "max"), f"{place}.")
    stated = {key: value for key, value in fields.items() if value is not None}
    if not stated:
        raise InputError(place, shown(fields), _FORMS)
    for key in ("min", "max"):
        if key in stated and name in CHOICES:
            raise InputError(
                f"{place}.{key}", shown(stated[key]), f'{name} has no order; use "not" or a list'
            )
    bounds = {
        key: cast(int, _value(name, stated[key], f"{place}.{key}")) for key in ("min", "max") if key in stated
    }
    limit = Limit(
        _values(name, stated["not"], f"{place}.not") if "not" in stated else (),
        bounds.get("min"),
        bounds.get("max"),
    )
    if limit.minimum is not None and limit.maximum is not None and limit.minimum > limit.maximum:
        raise InputError(f"{place}.min", limit.minimum, f"must not exceed max ({limit.maximum})")
    if name in CHOICES and not any(map(limit.permits, CHOICES[name])):
        raise InputError(f"{place}.not", shown(list(limit.excluded)), f"leaves no value of {name}")
    return limit


def _avoided(fields: Mapping[str, JsonValue]) -> tuple[Mapping[str, PlanValue], ...]:
    """`avoid`: combinations of plan fields, each left out as a whole: `[{"tp": 8, "pp": 4}]`."""
    plans = fields.get("avoid")
    if plans is None:
        return ()
    allowed = 'allowed: a list of plan fields that are left out together, such as [{"tp": 8, "pp": 4}]'
    if not isinstance(plans, list):
        raise InputError("constraints.avoid", shown(plans), allowed)
    out = []
    for plan in plans:
        if not isinstance(plan, dict) or not plan:
            raise InputError("constraints.avoid", shown(plan), allowed)
        refuse_unknown(plan, SEARCHED_FIELDS, "constraints.avoid.")
        out.append({name: _value(name, value, f"constraints.avoid.{name}") for name, value in plan.items()})
    return tuple(out)


def _space(fields: Mapping[str, JsonValue]) -> Space:
    value = fields.get("space")
    if value is None:
        return "practice"
    if not isinstance(value, str) or value not in get_args(Space):
        raise InputError("constraints.space", shown(value), f"allowed: {', '.join(get_args(Space))}")
    return cast(Space, value)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _flag(fields: Mapping[str, JsonValue], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise InputError(f"constraints.{name}", value, "allowed: true or false")
    return value


def _keep_layout(today: Plan | None, stated: Constraints) -> dict[str, tuple[PlanValue, ...]]:
    if today is None:
        raise InputError("constraints.keep_checkpoint_layout", True, "needs a plan in the scenario")
    kept = {name: getattr(today, name) for name in CHECKPOINT_FIELDS}
    for name, value in kept.items():
        if not stated.permits(name, value):
            allowed = f"keep_checkpoint_layout keeps today's {value}; leave one of the two out"
            raise InputError(f"constraints.{name}", stated.describe(name), allowed)
    return {name: (value,) for name, value in kept.items()}


def _fraction(fields: Mapping[str, JsonValue]) -> float:
    value = fields.get("max_memory_fraction", DEFAULT_MEMORY_FRACTION)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value <= 1.0:
        raise InputError("constraints.max_memory_fraction", value, "allowed: above 0 and at most 1")
    likely = fields.get("min_fit_probability")
    if likely is None:
        return float(value)
    if isinstance(likely, bool) or not isinstance(likely, int | float) or not 0.0 < likely < 1.0:
        raise InputError("constraints.min_fit_probability", likely, "allowed: above 0 and below 1")
    least_sure = memory_fraction_for(float(likely), shipped_calibration().memory_error)
    return least_sure if "max_memory_fraction" not in fields else min(float(value), least_sure)
