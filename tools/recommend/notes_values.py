"""What the value of a statement comes to: the values a plan field may take, or a figure in its own unit.

Figures are bounded: notes may correct the catalogue downwards (memory, links), never upwards.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import JsonValue

from tools.hardware import get_device
from tools.hardware.device import FIGURE_BY_KEY, in_file_units
from tools.recommend.report import Statement
from tools.scenario import Scenario
from tools.scenario.columns import CHOICES

MIN_BANDWIDTH_RATIO = 0.1
"""Of the catalogue's figure: a link slower than this is a mistaken unit, not a slow link."""
MAX_OVERSUBSCRIPTION = 1 / MIN_BANDWIDTH_RATIO
SAME_MEMORY = 0.03
"""An 80 GB device has 79.1 GiB: notes that name its memory by the label correct nothing."""
GIGABYTES_PER_GIB = 2**30 / 1e9
BITS_PER_BYTE = 8
SECONDS = {
    "ms": 1e-3,
    "msec": 1e-3,
    "millisecond": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "min": 60.0,
    "minute": 60.0,
}
Scalar = int | float | str | bool


class Doubt(Exception):
    """Why a statement cannot be applied without a person's word."""


@dataclass(frozen=True)
class Restriction:
    """The values a plan field may take; None: any."""

    allowed: frozenset[Scalar] | None = None
    excluded: frozenset[Scalar] = frozenset()
    minimum: float = -math.inf
    maximum: float = math.inf

    def both(self, other: "Restriction") -> "Restriction":
        sets = [limit.allowed for limit in (self, other) if limit.allowed is not None]
        return Restriction(
            frozenset.intersection(*sets) if sets else None,
            self.excluded | other.excluded,
            max(self.minimum, other.minimum),
            min(self.maximum, other.maximum),
        )

    def permits(self, value: Scalar) -> bool:
        if value in self.excluded or (self.allowed is not None and value not in self.allowed):
            return False
        return isinstance(value, str | bool) or self.minimum <= value <= self.maximum

    def is_possible(self, name: str) -> bool:
        values = self.allowed if self.allowed is not None else CHOICES.get(name)
        if values is not None:
            return any(self.permits(value) for value in values if value is not None)
        return self.minimum < self.maximum or (
            self.minimum == self.maximum and self.minimum not in self.excluded
        )

    def as_constraint(self) -> JsonValue:
        """In the contract's form: a value, a list, or {"not", "min", "max"}."""
        if self.allowed is not None:
            values = sorted((value for value in self.allowed if self.permits(value)), key=str)
            numbers = sorted(value for value in values if isinstance(value, int | float))
            ordered: list[Scalar] = [*numbers] if len(numbers) == len(values) else values
            return ordered[0] if len(ordered) == 1 else list(ordered)
        limit: dict[str, JsonValue] = {}
        if self.excluded:
            numbers = sorted(value for value in self.excluded if isinstance(value, int | float))
            words = sorted(value for value in self.excluded if isinstance(value, str))
            limit["not"] = [*numbers, *words]
        if self.minimum > -math.inf:
            limit["min"] = int(self.minimum)
        if self.maximum < math.inf:
            limit["max"] = int(self.maximum)
        return limit


def restriction_of(statement: Statement) -> Restriction:
    """Of a statement about one plan field; raises Doubt if its value has not the operator's shape."""
    value, operator = statement.value, statement.operator
    if operator in ("<=", ">="):
        if isinstance(value, bool) or not isinstance(value, int | float) or statement.field in CHOICES:
            raise Doubt(f"{value!r} is no number to compare {statement.field} with")
        return Restriction(maximum=value) if operator == "<=" else Restriction(minimum=value)
    values = value if isinstance(value, list) else [value]
    scalars = [scalar for scalar in values if isinstance(scalar, int | float | str | bool)]
    if not scalars or len(scalars) != len(values):
        raise Doubt(f"{value!r} is not a value of {statement.field}")
    if operator == "not":
        return Restriction(excluded=frozenset(scalars))
    return Restriction(allowed=frozenset(scalars))


def restriction_in(value: JsonValue) -> Restriction:
    """A constraint of the request, in the contract's form."""
    if not isinstance(value, dict):
        values = value if isinstance(value, list) else [value]
        return Restriction(
            allowed=frozenset(value for value in values if isinstance(value, int | float | str | bool))
        )
    excluded, low, high = value.get("not"), value.get("min"), value.get("max")
    nots = excluded if isinstance(excluded, list) else [] if excluded is None else [excluded]
    return Restriction(
        excluded=frozenset(value for value in nots if isinstance(value, int | float | str | bool)),
        minimum=float(low) if isinstance(low, int | float) else -math.inf,
        maximum=float(high) if isinstance(high, int | float) else math.inf,
    )


def figure_of(statement: Statement, scenario: Scenario) -> float:
    """The statement's number in the field's own unit; raises Doubt if it is out of bounds or has no unit."""
    value, unit = statement.value, (statement.unit or "").lower()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Doubt(f"{value!r} is no number")
    return FIGURES[statement.field](float(value), unit, scenario)


def _memory_fraction(value: float, unit: str, scenario: Scenario) -> float:
    if unit:
        capacity = _capacity_gib(scenario)
        gib = value if unit.startswith("gib") else value / GIGABYTES_PER_GIB
        value = 1 - gib / capacity if unit.endswith("free") else gib / capacity
    if not 0 < value <= 1:
        raise Doubt(f"{value:.3g} is no share of a device's memory")
    return round(value, 4)


def _capacity_gib(scenario: Scenario) -> float:
    return float(get_device(scenario.cluster.device).memory_bytes) / 2**30


def _memory_gib(value: float, unit: str, scenario: Scenario) -> float:
    capacity = _capacity_gib(scenario)
    gib = value / GIGABYTES_PER_GIB if unit in ("gb", "gigabytes", "gigs") and value > capacity else value
    if any(abs(size / capacity - 1) < SAME_MEMORY for size in (value, gib)):
        return capacity
    if not MIN_BANDWIDTH_RATIO * capacity <= gib <= capacity:
        raise Doubt(f"a {scenario.cluster.device} has {capacity:.4g} GiB; {value:g} cannot be its memory")
    return gib


def _bandwidth(figure_gbytes_per_s: float, per_unit: float) -> Callable[[float, str], float]:
    def convert(value: float, unit: str) -> float:
        nominal = figure_gbytes_per_s / per_unit
        candidates = {
            "of nominal": [value * nominal],
            "gb/s": [value / BITS_PER_BYTE / per_unit, value / per_unit],
        }.get(unit, [value / per_unit if unit.startswith("gbyte") else value / BITS_PER_BYTE / per_unit])
        inside = [
            rate for rate in candidates if MIN_BANDWIDTH_RATIO * nominal <= rate <= nominal * (1 + 1e-9)
        ]
        if len(inside) != 1:
            reason = "may be bits or bytes" if len(inside) > 1 else "is outside"
            raise Doubt(
                f"{value:g} {unit} {reason}: the catalogue has {nominal:g}, notes may say "
                f"{MIN_BANDWIDTH_RATIO * nominal:g} to {nominal:g}"
            )
        return round(inside[0], 4)

    return convert


def _inter_node(value: float, unit: str, scenario: Scenario) -> float:
    device = get_device(scenario.cluster.device)
    per_unit = 1 / BITS_PER_BYTE
    return _bandwidth(device.inter_node_bytes_per_s / 1e9, per_unit)(value, unit or "gbit/s")


def _intra_node(value: float, unit: str, scenario: Scenario) -> float:
    device = get_device(scenario.cluster.device)
    return _bandwidth(device.intra_node_bytes_per_s / 1e9, 1.0)(value, unit or "gbytes/s")


def _oversubscription(value: float, unit: str, scenario: Scenario) -> float:
    if not 1 <= value <= MAX_OVERSUBSCRIPTION:
        raise Doubt(f"an oversubscription of {value:g} is outside 1 to {MAX_OVERSUBSCRIPTION:g}")
    return value


def _domain_size(value: float, unit: str, scenario: Scenario) -> float:
    largest = max(get_device(scenario.cluster.device).fast_domain_devices, scenario.cluster.devices_per_node)
    if not 1 <= value <= largest:
        raise Doubt(f"NVLink joins at most {largest} of these devices")
    return int(value)


def _step_time(value: float, unit: str, scenario: Scenario) -> float:
    """Seconds; from tokens per second with the batch of the scenario."""
    if "tok" in unit or unit.endswith("tps"):
        rate = value * (1000 if unit.startswith("k") else 1)
        if any(word in unit for word in ("gpu", "device", "card", "chip")):
            rate *= scenario.cluster.num_devices
        value = scenario.training.global_batch_size * scenario.training.seq_len / rate
        return float(f"{value:.4g}")
    if unit not in SECONDS and unit.rstrip("s") not in SECONDS:
        unit = "s"
    seconds = value * SECONDS[unit if unit in SECONDS else unit.rstrip("s")]
    if not 0 < seconds < math.inf:
        raise Doubt(f"{value:g} {unit} is no step time")
    return float(f"{seconds:.12g}")


def _count(value: float, unit: str, scenario: Scenario) -> float:
    if value < 0 or value % 1:
        raise Doubt(f"{value:g} is no count")
    return int(value)


FIGURES: dict[str, Callable[[float, str, Scenario], float]] = {
    "max_memory_fraction": _memory_fraction,
    "max_changes": _count,
    "memory_gib": _memory_gib,
    "inter_node_gbps_per_device": _inter_node,
    "intra_node_gbytes_per_s_per_device": _intra_node,
    "oversubscription": _oversubscription,
    "nvlink_domain_size": _domain_size,
    "measured_step_time_s": _step_time,
}


def nominal_of(name: str, scenario: Scenario) -> float:
    """The catalogue's figure, which a statement of the same changes nothing about."""
    device = get_device(scenario.cluster.device)
    if name in FIGURE_BY_KEY:
        return in_file_units(device, FIGURE_BY_KEY[name])
    return 1.0 if name == "oversubscription" else math.nan
