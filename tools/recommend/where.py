"""The same training on other clusters: the best plan of each, its time against its cost."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from tools.errors import AsapError
from tools.frameworks.words import parse_devices
from tools.hardware import get_device
from tools.model.calibration import Calibration
from tools.model.predict import Prediction
from tools.recommend.optimize import best_plans, workload_of
from tools.scenario import Plan
from tools.scenario.fields import StrictModel
from tools.scenario.parse import StatedScenario
from tools.scenario.spec import ClosedModel, Fabric, Name, Precision, RunGoal, StatedCluster

FRAMEWORKS = {"google": "maxtext"}
"""By vendor: what trains there if the training's own framework does not."""


class CandidateCluster(StrictModel):
    """A cluster that could be had."""

    devices: Annotated[str, Field(max_length=200, description='such as "64 x H100" or "8 p5.48xlarge"')]
    name: Name | None = None
    price_per_device_hour: float | None = Field(None, gt=0, le=10_000)
    framework: Annotated[str, Field(max_length=60)] | None = None
    precision: Precision | None = None
    fabric: Fabric | None = None


class Place(ClosedModel):
    """What a training would take on a cluster, or why it cannot run there."""

    name: str
    device: str | None = None
    num_devices: int | None = None
    framework: str | None = None
    plan: Plan | None = None
    prediction: Prediction | None = None
    is_on_front: bool = Field(
        False, description="no other is both faster and cheaper (in device-hours unless all have prices)"
    )
    reason: str | None = Field(None, description="why nothing runs there")


def compare_places(
    stated: StatedScenario, candidates: Sequence[CandidateCluster], calibration: Calibration | None = None
) -> list[Place]:
    """Every candidate, the fastest first and those that cannot run it last; the training stays the same."""
    places = []
    for candidate in candidates:
        name = candidate.name or candidate.devices
        try:
            places.append(_on(stated, candidate, name, calibration))
        except AsapError as error:
            places.append(Place(name=name, reason=str(error)))
    places.sort(key=lambda place: _days(place))
    cheapest = float("inf")
    runs = [place.prediction.run for place in places if place.prediction and place.prediction.run]
    has_prices = all(run.cost is not None for run in runs)  # else device-hours, of all of them
    for index, place in enumerate(places):
        if place.prediction and (run := place.prediction.run):
            measure = run.cost if run.cost is not None and has_prices else run.device_hours
            if measure < cheapest:
                cheapest = measure
                places[index] = place.model_copy(update={"is_on_front": True})
    return places


def _on(
    stated: StatedScenario, candidate: CandidateCluster, name: str, calibration: Calibration | None
) -> Place:
    count, device, per_node = parse_devices(candidate.devices, "devices")
    cluster = StatedCluster(
        device=device, num_devices=count, devices_per_node=per_node, fabric=candidate.fabric
    )
    usual = FRAMEWORKS.get(get_device(device).vendor, stated.training.framework)
    training = stated.training.model_copy(
        update={
            "framework": candidate.framework or usual,
            "precision": candidate.precision or stated.training.precision,
        }
    )
    goal = stated.run or RunGoal()
    price = candidate.price_per_device_hour or goal.price_per_device_hour
    run = goal.model_copy(update={"price_per_device_hour": price})
    moved = {"cluster": cluster, "training": training, "run": run, "plan": None, "traces": None}
    workload = workload_of(stated.model_copy(update=moved).resolve(), calibration)
    plan = best_plans(workload)[0][0]
    prediction = workload.predict([plan])[0]
    return Place(
        name=name,
        device=device,
        num_devices=count,
        framework=training.framework,
        plan=plan,
        prediction=prediction,
    )


def _days(place: Place) -> float:
    return place.prediction.run.days if place.prediction and place.prediction.run else float("inf")
