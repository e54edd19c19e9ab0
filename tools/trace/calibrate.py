"""Constants of the cost model from a trace, and the measured step beside the predicted one, term by term."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tools.cost.calibration import Calibration, ClusterCalibration, shipped_calibration
from tools.cost.constants import Coefficients, definitions, resolve
from tools.cost.encode import encode, scenario_device
from tools.cost.kernels import BACKWARD_ATTENTION_EFFICIENCY, gemm_s
from tools.cost.memory import memory_settings
from tools.cost.predict import Prediction, evaluate, predict
from tools.errors import InputError
from tools.scenario import Scenario
from tools.trace.classify import ATTENTION_BACKWARD_OPS, ATTENTION_FORWARD_OPS
from tools.trace.collectives import align
from tools.trace.rank_profile import RankProfile
from tools.trace.roofline import RoofPoint
from tools.trace.terms import HOST, PIPELINE, MeasuredTerms, large_products, measure_cluster, measure_terms


@dataclass(frozen=True)
class MeasuredCoefficient:
    """One constant, within its bounds."""

    name: str
    value: float
    default: float
    source: str
    is_bounded: bool
    """The trace asks for a value beyond the constant's bounds."""


class ModelFit:
    """Holds the constants found so far; each is in force for those that are found after it."""

    def __init__(self, scenario: Scenario, calibration: Calibration) -> None:
        self.x, self.keys = encode([scenario])
        self.found: list[MeasuredCoefficient] = []
        self._settings = memory_settings(self.keys.framework, [scenario.training.precision])
        self._default = resolve(self.keys, calibration.shifts)
        self._now = self._default

    def take(self, name: str, value: float | None, source: str) -> None:
        """Replaces a constant; None is no measurement."""
        if value is None:
            return
        low, high = next((one.low, one.high) for one in definitions() if one.name == name)
        kept = float(np.clip(value, low, high))
        default = float(getattr(self._default, name))
        self.found.append(MeasuredCoefficient(name, kept, default, source, not low <= value <= high))
        self._now = self.with_value(name, kept)

    def value(self, name: str) -> float:
        """Of a constant, as it is by now."""
        return float(getattr(self._now, name))

    def with_value(self, name: str, value: float) -> Coefficients:
        """The constants so far, with another value for one of them."""
        return replace(self._now, **{name: np.asarray(value)})

    def term_s(self, term: str, name: str, value: float) -> float:
        """A term of the predicted step when one constant has this value."""
        costs = evaluate(self.x, self.with_value(name, value), self._settings)
        return float(getattr(costs.breakdown, term)[0])

    def solve(
        self, name: str, seconds: Callable[[float], float], wanted_s: float, *, is_rate: bool = False
    ) -> float | None:
        """The constant's value at which `seconds` of it is as wanted; None when it does not matter.

        `seconds` must be a line over the value, or over its inverse where the constant is a rate.
        """
        start = self.value(name)
        here_s = seconds(start)
        slope_s = seconds(start / 2 if is_rate else start * 2) - here_s
        if slope_s <= 0:
            return None
        times = max(1 + (wanted_s - here_s) / slope_s, 1e-9)
        return start / times if is_rate else start * times


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


_PARTS = {PIPELINE: ("pp_comm_exposed", "pipeline_bubble")}
"""Predicted terms that a trace shows as one."""


@dataclass(frozen=True)
class PredictionCheck:
    """The comparison as plain data, and what it makes of the cost model."""

    data: dict[str, Any]
    calibration: ClusterCalibration


def check_prediction(profiles: list[RankProfile], scenario: Scenario) -> PredictionCheck:
    """Compares a traced job with its scenario's prediction, before and after calibration by the trace."""
    profiles = [one for one in profiles if one.breakdown.total_ns]
    if not profiles:
        raise InputError("DIR", "traces without work", "must show at least one step to compare with")
    if scenario.plan is None:
        raise ValueError("a scenario without a plan cannot be predicted")
    measured = measure_terms(profiles, align(profiles), scenario.plan)
    found = measure_coefficients(profiles, measured, scenario)
    _, keys = encode([scenario])
    cluster = ClusterCalibration(
        framework=keys.framework[0],
        generation=keys.generation[0],
        device=keys.device[0],
        coefficients={one.name: one.value for one in found},
    )
    (before,), (after,) = predict([scenario]), predict([scenario], cluster.apply())
    data = {
        "per": "step" if measured.num_steps else "trace",
        "num_steps": measured.num_steps,
        "step_time": _row("step_time", measured.step_time_s, _total_s(before), _total_s(after)),
        "terms": _rows(measured, before, after),
        "waiting_s": measured.waiting_s,
        "coefficients": [asdict(one) for one in found],
        "notes": _notes(profiles, scenario, measured, found),
    }
    return PredictionCheck(data, cluster)


def _total_s(prediction: Prediction) -> float:
    return prediction.step_time_s


def _rows(measured: MeasuredTerms, before: Prediction, after: Prediction) -> list[dict[str, Any]]:
    """Terms that either side has, in the order of the contract."""
    parts = _parts(measured)
    return [
        _row(name, measured.terms_s.get(name, 0.0), _sum_s(before, names), _sum_s(after, names))
        for name, names in parts.items()
        if measured.terms_s.get(name) or _sum_s(before, names)
    ]


def _parts(measured: MeasuredTerms) -> dict[str, tuple[str, ...]]:
    has_optimizer = "optimizer" in measured.terms_s
    return {
        "compute": ("compute",),
        "memory_bound_ops": ("memory_bound_ops",) if has_optimizer else ("memory_bound_ops", "optimizer"),
        **{f"{axis}_comm_exposed": (f"{axis}_comm_exposed",) for axis in ("tp", "cp", "ep", "dp")},
        "other_comm_exposed": (),
        **_PARTS,
        **({"optimizer": ("optimizer",)} if has_optimizer else {}),
        "host_and_other": ("host_and_other",),
    }


def _sum_s(prediction: Prediction, names: tuple[str, ...]) -> float:
    terms: dict[str, float] = prediction.breakdown_s
    return sum(terms[name] for name in names)


def _row(name: str, measured_s: float, predicted_s: float, calibrated_s: float) -> dict[str, Any]:
    return {
        "term": name,
        "measured_s": measured_s,
        "predicted_s": predicted_s,
        "predicted_error_ratio": predicted_s / measured_s - 1 if measured_s else None,
        "calibrated_s": calibrated_s,
        "calibrated_error_ratio": calibrated_s / measured_s - 1 if measured_s else None,
    }


def _notes(
    profiles: list[RankProfile],
    scenario: Scenario,
    measured: MeasuredTerms,
    found: list[MeasuredCoefficient],
) -> list[str]:
    notes = []
    world_size = max(one.world_size or 0 for one in profiles)
    if world_size and world_size != scenario.cluster.num_devices:
        notes.append(
            f"the traces are of a job of {world_size} ranks, the scenario has"
            f" {scenario.cluster.num_devices} devices"
        )
    if not measured.num_steps:
        notes.append("no steps are marked: the whole trace stands beside one predicted step")
    if measured.terms_s.get("other_comm_exposed"):
        notes.append("some collectives fit no axis of the plan: they stand in other_comm_exposed")
    if sum(one.is_bounded for one in found) > len(found) / 2:
        notes.append("most constants ended at a bound: is this the scenario of the traced job?")
    return notes
