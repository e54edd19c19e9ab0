"""/v1/predict: step time, memory and bottleneck of one plan or up to a thousand, without a session."""

from typing import Annotated, Any

from fastapi import APIRouter, Body
from fastapi.responses import JSONResponse

from service.api.dependencies import Reader
from service.api.schemas.predictions import PredictionPublic, RefusalPublic
from service.api.schemas.scenario import EXAMPLE, ScenarioCreate
from service.api.strict_route import StrictRoute
from tools.cost.predict import predict
from tools.errors import InputError
from tools.scenario import Scenario, parse_scenario

MOST_SCENARIOS = 1000

router = APIRouter(prefix="/v1/predict", tags=["predict"], route_class=StrictRoute)

Batch = Annotated[
    list[dict[str, Any]],
    Body(min_length=1, max_length=MOST_SCENARIOS, openapi_examples={"two": {"value": [EXAMPLE, EXAMPLE]}}),
]
Answer = PredictionPublic | RefusalPublic


@router.post("", summary="Predict a scenario with a plan", response_model=PredictionPublic)
def predict_one(scenario: ScenarioCreate, caller: Reader) -> JSONResponse:
    return JSONResponse(predict([parse_scenario(scenario.body())])[0])


@router.post("/batch", summary="Predict up to 1,000 scenarios", response_model=list[Answer])
def predict_many(scenarios: Batch, caller: Reader) -> JSONResponse:
    """In order; a scenario that is wrong gets its error in its place, and the others are predicted."""
    outcomes = [_parsed(one) for one in scenarios]
    found = iter(predict([one for one in outcomes if isinstance(one, Scenario)]))
    # Answered as they are: checking a thousand against their schema would take longer than predicting them.
    return JSONResponse(
        [
            next(found) if isinstance(one, Scenario) else _refusal(given, one)
            for given, one in zip(scenarios, outcomes, strict=True)
        ]
    )


def _parsed(given: dict[str, Any]) -> Scenario | InputError:
    try:
        return parse_scenario(given)
    except InputError as error:
        return error


def _refusal(given: dict[str, Any], error: InputError) -> dict[str, Any]:
    own = given.get("id")
    id = own if isinstance(own, str | int | float) else None
    return {"id": id, "error": str(error), "field": error.field}
