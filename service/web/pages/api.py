"""/docs: the OpenAPI document for readers; programs take /openapi.json."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.api.dependencies import Reader
from service.api.openapi import describe
from service.web.error_pages import PageRoute
from service.web.rendering import page
from service.web.views.api import subjects_of

router = APIRouter(prefix="/docs", route_class=PageRoute)


@router.get("")
def show(request: Request, caller: Reader) -> Response:
    document = describe(request.app)
    return page(request, "api", caller, about=document["info"]["description"], subjects=subjects_of(document))
