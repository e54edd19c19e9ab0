"""What the value of a statement comes to: the values a plan field may take, or a figure in its own unit.

Figures are bounded: notes may correct the catalogue downwards (memory, links), never upwards.
"""

import math
from collections.abc import Iterable, Sequence

from pydantic import JsonValue

from tools.hardware import get_device
from tools.hardware.catalogue import FIGURE_BY_KEY, in_file_units
from tools.kb.conditions import Scalar
from tools.recommend.report import Statement
from tools.scenario import Scenario
from tools.scenario.columns import CHOICES

BANDWIDTHS = ("inter_node_gbps_per_device", "intra_node_gbytes_per_s_per_device")
MIN_RATIO = 0.1
"""Less than this part of the catalogue's figure is a mistaken unit, not a slow link or a small device."""
SAME_MEMORY = 0.03
"""An 80 GB device has 79.1 GiB: notes that name its memory by the label correct nothing."""
GIGABYTES_PER_GIB = 2**30 / 1e9
BITS_PER_BYTE = 8
SECONDS = {"ms": 1e-3, "msec": 1e-3, "millisecond": 1e-3, "min": 60.0, "minute": 60.0}


class Doubt(Exception):
    """Why a statement cannot be applied without a person's word."""


def form_of(statement: Statement) -> JsonValue:
    """The statement as a constraint of the contract; Doubt if its value does not suit its operator."""
    value, operator = statement.value, statement.operator
    if operator in ("<=", ">="):
        if isinstance(value, bool) or not isinstance(value, int | float) or statement.field in CHOICES:
            raise Doubt(f"{value!r} is no number to compare {statement.field} with")
        return {"max" if operator == "<=" else "min": value}
    scalars = _scalars(value)
    if not scalars or len(scalars) != (len(value) if isinstance(value, list) else 1):
        raise Doubt(f"{value!r} is not a value of {statement.field}")
    return {"not": value} if operator == "not" else value


def combined(name: str, forms: Sequence[JsonValue]) -> JsonValue:
    """What satisfies all these constraints on a plan field, in the contract's form; None if nothing does."""
    limits = [form for form in forms if isinstance(form, dict)]
    choices = [_scalars(form) for form in forms if not isinstance(form, dict)]
    excluded = frozenset[Scalar]().union(*(_scalars(limit.get("not")) for limit in limits))
    lows, highs = (
        [float(bound) for limit in limits if isinstance(bound := limit.get(key), int | float)]
        for key in ("min", "max")
    )
    low, high = max(lows, default=-math.inf), min(highs, default=math.inf)

    def left(values: Iterable[Scalar | None]) -> list[JsonValue]:
        fitting = [
            value
            for value in values
            if value is not None
            and value not in excluded
            and (isinstance(value, str | bool) or low <= value <= high)
        ]
        return [*sorted(fitting, key=lambda value: (isinstance(value, str), value))]

    if choices:
        listed = left(frozenset.intersection(*choices))
        return listed[0] if len(listed) == 1 else listed or None
    is_possible = low < high or (low == high and low not in excluded)
    if not (left(CHOICES[name]) if name in CHOICES else is_possible):
        return None
    bounds = {key: int(bound) for key, bound in (("min", low), ("max", high)) if math.isfinite(bound)}
    barred: list[JsonValue] = [*sorted(excluded, key=lambda value: (isinstance(value, str), value))]
    return {"not": barred, **bounds} if barred else {**bounds}


def _scalars(value: JsonValue) -> frozenset[Scalar]:
    values = value if isinstance(value, list) else [value]
    return frozenset(scalar for scalar in values if isinstance(scalar, int | float | str | bool))


def figure_of(statement: Statement, scenario: Scenario) -> float:
    """The statement's number in the field's own unit; raises Doubt if it is out of bounds."""
    name, value, unit = statement.field, statement.value, (statement.unit or "").lower()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Doubt(f"{value!r} is no number")
    if name in ("memory_gib", "max_memory_fraction"):
        return _memory(name, value, unit, scenario)
    nominal, cluster = nominal_of(name, scenario), scenario.cluster
    low, high, rule = 0.0, math.inf, "is no count"
    if name in FIGURE_BY_KEY:  # a bandwidth: the catalogue counts bits between nodes and bytes inside one
        is_bits = name == BANDWIDTHS[0]
        is_bytes = unit.startswith("gbyte") or not (unit or is_bits)
        rate = value if is_bits or is_bytes else value / BITS_PER_BYTE
        if unit == "of nominal" or (is_bits and is_bytes):
            rate = value * (BITS_PER_BYTE if is_bytes else nominal)
        if not MIN_RATIO * nominal <= rate <= nominal * (1 + 1e-9):
            bounds = f"{MIN_RATIO * nominal:g} to {nominal:g}: the catalogue has {nominal:g}"
            raise Doubt(f"{value:g} {unit} is outside {bounds}")
        return round(rate, 4)
    if name == "measured_step_time_s":
        value *= SECONDS.get(unit.rstrip("s") if unit != "ms" else unit, 1.0)
        low, rule = 1e-9, "is no step time"
    elif name == "oversubscription":
        low, high, rule = 1.0, 1 / MIN_RATIO, f"is outside 1 to {1 / MIN_RATIO:g}"
    elif name == "nvlink_domain_size":
        low, high = 1.0, max(get_device(cluster.device).fast_domain_devices, cluster.devices_per_node)
        rule = f"is not possible: NVLink joins at most {high} of these devices"
    is_count = name in ("max_changes", "nvlink_domain_size")
    if not low <= value <= high or (is_count and value % 1):
        raise Doubt(f"{value:g} {rule}")
    return int(value) if is_count else float(f"{value:.12g}")


def _memory(name: str, value: float, unit: str, scenario: Scenario) -> float:
    capacity = nominal_of("memory_gib", scenario)
    if name == "max_memory_fraction":
        if unit.startswith("g"):
            share = value / (1 if unit.startswith("gib") else GIGABYTES_PER_GIB) / capacity
            value = 1 - share if unit.endswith("free") else share
        if not 0 < value <= 1:
            raise Doubt(f"{value:.3g} is no share of a device's memory")
        return round(value, 4)
    gib = value / GIGABYTES_PER_GIB if unit.startswith("gb") and value > capacity else value
    if any(abs(size / capacity - 1) < SAME_MEMORY for size in (value, gib)):
        return capacity
    if not MIN_RATIO * capacity <= gib <= capacity:
        raise Doubt(f"a {scenario.cluster.device} has {capacity:.4g} GiB; {value:g} cannot be its memory")
    return gib


def nominal_of(name: str, scenario: Scenario) -> float:
    """The catalogue's figure, which a statement of the same changes nothing about."""
    if name in FIGURE_BY_KEY:
        return in_file_units(get_device(scenario.cluster.device), FIGURE_BY_KEY[name])
    return 1.0 if name == "oversubscription" else math.nan
