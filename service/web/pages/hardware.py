"""/hardware: the devices that ASAP knows, every figure with its source."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.api.dependencies import Reader
from service.errors import NotFoundError
from service.web.error_pages import PageRoute
from service.web.rendering import page
from service.web.views.hardware import device_lines, facts_of
from tools.errors import InputError
from tools.hardware import get_device

router = APIRouter(prefix="/hardware", route_class=PageRoute)


@router.get("")
def show(request: Request, caller: Reader) -> Response:
    return page(request, "hardware", caller, lines=device_lines())


@router.get("/{name}")
def show_device(name: str, request: Request, caller: Reader) -> Response:
    try:
        device = get_device(name)
    except InputError:
        raise NotFoundError("device", name) from None
    return page(request, "device", caller, device=device, facts=facts_of(device))
