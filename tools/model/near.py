"""The measured runs most like a scenario (`likeness`), what differs, and what the formulas say of each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tools.model.calibration import shipped_calibration
from tools.model.likeness import DEGREES, Traits, distances
from tools.model.predict import Prediction, predict
from tools.model.runs import Run
from tools.physics.encode import encode, encode_plans
from tools.physics.sizes import count_parameters
from tools.scenario import ModelSpec, PlanColumns, Scenario
from tools.scenario.spec import TRAINING_OPTIONS, LoraSpec

LISTED = ("tp", "pp", "vpp", "cp", "ep", "dp", "zero_stage", "micro_batch_size", "recompute")
"""Fields of a plan whose difference is shown."""
NOT_STATED = "not stated"


@dataclass(frozen=True)
class Difference:
    """A field that is not the same in a run and in the scenario that it is compared with."""

    field: str
    theirs: str
    yours: str

    def __str__(self) -> str:
        return f"{self.field}: {self.theirs} -> {self.yours}"

    @property
    def is_stated(self) -> bool:
        """Whether both state it; else the framework's default stands for one of them."""
        return NOT_STATED not in (self.theirs, self.yours)


@dataclass(frozen=True)
class NearRow:
    id: str
    source: str
    distance: float
    measured_step_time_s: float
    predicted_step_time_s: float
    tokens_per_s_per_device: float
    differs: tuple[Difference, ...]


@dataclass(frozen=True)
class NearRun:
    run: Run
    distance: float
    differences: tuple[Difference, ...]
    measured_s: float
    prediction: Prediction
    """The run's own, not the scenario's, by the formulas alone: the residual knows what was measured."""

    @property
    def tokens_per_s_per_device(self) -> float:
        """As measured."""
        return self.prediction.tokens_per_s_per_device * self.prediction.step_time_s / self.measured_s

    @property
    def tflops_per_device(self) -> float:
        """As measured."""
        return self.prediction.model_tflops_per_device * self.prediction.step_time_s / self.measured_s

    @property
    def row(self) -> NearRow:
        """What programs are told about it."""
        run, predicted_s = self.run, self.prediction.step_time_s
        rate = self.tokens_per_s_per_device
        return NearRow(
            run.id, run.source, self.distance, self.measured_s, predicted_s, rate, self.differences
        )


def nearest_runs(scenario: Scenario, runs: Sequence[Run], count: int = 5) -> list[NearRun]:
    """The `count` runs with a step time that are nearest to a scenario, nearest first; it needs no plan."""
    timed = [run for run in runs if run.measured.step_time_s and run.scenario.plan]
    if not timed:
        return []
    calibration = shipped_calibration()
    known = Traits.of(*encode([run.scenario for run in timed]), DEGREES)
    if scenario.plan:
        own = Traits.of(*encode([scenario]), DEGREES)
    else:
        own = Traits.of(*encode_plans(scenario, PlanColumns.of([])))
    apart = distances(calibration.residual.prior.prices, own, known)[0]
    order = np.argsort(apart, kind="stable")[:count]
    chosen = [timed[i] for i in order]
    predictions = predict([run.scenario for run in chosen], calibration.formulas)
    return [
        NearRun(
            run, distance, differences(run.scenario, scenario), run.measured.step_time_s or 0.0, prediction
        )
        for distance, run, prediction in zip(apart[order].tolist(), chosen, predictions, strict=True)
    ]


def model_kind(model: ModelSpec) -> str:
    """dense, MoE, hybrid (layers that are not softmax attention) or hybrid MoE."""
    words = ["hybrid"] * bool(model.num_mixer_layers) + ["MoE"] * model.is_moe
    return " ".join(words) or "dense"


def differences(theirs: Scenario, yours: Scenario, of_plan: Sequence[str] = LISTED) -> tuple[Difference, ...]:
    """In the order of a scenario; of two models the names and sizes, as far as they differ."""
    pairs = [("model", _model_text(theirs.model), _model_text(yours.model))]
    if count_parameters(theirs.model) == count_parameters(yours.model):
        pairs = []
    for part, names in (
        ("cluster", ("device", "num_devices", "fabric")),
        ("training", ("framework", "precision", "seq_len", "global_batch_size", *TRAINING_OPTIONS)),
        ("plan", of_plan if yours.plan else ()),
    ):
        pairs += [
            (name, _text(getattr(getattr(theirs, part), name)), _text(getattr(getattr(yours, part), name)))
            for name in names
        ]
    found = [Difference(*pair) for pair in pairs if pair[1] != pair[2]]
    return tuple(entry for entry in found if entry.field != "fabric" or entry.is_stated)


def _model_text(model: ModelSpec) -> str:
    count = count_parameters(model)
    active = f", {count.active / 1e9:.3g}B active" if count.active != count.total else ""
    return f"{model.name or model_kind(model)} ({count.total / 1e9:.3g}B{active})"


def _text(value: object) -> str:
    match value:
        case None:
            return NOT_STATED
        case bool():
            return "on" if value else "off"
        case int():
            return f"{value:,}"
        case LoraSpec(rank=rank):
            return f"rank {rank}"
        case tuple():
            return ", ".join(map(str, value))
    return str(value)
