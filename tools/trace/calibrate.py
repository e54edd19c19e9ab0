"""Which constants of the cost model a trace measures, and their values within the constants' bounds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.constants import Coefficients, definitions
from tools.cost.encode import encode, scenario_device
from tools.cost.kernels import BACKWARD_ATTENTION_EFFICIENCY, gemm_s, head_share
from tools.cost.memory import memory_settings
from tools.cost.predict import evaluate
from tools.hardware import Device
from tools.scenario import Scenario
from tools.scenario.spec import Result
from tools.trace.alignment import AlignedCollectives, align, bus_factor
from tools.trace.classify import ATTENTION_BACKWARD_OPS, ATTENTION_FORWARD_OPS, GEMM_OPS
from tools.trace.rank_profile import RankProfile
from tools.trace.roofline import RoofPoint
from tools.trace.terms import HOST, MeasuredTerms


class MeasuredCoefficient(Result):
    """One constant, within its bounds."""

    name: str
    value: float
    default: float
    source: str
    is_bounded: bool
    """The trace asks for a value beyond the constant's bounds."""


class ModelFit:
    """The constants measured so far; each applies to those that are measured after it."""

    def __init__(self, scenario: Scenario, calibration: Calibration) -> None:
        self.x, self.keys = encode([scenario])
        self.measured: list[MeasuredCoefficient] = []
        self._settings = memory_settings(self.keys.framework, [scenario.training.precision])
        self._default = calibration.coefficients(self.keys)
        self._current = self._default

    def take(self, name: str, value: float | None, source: str) -> None:
        """Replaces a constant; None means not measured."""
        if value is None:
            return
        low, high = next((constant.low, constant.high) for constant in definitions() if constant.name == name)
        kept = float(np.clip(value, low, high))
        self.measured.append(
            MeasuredCoefficient(
                name=name,
                value=kept,
                default=float(getattr(self._default, name)),
                source=source,
                is_bounded=not low <= value <= high,
            )
        )
        self._current = self.with_value(name, kept)

    def value(self, name: str) -> float:
        """The current value of a constant."""
        return float(getattr(self._current, name))

    def with_value(self, name: str, value: float) -> Coefficients:
        """The constants so far, with another value for one of them."""
        return replace(self._current, **{name: np.asarray(value)})

    def term_s(self, term: str, name: str, value: float) -> float:
        """A term of the predicted step when one constant has this value."""
        costs = evaluate(self.x, self.with_value(name, value), self._settings)
        # a trace does not distinguish repeated products from the others
        terms = ("compute", "recompute") if term == "compute" else (term,)
        return float(sum(getattr(costs.breakdown, part)[0] for part in terms))

    def solve(
        self, name: str, seconds: Callable[[float], float], wanted_s: float, *, is_rate: bool = False
    ) -> float | None:
        """The constant's value at which `seconds` of it is `wanted_s`; None if it has no effect.

        `seconds` must be linear in the value, or in its inverse if the constant is a rate.
        """
        start = self.value(name)
        here_s = seconds(start)
        farther = 1 + SOLVE_STEP
        slope_s = (seconds(start / farther if is_rate else start * farther) - here_s) / SOLVE_STEP
        if slope_s <= 0:
            return None
        times = max(1 + (wanted_s - here_s) / slope_s, 1e-9)
        return start / times if is_rate else start * times


SOLVE_STEP = 0.25
"""How far a constant is moved to see its effect: small, since at a bound it has none."""
_GAINS = {"fp8": "fp8_gain", "mxfp8": "fp8_gain"}
_MIN_LAUNCHES = 100
_SCALES = (
    ("memory_bound_ops", "elementwise_traffic"),
    ("tp_comm_exposed", "tp_exposed"),
    ("cp_comm_exposed", "cp_exposed"),
    ("ep_comm_exposed", "ep_exposed"),
    ("dp_comm_exposed", "dp_exposed"),
    ("optimizer", "optimizer_traffic"),
)
"""Terms of the step, and the constant that scales each."""


def measure_coefficients(
    profiles: list[RankProfile],
    terms: MeasuredTerms,
    scenario: Scenario,
    calibration: Calibration | None = None,
) -> list[MeasuredCoefficient]:
    """Every constant that the trace measures, in the order measured."""
    fit = ModelFit(scenario, calibration or shipped_calibration())
    _take_kernels(fit, [point for profile in profiles for point in profile.roofline], scenario)
    _take_links(fit, profiles, scenario)
    _take_launches(fit, profiles)
    if terms.num_steps:
        _take_terms(fit, terms)
    return fit.measured


def _take_kernels(fit: ModelFit, points: list[RoofPoint], scenario: Scenario) -> None:
    device, precision = scenario_device(scenario.cluster), scenario.training.precision
    is_narrow = precision not in ("fp32", "fp16", "bf16")
    wide = large_products(points, device, "bf16" if is_narrow else precision)
    fit.take("gemm_efficiency", _product_rate(fit, wide, "gemm_efficiency", not is_narrow), _calls(wide))
    if precision in _GAINS:
        narrow = large_products(points, device, "fp8")
        fit.take(_GAINS[precision], _product_rate(fit, narrow, _GAINS[precision], True), _calls(narrow))
    attention = [point for point in points if point.op in ATTENTION_FORWARD_OPS | ATTENTION_BACKWARD_OPS]
    if scenario.training.flash_attention:
        fit.take("attention_efficiency", _attention_rate(fit, attention), _calls(attention))


def _calls(points: list[RoofPoint]) -> str:
    count = sum(point.count for point in points)
    return f"{count} calls of {len({point.shape for point in points})} shapes, {_total_s(points):.3g} s"


def _total_s(points: list[RoofPoint]) -> float:
    return sum(point.time_ns for point in points) * 1e-9


def _product_rate(fit: ModelFit, points: list[RoofPoint], name: str, in_run_precision: bool) -> float | None:
    """The value at which the model's time for these very products is the measured one."""
    if not points:
        return None
    _, m, n, k = np.array([point.dims for point in points], dtype=np.float64).T
    count = np.array([point.count for point in points])

    def seconds(value: float) -> float:
        return float(np.sum(count * gemm_s(fit.x, fit.with_value(name, value), m, n, k, in_run_precision)))

    return fit.solve(name, seconds, _total_s(points), is_rate=True)


def _attention_rate(fit: ModelFit, points: list[RoofPoint]) -> float | None:
    """As `tools.cost.kernels.attention_s` prices a fused call, with each call's own width."""
    shaped = [point for point in points if len(point.dims) == 5]
    if not shaped:
        return None
    width = np.array([point.dims[-1] for point in shaped], dtype=np.float64)
    flops = np.array([point.flops * point.count for point in shaped])
    backward = np.array([point.op in ATTENTION_BACKWARD_OPS for point in shaped])
    rate = float(fit.x.half_peak * fit.x.attention_kernel * fit.x.power_share)
    ideal_s = flops / (rate * head_share(fit.x, width))
    ideal_s = np.where(backward, ideal_s / BACKWARD_ATTENTION_EFFICIENCY, ideal_s)
    return float(ideal_s.sum() / _total_s(shaped))


def _take_links(fit: ModelFit, profiles: list[RankProfile], scenario: Scenario) -> None:
    device = scenario_device(scenario.cluster)
    measured = measure_cluster(profiles, device, int(fit.x.scale_up_size))
    source = f"{measured.num_collectives} large collectives, waiting left out"
    for name, reached, link in (
        ("fast_link_efficiency", measured.intra_node_bytes_per_s, fit.x.scale_up_bandwidth),
        ("slow_link_efficiency", measured.inter_node_bytes_per_s, fit.x.scale_out_bandwidth),
    ):
        fit.take(name, None if reached is None else reached / float(link), source)


def _take_launches(fit: ModelFit, profiles: list[RankProfile]) -> None:
    intervals_ns = [
        profile.host.launch_interval_median_ns
        for profile in profiles
        if profile.host.launches >= _MIN_LAUNCHES
    ]
    if intervals_ns:
        fit.take("host_kernel_s", float(np.median(intervals_ns)) * 1e-9, "from one launch to the next")


def _take_terms(fit: ModelFit, terms: MeasuredTerms) -> None:
    """Constants that show only in the duration of a step."""
    source = f"{terms.num_steps} steady steps"
    if "gemm_efficiency" not in {constant.name for constant in fit.measured}:
        _take_term(fit, "compute", "gemm_efficiency", terms, source, is_rate=True)
    for term, name in _SCALES:
        _take_term(fit, term, name, _with_optimizer_apart(fit, terms), source)
    _take_host(fit, terms, source)


def _with_optimizer_apart(fit: ModelFit, terms: MeasuredTerms) -> MeasuredTerms:
    """Subtracts the model's optimizer time if the trace does not separate it from memory-bound work."""
    if "optimizer" in terms.terms_s or "memory_bound_ops" not in terms.terms_s:
        return terms
    optimizer_s = fit.term_s("optimizer", "optimizer_traffic", fit.value("optimizer_traffic"))
    rest_s = max(terms.terms_s["memory_bound_ops"] - optimizer_s, 0.0)
    return replace(terms, terms_s={**terms.terms_s, "memory_bound_ops": rest_s})


def _take_host(fit: ModelFit, terms: MeasuredTerms, source: str) -> None:
    """Waiting for late ranks and idle time separately: what one cannot explain is not put on the other."""
    idle_s = terms.terms_s[HOST] - terms.waiting_s
    without_s = fit.term_s(HOST, "scale_jitter", 0.0)
    if terms.waiting_s:
        wanted_s = without_s + terms.waiting_s
        value = fit.solve("scale_jitter", lambda v: fit.term_s(HOST, "scale_jitter", v), wanted_s)
        fit.take("scale_jitter", value, f"waiting at collectives, {source}")
    late_s = fit.term_s(HOST, "scale_jitter", fit.value("scale_jitter")) - without_s
    value = fit.solve("step_overhead_s", lambda v: fit.term_s(HOST, "step_overhead_s", v), idle_s + late_s)
    fit.take("step_overhead_s", value, f"idle time, {source}")


def _take_term(
    fit: ModelFit, term: str, name: str, terms: MeasuredTerms, source: str, *, is_rate: bool = False
) -> None:
    """Scales one term to what it took."""
    if wanted_s := terms.terms_s.get(term):
        value = fit.solve(name, lambda v: fit.term_s(term, name, v), wanted_s, is_rate=is_rate)
        fit.take(name, value, f"{term}, {source}")


_LARGE_PRODUCT_S = 3e-6
"""At the device's peak: a product of 780 × 780 × 780 on an A100."""
_LARGE_MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True)
class ClusterMeasurements:
    """None if the trace has nothing to measure it by."""

    intra_node_bytes_per_s: float | None = None
    """Median bus bandwidth of large collectives inside the scale-up domain, without waiting."""
    inter_node_bytes_per_s: float | None = None
    """Of one device's share of the network, from collectives that cross domains."""
    num_collectives: int = 0


def measure_cluster(
    profiles: list[RankProfile], device: Device, scale_up_devices: int | None = None
) -> ClusterMeasurements:
    """Over all ranks; `scale_up_devices` share fast links (None: those of a node)."""
    inside, across = _link_samples(align(profiles), scale_up_devices or device.devices_per_node)
    return ClusterMeasurements(
        intra_node_bytes_per_s=_median(inside),
        inter_node_bytes_per_s=_median(across),
        num_collectives=len(inside) + len(across),
    )


def large_products(points: Iterable[RoofPoint], device: Device, precision: str) -> list[RoofPoint]:
    """Single products in one precision, long enough and intense enough to show the arithmetic rate."""
    peak = device.peak_flops.get(precision)
    if not peak:
        return []
    ridge = peak / device.memory_bandwidth_bytes_per_s
    return [
        point
        for point in points
        if point.op in GEMM_OPS
        and point.precision == precision
        and point.flops >= peak * _LARGE_PRODUCT_S
        and point.intensity >= ridge
    ]


def _link_samples(aligned: list[AlignedCollectives], domain: int) -> tuple[list[float], list[float]]:
    """Bandwidths inside a domain and across; only synchronising collectives show their transfer."""
    inside: list[float] = []
    across: list[float] = []
    for group in aligned:
        if not group.is_synchronising or not group.group_size or group.group_size < 2:
            continue
        share = _network_share(group.events[0][0].ranks or tuple(group.ranks), domain)
        bus = bus_factor(group.kind, group.group_size)
        samples, factor = (inside, bus) if share is None else (across, bus * share)
        for event, transfer_ns in zip(group.events[0], group.transfer_ns.tolist(), strict=True):
            if event.message_bytes and event.message_bytes >= _LARGE_MESSAGE_BYTES and transfer_ns > 0:
                samples.append(event.message_bytes * factor / (transfer_ns * 1e-9))
    return inside, across


def _network_share(ranks: tuple[int, ...], domain: int) -> float | None:
    """Bytes on one network card over those on the bus; None when the group stays inside a domain.

    A hierarchical ring sends (d-1)/d of the message between d domains, over the cards of all members of a
    domain in parallel; a flat one sends (n-1)/n (as in `tools.cost.collectives`).
    """
    per_domain = np.unique([rank // domain for rank in ranks], return_counts=True)[1]
    if len(per_domain) == 1:
        return None
    size, domains = len(ranks), len(per_domain)
    return (domains - 1) / domains * size / (size - 1) / float(per_domain.max())


def _median(samples: list[float]) -> float | None:
    return float(np.median(samples)) if samples else None
