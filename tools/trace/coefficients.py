"""Constants of the cost model from a trace: those with which the model gives what was measured.

Products and attention calls are set against the model's time for their own shapes, collectives against the
catalogue's link. What the trace shows only as a term of the step (memory-bound work, exposed communication,
optimizer, host) sets the constant that scales that term, with everything measured before already in place.
Only constants that the trace measures are returned. Profiled steps are a little slower than plain ones,
most of all on the host, and the constants inherit that.
"""

from dataclasses import replace

import numpy as np

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.encode import scenario_device
from tools.cost.kernels import BACKWARD_ATTENTION_EFFICIENCY, gemm_s
from tools.scenario import Scenario
from tools.trace.calibration import large_products, measure_cluster
from tools.trace.model_fit import MeasuredCoefficient, ModelFit
from tools.trace.op_names import ATTENTION_BACKWARD_OPS, ATTENTION_FORWARD_OPS
from tools.trace.rank_profile import RankProfile
from tools.trace.roofline import RoofPoint
from tools.trace.terms import HOST, MeasuredTerms

_GAINS = {"fp8": "fp8_gain", "mxfp8": "mxfp8_gain"}
_LEAST_LAUNCHES = 100
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
    """Every constant that the trace measures, in the order found."""
    fit = ModelFit(scenario, calibration or shipped_calibration())
    _take_kernels(fit, [point for one in profiles for point in one.roofline], scenario)
    _take_links(fit, profiles, scenario)
    _take_launches(fit, profiles)
    if terms.num_steps:
        _take_terms(fit, terms)
    return fit.found


def _take_kernels(fit: ModelFit, points: list[RoofPoint], scenario: Scenario) -> None:
    device, precision = scenario_device(scenario.cluster), scenario.training.precision
    is_narrow = precision not in ("fp32", "fp16", "bf16")
    wide = large_products(points, device, "bf16" if is_narrow else precision)
    fit.take("gemm_efficiency", _product_rate(fit, wide, "gemm_efficiency", not is_narrow), _calls(wide))
    if precision in _GAINS:
        narrow = large_products(points, device, "fp8")
        fit.take(_GAINS[precision], _product_rate(fit, narrow, _GAINS[precision], True), _calls(narrow))
    attention = [one for one in points if one.op in ATTENTION_FORWARD_OPS | ATTENTION_BACKWARD_OPS]
    if scenario.training.flash_attention:
        fit.take("attention_efficiency", _attention_rate(fit, attention), _calls(attention))


def _calls(points: list[RoofPoint]) -> str:
    count, time_s = sum(one.count for one in points), sum(one.time_ns for one in points) * 1e-9
    return f"{count} calls of {len({one.shape for one in points})} shapes, {time_s:.3g} s"


def _product_rate(fit: ModelFit, points: list[RoofPoint], name: str, in_run_precision: bool) -> float | None:
    """The value at which the model's time for these very products is the measured one."""
    if not points:
        return None
    _, m, n, k = np.array([one.dims for one in points], dtype=np.float64).T
    count = np.array([one.count for one in points])

    def seconds(value: float) -> float:
        return float(np.sum(count * gemm_s(fit.x, fit.with_value(name, value), m, n, k, in_run_precision)))

    return fit.solve(name, seconds, sum(one.time_ns for one in points) * 1e-9, is_rate=True)


def _attention_rate(fit: ModelFit, points: list[RoofPoint]) -> float | None:
    """As `tools.cost.kernels.attention_s` reckons a fused call, for each call's own width."""
    told = [one for one in points if len(one.dims) == 5]
    if not told:
        return None
    width = np.array([one.dims[-1] for one in told], dtype=np.float64)
    flops = np.array([one.flops * one.count for one in told])
    backward = np.array([one.op in ATTENTION_BACKWARD_OPS for one in told])
    half = fit.value("attention_head_dim_half")
    ideal_s = flops / float(fit.x.half_peak) * (width + half) / width
    ideal_s = np.where(backward, ideal_s / BACKWARD_ATTENTION_EFFICIENCY, ideal_s)
    return float(ideal_s.sum() / (sum(one.time_ns for one in told) * 1e-9))


def _take_links(fit: ModelFit, profiles: list[RankProfile], scenario: Scenario) -> None:
    device = scenario_device(scenario.cluster)
    measured = measure_cluster(profiles, device, int(fit.x.domain))
    source = f"{measured.num_collectives} large collectives, waiting left out"
    for name, reached, link in (
        ("fast_link_efficiency", measured.intra_node_bytes_per_s, fit.x.fast_bandwidth),
        ("slow_link_efficiency", measured.inter_node_bytes_per_s, fit.x.slow_bandwidth),
    ):
        fit.take(name, None if reached is None else reached / float(link), source)


def _take_launches(fit: ModelFit, profiles: list[RankProfile]) -> None:
    intervals_ns = [
        one.host.launch_interval_median_ns for one in profiles if one.host.launches >= _LEAST_LAUNCHES
    ]
    if intervals_ns:
        fit.take("host_kernel_s", float(np.median(intervals_ns)) * 1e-9, "from one launch to the next")


def _take_terms(fit: ModelFit, terms: MeasuredTerms) -> None:
    """Constants that show only in what a step takes."""
    source = f"{terms.num_steps} steady steps"
    if "gemm_efficiency" not in {one.name for one in fit.found}:
        _take_term(fit, "compute", "gemm_efficiency", terms, source, is_rate=True)
    for term, name in _SCALES:
        _take_term(fit, term, name, _with_optimizer_apart(fit, terms), source)
    _take_host(fit, terms, source)


def _with_optimizer_apart(fit: ModelFit, terms: MeasuredTerms) -> MeasuredTerms:
    """Where the optimizer could not be told from memory-bound work: the model's time for it is taken out."""
    if "optimizer" in terms.terms_s or "memory_bound_ops" not in terms.terms_s:
        return terms
    optimizer_s = fit.term_s("optimizer", "optimizer_traffic", fit.value("optimizer_traffic"))
    rest_s = max(terms.terms_s["memory_bound_ops"] - optimizer_s, 0.0)
    return replace(terms, terms_s={**terms.terms_s, "memory_bound_ops": rest_s})


def _take_host(fit: ModelFit, terms: MeasuredTerms, source: str) -> None:
    """Waiting for late ranks and idle time apart: what the one cannot explain is not put on the other."""
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
