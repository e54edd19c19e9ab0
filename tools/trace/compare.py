"""How a traced job compares: with its traces after a change, and with the prediction of its scenario."""

from collections import defaultdict
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from tools.cost.calibration import ClusterCalibration
from tools.cost.encode import encode
from tools.cost.predict import Prediction, predict
from tools.errors import InputError
from tools.scenario import Scenario
from tools.scenario.spec import Result
from tools.trace.alignment import align
from tools.trace.breakdown import Breakdown, BreakdownUs, add_breakdowns
from tools.trace.calibrate import MeasuredCoefficient, measure_coefficients
from tools.trace.rank_profile import RankProfile
from tools.trace.terms import PIPELINE, MeasuredTerms, measure_terms

_MAX_KERNELS = 10


class TermChange(Result):
    term: str
    before_us: float
    after_us: float
    change_us: float
    """Negative if time was saved."""
    ratio: float | None


class OverlapChange(Result):
    before: float | None
    after: float | None


class KernelChange(Result):
    name: str
    before_us: float | None
    after_us: float | None
    change_us: float


class TraceChange(Result):
    """Two folders, before and after a change: means over ranks and steady steps, or over ranks."""

    per: Literal["rank and step", "rank"]
    speedup: float | None
    terms: list[TermChange]
    overlap_ratio: OverlapChange
    kernels: list[KernelChange]
    """The names among either side's longest kernels whose time changed most."""


def compare(before: list[RankProfile], after: list[RankProfile]) -> TraceChange:
    """Compares steady steps if all ranks of both sides mark steps, else whole traces."""
    by_step = _has_steps(before) and _has_steps(after)
    mean_before, mean_after = _mean(before, by_step), _mean(after, by_step)
    names = [name for name in BreakdownUs.model_fields if name.endswith("_us")]
    return TraceChange(
        per="rank and step" if by_step else "rank",
        speedup=_ratio(mean_before.total_us, mean_after.total_us),
        terms=[_change(name, getattr(mean_before, name), getattr(mean_after, name)) for name in names],
        overlap_ratio=OverlapChange(before=mean_before.overlap_ratio, after=mean_after.overlap_ratio),
        kernels=_compare_kernels(before, after, by_step),
    )


def _has_steps(profiles: list[RankProfile]) -> bool:
    return bool(profiles) and all(profile.steady_steps for profile in profiles)


def _mean(profiles: list[RankProfile], by_step: bool) -> BreakdownUs:
    """The mean steady step of a rank, or the mean trace."""
    parts = [profile.steady_breakdown if by_step else profile.breakdown for profile in profiles]
    count = sum(len(profile.steady_steps) if by_step else 1 for profile in profiles) or 1
    summed = add_breakdowns(parts)
    mean = Breakdown(**{term.name: round(getattr(summed, term.name) / count) for term in fields(summed)})
    return mean.as_microseconds()


def _change(name: str, before_us: float, after_us: float) -> TermChange:
    return TermChange(
        term=name.removesuffix("_us"),
        before_us=before_us,
        after_us=after_us,
        change_us=after_us - before_us,
        ratio=_ratio(after_us, before_us),
    )


def _ratio(value: float, base: float) -> float | None:
    return value / base if base else None


def _compare_kernels(
    before: list[RankProfile], after: list[RankProfile], by_step: bool
) -> list[KernelChange]:
    times_before, times_after = _kernel_times_us(before, by_step), _kernel_times_us(after, by_step)
    names = sorted(times_before.keys() | times_after.keys())
    changes = np.array([times_after.get(name, 0.0) - times_before.get(name, 0.0) for name in names])
    largest = np.argsort(-np.abs(changes), kind="stable")[:_MAX_KERNELS]
    return [
        KernelChange(
            name=names[index],
            before_us=times_before.get(names[index]),
            after_us=times_after.get(names[index]),
            change_us=float(changes[index]),
        )
        for index in largest
    ]


def _kernel_times_us(profiles: list[RankProfile], by_step: bool) -> dict[str, float]:
    """Per rank, and per marked step with warm-up included, because kernels are not kept by step."""
    count = sum(len(profile.steps) if by_step else 1 for profile in profiles) or 1
    times: dict[str, float] = defaultdict(float)
    for profile in profiles:
        for kernel in profile.top_kernels:
            times[kernel.name] += kernel.time_ns / 1000 / count
    return dict(times)


class TermComparison(Result):
    term: str
    measured_s: float
    predicted_s: float
    predicted_error_ratio: float | None
    calibrated_s: float
    calibrated_error_ratio: float | None


class PredictionComparison(Result):
    """The measured step beside the predicted one, before and after calibration by the trace."""

    per: Literal["step", "trace"]
    num_steps: int
    step_time: TermComparison
    terms: list[TermComparison]
    waiting_s: float
    coefficients: list[MeasuredCoefficient]
    notes: list[str]


@dataclass(frozen=True)
class PredictionCheck:
    comparison: PredictionComparison
    calibration: ClusterCalibration


def check_prediction(profiles: list[RankProfile], scenario: Scenario) -> PredictionCheck:
    """Compares a traced job with its scenario's prediction, and calibrates the cost model by the trace."""
    profiles = [profile for profile in profiles if profile.breakdown.total_ns]
    if not profiles:
        raise InputError("DIR", "traces without work", "must show at least one step to compare with")
    if scenario.plan is None:
        raise ValueError("a scenario without a plan cannot be predicted")
    measured = measure_terms(profiles, align(profiles), scenario.plan)
    coefficients = measure_coefficients(profiles, measured, scenario)
    _, keys = encode([scenario])
    cluster = ClusterCalibration(
        framework=keys.framework[0],
        generation=keys.generation[0],
        device=keys.device[0],
        coefficients={coefficient.name: coefficient.value for coefficient in coefficients},
    )
    (before,), (after,) = predict([scenario]), predict([scenario], cluster.apply())
    comparison = PredictionComparison(
        per="step" if measured.num_steps else "trace",
        num_steps=measured.num_steps,
        step_time=_compare_term("step_time", measured.step_time_s, before.step_time_s, after.step_time_s),
        terms=_compare_terms(measured, before, after),
        waiting_s=measured.waiting_s,
        coefficients=coefficients,
        notes=_notes(profiles, scenario, measured, coefficients),
    )
    return PredictionCheck(comparison, cluster)


def _compare_terms(measured: MeasuredTerms, before: Prediction, after: Prediction) -> list[TermComparison]:
    """Terms that either side has, in the order of the prediction."""
    return [
        _compare_term(name, measured.terms_s.get(name, 0.0), _sum_s(before, parts), _sum_s(after, parts))
        for name, parts in _predicted_parts(measured).items()
        if measured.terms_s.get(name) or _sum_s(before, parts)
    ]


def _predicted_parts(measured: MeasuredTerms) -> dict[str, tuple[str, ...]]:
    """The predicted terms that a trace shows as one, by measured term."""
    has_optimizer = "optimizer" in measured.terms_s
    return {
        "compute": ("compute", "recompute"),
        "memory_bound_ops": ("memory_bound_ops",) if has_optimizer else ("memory_bound_ops", "optimizer"),
        **{f"{axis}_comm_exposed": (f"{axis}_comm_exposed",) for axis in ("tp", "cp", "ep", "dp")},
        "other_comm_exposed": (),
        PIPELINE: ("pp_comm_exposed", "pipeline_bubble"),
        **({"optimizer": ("optimizer",)} if has_optimizer else {}),
        "host_and_other": ("host_and_other",),
    }


def _sum_s(prediction: Prediction, names: tuple[str, ...]) -> float:
    terms: dict[str, float] = prediction.breakdown_s
    return sum(terms[name] for name in names)


def _compare_term(name: str, measured_s: float, predicted_s: float, calibrated_s: float) -> TermComparison:
    return TermComparison(
        term=name,
        measured_s=measured_s,
        predicted_s=predicted_s,
        predicted_error_ratio=predicted_s / measured_s - 1 if measured_s else None,
        calibrated_s=calibrated_s,
        calibrated_error_ratio=calibrated_s / measured_s - 1 if measured_s else None,
    )


def _notes(
    profiles: list[RankProfile],
    scenario: Scenario,
    measured: MeasuredTerms,
    coefficients: list[MeasuredCoefficient],
) -> list[str]:
    notes = []
    world_size = max(profile.world_size or 0 for profile in profiles)
    if world_size and world_size != scenario.cluster.num_devices:
        notes.append(
            f"the traces are of a job of {world_size} ranks, the scenario has"
            f" {scenario.cluster.num_devices} devices"
        )
    if not measured.num_steps:
        notes.append("no steps are marked: the whole trace is compared with one predicted step")
    if measured.terms_s.get("other_comm_exposed"):
        notes.append("some collectives fit no axis of the plan: they are under other_comm_exposed")
    if sum(coefficient.is_bounded for coefficient in coefficients) > len(coefficients) / 2:
        notes.append("most constants ended at a bound: is this the scenario of the traced job?")
    return notes
