"""Which constants of the cost model a trace measures, and their values within the constants' bounds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from tools.hardware import Device
from tools.model.calibration import shipped_calibration
from tools.model.constants import constant_priors, memory_settings
from tools.model.predict import evaluate
from tools.physics.encode import encode, scenario_device
from tools.physics.inputs import Coefficients
from tools.physics.kernels import BACKWARD_ATTENTION_EFFICIENCY, gemm_s, head_share
from tools.scenario import Scenario
from tools.scenario.spec import ClosedModel
from tools.trace.alignment import AlignedCollectives, align
from tools.trace.classify import ATTENTION_OPS, GEMM_OPS
from tools.trace.links import bus_factor
from tools.trace.rank_profile import RankProfile
from tools.trace.roofline import RoofPoint
from tools.trace.terms import HOST, MeasuredTerms

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
_LARGE_PRODUCT_S = 3e-6
"""At the device's peak: a product of 780 × 780 × 780 on an A100."""
_LARGE_MESSAGE_BYTES = 1 << 20


class MeasuredCoefficient(ClosedModel):
    """One constant, within its bounds."""

    name: str
    value: float
    default: float
    source: str
    is_bounded: bool
    """The trace asks for a value beyond the constant's bounds."""


class ModelFit:
    """The constants measured so far; each applies to those that are measured after it."""

    def __init__(self, scenario: Scenario) -> None:
        self.x, self.keys = encode([scenario])
        self.measured: list[MeasuredCoefficient] = []
        self._settings = memory_settings(self.keys.framework, [scenario.training.precision])
        self._default = shipped_calibration().coefficients(self.keys)
        self._current = self._default

    def take(self, name: str, value: float | None, source: str) -> None:
        """Replaces a constant; None means not measured."""
        if value is None:
            return
        low, high = next(
            (constant.low, constant.high) for constant in constant_priors() if constant.name == name
        )
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


def measure_coefficients(
    profiles: Sequence[RankProfile], terms: MeasuredTerms, scenario: Scenario
) -> list[MeasuredCoefficient]:
    """Every constant that the trace measures, in the order measured."""
    fit, device = ModelFit(scenario), scenario_device(scenario.cluster)
    points = [point for profile in profiles for point in profile.roofline]
    precision = scenario.training.precision
    is_narrow = precision not in ("fp32", "fp16", "bf16")
    wide = _large_products(points, device, "bf16" if is_narrow else precision)
    _take_products(fit, "gemm_efficiency", wide, in_run_precision=not is_narrow)
    if precision in _GAINS:
        _take_products(fit, _GAINS[precision], _large_products(points, device, "fp8"), in_run_precision=True)
    if scenario.training.flash_attention:
        _take_attention(fit, points)
    domain = int(fit.x.scale_up_size) or device.devices_per_node
    inside, across = link_rates(align(profiles), domain, device.collectives.is_flat)
    source = f"{len(inside) + len(across)} large collectives, waiting left out"
    for name, rates, link in (
        ("fast_link_efficiency", inside, fit.x.scale_up_bandwidth),
        ("slow_link_efficiency", across, fit.x.scale_out_bandwidth),
    ):
        fit.take(name, float(np.median(rates)) / float(link) if rates else None, source)
    hosts = [profile.host for profile in profiles if profile.host.launches >= _MIN_LAUNCHES]
    if hosts:
        interval_ns = float(np.median([host.launch_interval_median_ns for host in hosts]))
        fit.take("host_kernel_s", interval_ns * 1e-9, "from one launch to the next")
    if terms.num_steps:
        _take_terms(fit, terms)
    return fit.measured


def _large_products(points: Iterable[RoofPoint], device: Device, precision: str) -> list[RoofPoint]:
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


def _take_products(fit: ModelFit, name: str, points: list[RoofPoint], in_run_precision: bool) -> None:
    """The value at which the model's time for these very products is the measured one."""
    if not points:
        return
    _, m, n, k = np.array([point.dims for point in points], dtype=np.float64).T
    count = np.array([point.count for point in points])

    def seconds(value: float) -> float:
        return float(np.sum(count * gemm_s(fit.x, fit.with_value(name, value), m, n, k, in_run_precision)))

    fit.take(name, fit.solve(name, seconds, _total_s(points), is_rate=True), _calls(points))


def _take_attention(fit: ModelFit, points: list[RoofPoint]) -> None:
    """As `tools.physics.kernels.attention_s` prices a fused call, with each call's own width."""
    calls = [point for point in points if point.op in ATTENTION_OPS]
    shaped = [point for point in calls if len(point.dims) == 5]
    if not shaped:
        return
    width = np.array([point.dims[-1] for point in shaped], dtype=np.float64)
    flops = np.array([point.flops * point.count for point in shaped])
    backward = np.array([point.op.endswith("backward") for point in shaped])
    rate = float(fit.x.half_peak * fit.x.attention_kernel * fit.x.power_share)
    ideal_s = flops / (rate * head_share(fit.x, width))
    ideal_s = np.where(backward, ideal_s / BACKWARD_ATTENTION_EFFICIENCY, ideal_s)
    fit.take("attention_efficiency", float(ideal_s.sum() / _total_s(shaped)), _calls(calls))


def _calls(points: list[RoofPoint]) -> str:
    count = sum(point.count for point in points)
    return f"{count} calls of {len({point.shape for point in points})} shapes, {_total_s(points):.3g} s"


def _total_s(points: list[RoofPoint]) -> float:
    return sum(point.time_ns for point in points) * 1e-9


def link_rates(
    aligned: Sequence[AlignedCollectives], domain: int, is_flat: bool = False
) -> tuple[list[float], list[float]]:
    """Bytes per second of large collectives inside a domain, and through one network card across domains.

    Only synchronising collectives show their transfer.
    """
    inside: list[float] = []
    across: list[float] = []
    for group in aligned:
        if not group.is_synchronising or not group.group_size or group.group_size < 2:
            continue
        factor, share = (
            bus_factor(group.kind, group.group_size),
            group.place(domain).card_share(group.kind, is_flat),
        )
        samples = across if share else inside
        for size, transfer_ns in zip(group.sizes_bytes.tolist(), group.transfer_ns.tolist(), strict=True):
            if size >= _LARGE_MESSAGE_BYTES and transfer_ns > 0:
                samples.append(size * factor * (share or 1.0) / (transfer_ns * 1e-9))
    return inside, across


def _take_terms(fit: ModelFit, terms: MeasuredTerms) -> None:
    """Constants that show only in the duration of a step."""
    source = f"{terms.num_steps} steady steps"

    def scale(term: str, name: str, wanted_s: float | None, is_rate: bool = False) -> None:
        if wanted_s:
            value = fit.solve(name, lambda v: fit.term_s(term, name, v), wanted_s, is_rate=is_rate)
            fit.take(name, value, f"{term}, {source}")

    if "gemm_efficiency" not in {constant.name for constant in fit.measured}:
        scale("compute", "gemm_efficiency", terms.terms_s.get("compute"), is_rate=True)
    for term, name in _SCALES:
        wanted_s = terms.terms_s.get(term)
        if term == "memory_bound_ops" and wanted_s and "optimizer" not in terms.terms_s:
            # The trace does not separate the optimizer from memory-bound work: the model's is subtracted.
            optimizer_s = fit.term_s("optimizer", "optimizer_traffic", fit.value("optimizer_traffic"))
            wanted_s = max(wanted_s - optimizer_s, 0.0)
        scale(term, name, wanted_s)
    # Waiting for late ranks and idle time separately: what one cannot explain is not put on the other
    idle_s = terms.terms_s[HOST] - terms.waiting_s
    without_s = fit.term_s(HOST, "scale_jitter", 0.0)
    if terms.waiting_s:
        wanted_s = without_s + terms.waiting_s
        value = fit.solve("scale_jitter", lambda v: fit.term_s(HOST, "scale_jitter", v), wanted_s)
        fit.take("scale_jitter", value, f"waiting at collectives, {source}")
    late_s = fit.term_s(HOST, "scale_jitter", fit.value("scale_jitter")) - without_s
    value = fit.solve("step_overhead_s", lambda v: fit.term_s(HOST, "step_overhead_s", v), idle_s + late_s)
    fit.take("step_overhead_s", value, f"idle time, {source}")
