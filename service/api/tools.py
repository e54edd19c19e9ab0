"""Predictions, plan searches, explanations and the hardware catalogue, outside sessions."""

from typing import Annotated, Any

from fastapi import APIRouter, Body
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from service.api.deps import INSTEAD, AppDep, Progress, Reader, StrictRoute, Submitter, run_bounded_search
from service.api.sessions import PlanFields
from service.errors import NotFoundError
from service.schemas import EXAMPLE, ScenarioCreate, SearchCreate
from service.strict_json import JsonObject
from tools.cost.predict import Prediction, predict
from tools.errors import InputError
from tools.hardware import describe, device_names, get_device
from tools.recommend.optimize import best_plans, optimize, workload_of
from tools.recommend.report import Recommendation
from tools.recommend.score import complete
from tools.recommend.why_not import explain_plan
from tools.scenario import Scenario, parse_scenario


class RefusalPublic(BaseModel):
    """In the place of a prediction, for a scenario of a batch that is wrong."""

    id: Any = None
    error: str
    field: str


MAX_SCENARIOS = 1000

router = APIRouter(prefix="/v1/predict", tags=["predict"], route_class=StrictRoute)

Batch = Annotated[
    list[JsonObject],
    Body(min_length=1, max_length=MAX_SCENARIOS, openapi_examples={"two": {"value": [EXAMPLE, EXAMPLE]}}),
]
Answer = Prediction | RefusalPublic


@router.post("", summary="Predict a scenario with a plan", response_model=Prediction)
def predict_one(scenario: ScenarioCreate, caller: Reader) -> JSONResponse:
    return JSONResponse(predict([parse_scenario(scenario.body())])[0].model_dump())


@router.post("/batch", summary="Predict up to 1,000 scenarios", response_model=list[Answer])
def predict_many(scenarios: Batch, caller: Reader) -> JSONResponse:
    """In order; a scenario that is wrong gets its error in its place, and the others are predicted."""
    outcomes = [_parse(body) for body in scenarios]
    predictions = iter(predict([outcome for outcome in outcomes if isinstance(outcome, Scenario)]))
    # Answered as they are: checking a thousand against their schema would take longer than predicting them.
    return JSONResponse(
        [
            next(predictions).model_dump() if isinstance(outcome, Scenario) else _refusal(body, outcome)
            for body, outcome in zip(scenarios, outcomes, strict=True)
        ]
    )


def _parse(body: JsonObject) -> Scenario | InputError:
    try:
        return parse_scenario(body)
    except InputError as error:
        return error


def _refusal(body: JsonObject, error: InputError) -> JsonObject:
    stated = body.get("id")
    id = stated if isinstance(stated, str | int | float) else None
    return {"id": id, "error": str(error), "field": error.field}


class ExplainCreate(BaseModel):
    """A workload, and the plan in question."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"scenario": EXAMPLE, "plan": {"tp": 2}}]}
    )

    scenario: SearchCreate
    plan: PlanFields = Field(description="the fields that differ from the best plan; dp follows by itself")


class ExplanationPublic(BaseModel):
    """What speaks against a plan."""

    model_config = ConfigDict(extra="allow")

    winner: JsonObject = Field(description="the plan that ASAP proposes first")
    summary: str
    binding: str = Field(description="rule, memory, time, constraint, or none")
    why: str


MAX_DEVICES = 2048

plans_router = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=StrictRoute)


@plans_router.post("/search", summary="Search every legal plan now", response_model=Recommendation)
def search_plans(request: SearchCreate, app: AppDep, caller: Submitter) -> JsonObject:
    """What `asap optimize` gives, by search and rules alone."""
    scenario = _small(request)
    return run_bounded_search(app, lambda progress: optimize(scenario, progress).model_dump(mode="json"))


@plans_router.post("/explain", summary="Say what speaks against a plan", response_model=ExplanationPublic)
def explain(question: ExplainCreate, app: AppDep, caller: Submitter) -> JsonObject:
    """The rule it breaks, the memory it lacks, or the term that makes it slower."""
    if not isinstance(question.plan, dict):
        raise InputError("plan", question.plan, "allowed: an object with fields of a plan")
    scenario, plan = _small(question.scenario), dict(question.plan)
    return run_bounded_search(app, lambda progress: _explain(scenario, plan, progress))


def _explain(scenario: Scenario, fields: JsonObject, progress: Progress) -> JsonObject:
    workload = workload_of(scenario)
    winner = best_plans(workload, progress)[0][0]
    return {
        "winner": winner.model_dump(),
        **explain_plan(workload, complete(workload, winner, fields), winner).model_dump(),
    }


def _small(request: SearchCreate) -> Scenario:
    scenario = parse_scenario(request.body(), need_plan=False)
    if scenario.traces is not None:
        raise InputError("traces", scenario.traces, f"not read here; {INSTEAD}")
    devices = scenario.cluster.num_devices
    if devices > MAX_DEVICES:
        raise InputError("cluster.num_devices", devices, f"at most {MAX_DEVICES} here; {INSTEAD}")
    return scenario


hardware_router = APIRouter(prefix="/v1/hardware", tags=["hardware"], route_class=StrictRoute)


@hardware_router.get("", summary="Every device that ASAP knows")
def list_hardware(caller: Reader) -> list[JsonObject]:
    described = [describe(get_device(name)) for name in device_names()]
    return [{name: value for name, value in device.items() if name != "sources"} for device in described]


@hardware_router.get("/{name}", summary="One device, with the source of every figure")
def get_hardware(name: str, caller: Reader) -> JsonObject:
    try:
        return dict(describe(get_device(name)))
    except InputError:
        raise NotFoundError("device", name) from None
