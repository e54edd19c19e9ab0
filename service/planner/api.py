"""Predictions, plan searches, explanations and the hardware catalogue, outside sessions."""

from collections.abc import Sequence
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Body, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from service.clusters.usecases import calibration_of
from service.errors import NotFoundError
from service.http.auth import Reader, Submitter
from service.http.deps import AppDep
from service.http.limits import INSTEAD
from service.http.strict import StrictRoute
from service.strict_json import JsonObject
from tools.errors import InputError
from tools.frameworks.words import parse_devices
from tools.hardware import describe, device_names, get_device
from tools.model.basis import ExplainedPrediction, explained
from tools.model.predict import Prediction, predict
from tools.model.published import published_runs
from tools.recommend.against import NEAR, RunComparison, choose_run, compare_with_run
from tools.recommend.optimize import explain_against_best, optimize, workload_of
from tools.recommend.report import ExplainedPlan, PlanFields, Recommendation
from tools.recommend.where import CandidateCluster, Place, compare_places
from tools.scenario import Plan, Scenario, parse_scenario
from tools.scenario.parse import EXAMPLE, StatedScenario
from tools.search.search import Progress

MAX_SCENARIOS = 1000
MAX_DEVICES = 2048
MAX_CLUSTERS = 50
MAX_WHERE_DEVICES = 16_384

router = APIRouter(prefix="/v1/predict", tags=["predict"], route_class=StrictRoute)
plans_router = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=StrictRoute)
hardware_router = APIRouter(prefix="/v1/hardware", tags=["hardware"], route_class=StrictRoute)

ScenarioBatch = Annotated[
    list[JsonObject],
    Body(min_length=1, max_length=MAX_SCENARIOS, openapi_examples={"two": {"value": [EXAMPLE, EXAMPLE]}}),
]


class RefusalPublic(BaseModel):
    """In the place of a prediction, for a scenario of a batch that is wrong."""

    id: str | int | float | None = None
    error: str
    field: str


class ExplainCreate(BaseModel):
    """A workload, and the plan in question."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"scenario": EXAMPLE, "plan": {"tp": 2}}]}
    )

    scenario: StatedScenario
    plan: Annotated[PlanFields, WithJsonSchema({**Plan.model_json_schema(), "required": []})] = Field(
        description="the fields that differ from the best plan; dp follows by itself"
    )


class AgainstCreate(BaseModel):
    """A job with its plan, and the measured run it is compared with."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"scenario": EXAMPLE, "measured_step_s": 30.5}]}
    )

    scenario: StatedScenario
    against: str = Field(NEAR, max_length=200, description=f"the id of a published run, or {NEAR!r}")
    measured_step_s: float | None = Field(None, gt=0, lt=1e9, description="of the job; absent: predicted")


class WhereCreate(BaseModel):
    """A training, and the clusters that could run it."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "scenario": {**EXAMPLE, "run": {"tokens": 15 * 10**12}},
                    "clusters": [{"devices": "512 x H100", "price_per_device_hour": 2.5}],
                }
            ]
        },
    )

    scenario: StatedScenario
    clusters: list[CandidateCluster] = Field(min_length=1, max_length=MAX_CLUSTERS)


@router.post("", summary="Predict a scenario with a plan")
def predict_one(stated: StatedScenario, app: AppDep, caller: Reader) -> ExplainedPrediction:
    """With the runs that were reported of the cluster that it names, and what the prediction stands on."""
    scenario = stated.resolve(need_plan=True)
    return explained(scenario, calibration_of(app.database, caller.tenant, scenario.cluster.name))


def _predicted(scenarios: Sequence[Scenario], app: AppDep, caller: Reader) -> list[Prediction]:
    """In order, each by what is known of its cluster."""
    by_name: dict[str | None, list[int]] = {}
    for place, scenario in enumerate(scenarios):
        by_name.setdefault(scenario.cluster.name, []).append(place)
    made: dict[int, Prediction] = {}
    for name, places in by_name.items():
        calibration = calibration_of(app.database, caller.tenant, name)
        found = predict([scenarios[place] for place in places], calibration)
        made.update(zip(places, found, strict=True))
    return [made[place] for place in range(len(scenarios))]


@router.post(
    "/batch", summary="Predict up to 1,000 scenarios", response_model=list[Prediction | RefusalPublic]
)
def predict_many(scenarios: ScenarioBatch, app: AppDep, caller: Reader) -> JSONResponse:
    """In order; a scenario that is wrong gets its error in its place, and the others are predicted."""
    outcomes: list[Scenario | RefusalPublic] = []
    for body in scenarios:
        try:
            outcomes.append(parse_scenario(body))
        except InputError as error:
            stated = body.get("id")
            id = stated if isinstance(stated, str | int | float) else None
            outcomes.append(RefusalPublic(id=id, error=str(error), field=error.path))
    readable = [outcome for outcome in outcomes if isinstance(outcome, Scenario)]
    predictions = iter(_predicted(readable, app, caller))
    answers = [next(predictions) if isinstance(outcome, Scenario) else outcome for outcome in outcomes]
    # Answered as they are: checking a thousand against their schema would take longer than predicting them.
    return JSONResponse([answer.model_dump() for answer in answers])


@plans_router.post("/search", summary="Search every legal plan now")
def search_plans(request: StatedScenario, app: AppDep, caller: Submitter) -> Recommendation:
    """What `asap optimize` gives, by search and rules alone, with the runs reported of the named cluster."""
    scenario = _small(request)
    calibration = calibration_of(app.database, caller.tenant, scenario.cluster.name)
    return app.run_search(lambda progress: optimize(scenario, progress, calibration))


@plans_router.post("/explain", summary="Say what speaks against a plan")
def explain(question: ExplainCreate, app: AppDep, caller: Submitter) -> ExplainedPlan:
    """The rule it breaks, the memory it lacks, or the term that makes it slower."""
    scenario = _small(question.scenario)
    workload = workload_of(scenario, calibration_of(app.database, caller.tenant, scenario.cluster.name))
    return app.run_search(lambda progress: explain_against_best(workload, question.plan, progress))


@plans_router.post("/against", summary="Say why a job is slower than a published run")
def compare_with_published(question: AgainstCreate, app: AppDep, caller: Reader) -> RunComparison:
    """Every setting that differs, each with its predicted price, and what no setting explains."""
    scenario = question.scenario.resolve(need_plan=True)

    def compared(progress: Progress) -> RunComparison:
        run = choose_run(scenario, published_runs(), question.against)
        return compare_with_run(scenario, run, question.measured_step_s)

    return app.run_search(compared)


@plans_router.post("/where", summary="The same training on other clusters: time against cost")
def compare_clusters(question: WhereCreate, app: AppDep, caller: Submitter) -> list[Place]:
    """The best plan of each cluster, the fastest first; the scenario's own cluster and plan do not count."""
    for number, candidate in enumerate(question.clusters):
        devices = parse_devices(candidate.devices, f"clusters[{number}].devices").num_devices
        if devices > MAX_WHERE_DEVICES:
            rule = f"at most {MAX_WHERE_DEVICES} devices here"
            raise InputError(f"clusters[{number}].devices", candidate.devices, rule)
    return app.run_search(lambda progress: compare_places(question.scenario, question.clusters))


def _small(request: StatedScenario) -> Scenario:
    scenario = request.resolve()
    if scenario.traces is not None:
        raise InputError("traces", scenario.traces, f"not read here; {INSTEAD}")
    devices = scenario.cluster.num_devices
    if devices > MAX_DEVICES:
        raise InputError("cluster.num_devices", devices, f"at most {MAX_DEVICES} here; {INSTEAD}")
    return scenario


@hardware_router.get("", summary="Every device that ASAP knows", response_model=list[JsonObject])
def list_hardware(caller: Reader) -> Response:
    return Response(_catalogue(), media_type="application/json")


@cache
def _catalogue() -> bytes:
    """The same for everyone: kept as it is sent."""
    described = [describe(get_device(name)) for name in device_names()]
    shown = [{name: value for name, value in device.items() if name != "sources"} for device in described]
    return bytes(JSONResponse(shown).body)


@hardware_router.get("/{name}", summary="One device, with the source of every figure")
def get_hardware(name: str, caller: Reader) -> JsonObject:
    try:
        return dict(describe(get_device(name)))
    except InputError:
        raise NotFoundError("device", name) from None
