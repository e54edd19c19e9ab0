"""/accuracy: predicted against measured, of the published runs and of this installation's own trials."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.api.dependencies import PartsOf, Reader
from service.api.parts import Parts
from service.auth.caller import Caller
from service.errors import NotFoundError
from service.web.error_pages import PageRoute
from service.web.figure_answer import figure_answer
from service.web.figures.accuracy import accuracy_figure
from service.web.rendering import page
from service.web.validation import find_validation
from service.web.views.accuracy import Trial, median_error, trials_of, trust_of

router = APIRouter(prefix="/accuracy", route_class=PageRoute)


@router.get("")
def show(request: Request, parts: PartsOf, caller: Reader) -> Response:
    trials, validation = _trials(parts, caller), find_validation()
    return page(
        request,
        "accuracy",
        caller,
        sections=validation.sections if validation else [],
        pairs=len(validation.pairs) if validation else 0,
        trials=trials,
        median=median_error(trials),
        trust=trust_of(validation),
    )


@router.get("/figure")
def get_figure(request: Request, parts: PartsOf, caller: Reader) -> Response:
    validation = find_validation()
    pairs = [*(validation.pairs if validation else []), *(one.pair for one in _trials(parts, caller))]
    if not pairs:
        raise NotFoundError("measurement for", "a figure")
    return figure_answer(request, accuracy_figure(pairs))


def _trials(parts: Parts, caller: Caller) -> list[Trial]:
    return trials_of(parts.knowledge.get().entries("case", None, caller.knowledge_tenant))
