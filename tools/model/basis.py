"""What a prediction stands on: the nearest measured run, the cluster's own runs, what was assumed, what
nobody has measured, and the one measurement that would make it surer. Typed, with the sentences that are made
of it."""

import math
from typing import Literal

import numpy as np
from pydantic import JsonValue, computed_field

from tools.model.calibration import Calibration, shipped_calibration
from tools.model.cluster_findings import ClusterFinding
from tools.model.evidence import RunCitation
from tools.model.intervals import UNCERTAINTIES, Uncertainty, exposures, kind_names
from tools.model.predict import Prediction, predict, predict_rows
from tools.physics.encode import crossed_fabric, encode
from tools.scenario.recipes import assumed_settings
from tools.scenario.spec import ClosedModel, Fabric, Scenario

WIDE = 0.2
"""Half width from which a prediction says why it is uncertain."""
WORTHWHILE = 0.9
"""What a measurement must narrow the interval to, or it is not named."""
MAX_NAMED = 4
"""Differences that are listed; more are counted."""
SingleMeasurement = Literal["host", "network", "exchange", "step"]
MEASUREMENTS: dict[SingleMeasurement, str] = {
    "host": "the host's time to launch a layer (asap probe)",
    "network": "the network between the nodes (asap probe)",
    "exchange": "the exchange of experts inside a job (asap calibrate)",
    "step": "one step of this job, under any plan (asap calibrate)",
}
"""The cheapest first."""
FABRIC_NAMES: dict[Fabric, str] = {"ib": "InfiniBand", "roce": "RoCE", "efa": "EFA", "tcp": "TCP"}
CAUSES: dict[Uncertainty, str] = {
    "base": "what two runs of the same plan differ by",
    "experts": "how experts are balanced and run",
    "host": "the host's time",
    "exchange": "the exchange of experts",
    "network": "exposed communication",
    "memory": "memory-bound work",
    "short": "a very short step",
    "distance": "its distance to all measured runs",
    "novelty": "a stack of which little or nothing was measured",
}


class AssumedSetting(ClosedModel):
    """A setting that the scenario leaves open, what it is taken for, and who says so."""

    name: str
    value: JsonValue
    source: str


class Basis(ClosedModel):
    """Ratios are less one."""

    half_width: float
    """Half of the 80% interval's width."""
    cause: Uncertainty
    """What most of the interval's variance comes from."""
    cause_share: float
    nearest_run: str
    differences: tuple[str, ...]
    """What the nearest run has otherwise."""
    nearest_error: float
    """The nearest run's measured time over what the formulas say of it."""
    correction: float
    """What published runs make of this prediction."""
    calibrated_by: str = ""
    """The cluster and its runs that the prediction was calibrated by; empty: none."""
    own_correction: float = 0.0
    """What those make of it besides."""
    runs: tuple[RunCitation, ...] = ()
    """Runs and crashes of this very plan, which rule it."""
    crash_alike: str = ""
    """The crash that says most against plans like this one, if none is its own."""
    findings: tuple[ClusterFinding, ...] = ()
    """What is odd about the cluster's runs, with what to measure; the gravest first."""
    never_measured: str
    """What no published run has: the framework, or it on this device generation or fabric ("deepspeed on
    blackwell", "megatron-core on EFA")."""
    measurement: SingleMeasurement
    """The cheapest single measurement that halves the interval, or else the one that narrows it most."""
    half_width_after: float
    """With that measurement."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def nearest_summary(self) -> str:
        count = len(self.differences)
        listed = ", ".join(self.differences[:MAX_NAMED]) + (", ..." if count > MAX_NAMED else "")
        away = f"{count} setting{'s' if count > 1 else ''} away ({listed})" if count else "the same settings"
        longer = "longer" if self.nearest_error > 0 else "less"
        return (
            f"{self.nearest_run}, {away}, took {abs(self.nearest_error):.0%} {longer} than the formulas say; "
            f"runs like it move this prediction by {self.correction:+.0%}"
        )

    @property
    def own_summary(self) -> str:
        """What the cluster's own runs say; empty without any."""
        told = [f"{run.summary} ({run.ref})" for run in self.runs]
        told += [f"{self.crash_alike} crashed, and this plan is like it"] if self.crash_alike else []
        if self.calibrated_by:
            told.append(f"{self.calibrated_by} move this prediction by {self.own_correction:+.0%}")
        return "; ".join(told)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def uncertainty_summary(self) -> str:
        """Why the interval is wide or the stack unknown, and what would narrow it; else empty."""
        if self.half_width < WIDE and not self.never_measured:
            return ""
        unknown = f"no run of {self.never_measured} is known: " if self.never_measured else ""
        text = f"{unknown}±{self.half_width:.0%}, mostly from {CAUSES[self.cause]}"
        if self.half_width_after >= WORTHWHILE * self.half_width:
            return text
        what = MEASUREMENTS[self.measurement]
        return f"{text}; measuring {what} would make it about ±{self.half_width_after:.0%}"


def basis_of(scenario: Scenario, calibration: Calibration | None = None) -> Basis:
    """What a prediction of this scenario, which has a plan, stands on."""
    calibration = calibration or shipped_calibration()
    x, keys = encode([scenario])
    batch = predict_rows(x, keys, [scenario.training.precision], calibration)
    correction, whole = calibration.residual.correct(x, keys), float(batch.log_factor[0])
    novelty = calibration.correct(x, keys).novelty
    cluster, seen = calibration.cluster, calibration.seen
    if cluster is not None and not cluster.is_here(keys).all():
        cluster = None
    runs = seen.cited(scenario) if seen else []
    crash = seen.nearest_crash(scenario, float(batch.costs.memory_bytes[0])) if seen and not runs else None
    exposed = exposures(x, batch.costs.breakdown, correction.distance, novelty)
    parts = np.array([float(np.max(part)) for part in calibration.intervals.variances(exposed).parts])
    shares = dict(zip(UNCERTAINTIES, (parts / parts.sum()).tolist(), strict=True))
    cause = max(UNCERTAINTIES, key=lambda name: shares[name])
    half_log = float(np.log(batch.high_s / batch.low_s)[0]) / 2.0
    after: dict[SingleMeasurement, float] = {
        "host": half_log * math.sqrt(1.0 - shares["host"]),
        "network": half_log * math.sqrt(1.0 - shares["network"]),
        "exchange": half_log * math.sqrt(1.0 - shares["exchange"]),
        "step": min(calibration.intervals.pair_error[kind_names(x)[0]], half_log),
    }
    halving = [name for name in MEASUREMENTS if after[name] <= half_log / 2.0]
    measurement = halving[0] if halving else min(MEASUREMENTS, key=lambda name: after[name])
    fabric = crossed_fabric(scenario.cluster)
    known, (framework, generation) = calibration.residual.runs.names, (keys.framework[0], keys.generation[0])
    never = ""
    if framework in calibration.residual.swept:
        never = ""
    elif framework not in known[:, 0]:
        never = framework
    elif not np.any((known[:, 0] == framework) & (known[:, 1] == generation)):
        never = f"{framework} on {generation}"
    elif fabric and (framework, fabric) not in zip(known[:, 0], calibration.residual.fabrics, strict=True):
        never = f"{framework} on {FABRIC_NAMES[fabric]}"
    near = calibration.residual.nearest(x, keys)
    return Basis(
        half_width=math.expm1(half_log),
        cause=cause,
        cause_share=shares[cause],
        nearest_run=near.id,
        differences=near.differences,
        nearest_error=near.error,
        correction=math.expm1(float(correction.log_factor[0])),
        calibrated_by=cluster.title if cluster else "",
        own_correction=math.expm1(whole - float(correction.log_factor[0])),
        runs=tuple(runs),
        crash_alike=crash.title if crash else "",
        findings=cluster.findings if cluster else (),
        never_measured=never,
        measurement=measurement,
        half_width_after=math.expm1(after[measurement]),
    )


class ExplainedPrediction(Prediction):
    """The prediction of a single scenario, with what it stands on."""

    basis: Basis
    assumed: tuple[AssumedSetting, ...]
    """What the scenario's training leaves open and the framework or its recipe sets."""


def explained(scenario: Scenario, calibration: Calibration | None = None) -> ExplainedPrediction:
    """The prediction of a scenario with a plan, and what it stands on."""
    return ExplainedPrediction(
        **dict(predict([scenario], calibration)[0]),
        basis=basis_of(scenario, calibration),
        assumed=tuple(AssumedSetting(**each._asdict()) for each in assumed_settings(scenario)),
    )
