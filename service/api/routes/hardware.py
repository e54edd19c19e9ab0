"""/v1/hardware: the device catalogue."""

from typing import Any

from fastapi import APIRouter

from service.api.dependencies import Reader
from service.api.strict_route import StrictRoute
from service.errors import NotFoundError
from tools.errors import InputError
from tools.hardware import describe, device_names, get_device

router = APIRouter(prefix="/v1/hardware", tags=["hardware"], route_class=StrictRoute)


@router.get("", summary="Every device that ASAP knows")
def list_hardware(caller: Reader) -> list[dict[str, Any]]:
    described = [describe(get_device(name)) for name in device_names()]
    return [{name: value for name, value in one.items() if name != "sources"} for one in described]


@router.get("/{name}", summary="One device, with the source of every figure")
def get_hardware(name: str, caller: Reader) -> dict[str, Any]:
    try:
        return dict(describe(get_device(name)))
    except InputError:
        raise NotFoundError("device", name) from None
