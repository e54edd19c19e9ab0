"""Measured set beside predicted, term by term, and the cost model calibrated by the difference."""

from dataclasses import asdict, dataclass
from typing import Any

from tools.cost.cluster import ClusterCalibration
from tools.cost.encode import encode
from tools.cost.predict import Prediction, predict
from tools.errors import InputError
from tools.scenario import Scenario
from tools.trace.coefficients import measure_coefficients
from tools.trace.collectives import align
from tools.trace.model_fit import MeasuredCoefficient
from tools.trace.rank_profile import RankProfile
from tools.trace.terms import PIPELINE, MeasuredTerms, measure_terms

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
    return float(prediction["step_time_s"])


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
    terms: dict[str, float] = prediction["breakdown_s"]
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
