"""What the user fixes or restricts: allowed values of plan fields, a memory cap, how much may change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tools.errors import InputError
from tools.scenario import Plan
from tools.scenario.fields import build, refuse_unknown, shown

FIELDS = tuple(Plan.model_fields)
CHECKPOINT_FIELDS = ("tp", "pp")
"""Degrees that the layout of a saved checkpoint depends on, where it is not resharded on load."""
DEFAULT_MEMORY_FRACTION = 0.92
"""Share of the device's memory a proposal may fill: published peaks are met within about 4%."""
_ANY: dict[str, object] = {
    **dict.fromkeys(FIELDS, 1),
    "sequence_parallel": False,
    "recompute": "none",
    "schedule": "1f1b",
}
_OTHER_KEYS = ("max_memory_fraction", "keep_checkpoint_layout", "max_changes")


@dataclass(frozen=True)
class Constraints:
    """`allowed` maps a plan field to the values it may take; a field that is absent may take any."""

    allowed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    max_memory_fraction: float = DEFAULT_MEMORY_FRACTION
    max_changes: int | None = None
    """At most so many fields may differ from today's plan; dp and schedule follow from the others."""
    excluded: tuple[Mapping[str, object], ...] = ()
    """A plan that has all values of one of these is left out: it was measured, or would fail like another."""


def parse_constraints(given: Mapping[str, Any], today: Plan | None) -> Constraints:
    """From the scenario's `constraints`: `{"tp": [4, 8], "pp": 2, "max_memory_fraction": 0.9, ...}`."""
    refuse_unknown(given, (*FIELDS, *_OTHER_KEYS), "constraints.")
    allowed = {name: _values(name, given[name]) for name in FIELDS if given.get(name) is not None}
    if _flag(given, "keep_checkpoint_layout"):
        allowed |= _kept(today, allowed)
    changes = given.get("max_changes")
    if changes is not None and (today is None or not _is_count(changes)):
        raise InputError(
            "constraints.max_changes", changes, "allowed: 0 or more, where the scenario has a plan"
        )
    return Constraints(allowed, _fraction(given), changes)


def _values(name: str, given: object) -> tuple[object, ...]:
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not values or any(value is None for value in values):
        raise InputError(f"constraints.{name}", shown(given), "allowed: a value of that field, or several")
    return tuple(getattr(build(Plan, {**_ANY, name: value}, "constraints."), name) for value in values)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise InputError(f"constraints.{name}", value, "allowed: true or false")
    return value


def _kept(today: Plan | None, allowed: Mapping[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    if today is None:
        raise InputError("constraints.keep_checkpoint_layout", True, "needs a plan in the scenario")
    kept = {name: getattr(today, name) for name in CHECKPOINT_FIELDS}
    for name, value in kept.items():
        if value not in allowed.get(name, (value,)):
            says = f"keep_checkpoint_layout keeps today's {value}; leave one of the two out"
            raise InputError(f"constraints.{name}", list(allowed[name]), says)
    return {name: (value,) for name, value in kept.items()}


def _fraction(given: Mapping[str, Any]) -> float:
    value = given.get("max_memory_fraction", DEFAULT_MEMORY_FRACTION)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value <= 1.0:
        raise InputError("constraints.max_memory_fraction", value, "allowed: above 0 and at most 1")
    return float(value)
