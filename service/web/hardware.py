"""/hardware: the device catalogue, every figure with its source."""

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.api.deps import Reader
from service.errors import NotFoundError
from service.web.rendering import PageRoute, page
from tools.cost.memory import GIB
from tools.errors import InputError
from tools.hardware import Device, device_names, get_device
from tools.hardware.device import FIGURES, Figure, in_file_units, peak_key

NAMES = {
    "intra_node": "link inside the node",
    "inter_node": "link between nodes",
    "intra_node_latency": "latency inside the node",
    "inter_node_latency": "latency between nodes",
    "tera_exponentials_per_s": "exponentials",
    "power_w": "power",
    "tile_m": "tile height",
    "tile_n": "tile width",
    "fast_domain_devices": "devices joined by fast links",
}
"""Of figures whose key in the data file does not read well."""


@dataclass(frozen=True)
class DeviceLine:
    device: Device

    @property
    def memory_gib(self) -> str:
        return f"{self.device.memory_bytes / GIB:.0f}"

    @property
    def bandwidth_gb_per_s(self) -> str:
        return _gigabytes(self.device.memory_bandwidth_bytes_per_s)

    @property
    def peak(self) -> str:
        peak = self.device.peak_flops.get("bf16")
        return "none" if peak is None else f"{peak / 1e12:,.0f}" if peak >= 1e13 else f"{peak / 1e12:.2g}"

    @property
    def links_gb_per_s(self) -> tuple[str, str]:
        device = self.device
        return _gigabytes(device.intra_node_bytes_per_s), _gigabytes(device.inter_node_bytes_per_s)


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:,.0f}" if count >= 1e11 else f"{count / 1e9:.3g}"


@dataclass(frozen=True)
class Fact:
    name: str
    value: str
    source: str


def device_lines() -> list[DeviceLine]:
    return [DeviceLine(get_device(name)) for name in device_names()]


def facts_of(device: Device) -> list[Fact]:
    """Every figure, the peaks last."""
    own = [Fact(_name(f.key), _value(device, f), device.sources.get(f.key, "")) for f in FIGURES]
    return [*own, *_peaks(device)]


def _peaks(device: Device) -> list[Fact]:
    sources: Mapping[str, str] = device.sources
    return [
        Fact(f"peak, {precision}", f"{flops / 1e12:,.4g} TFLOP/s", _peak_source(sources, precision))
        for precision, flops in device.peak_flops.items()
    ]


def _peak_source(sources: Mapping[str, str], precision: str) -> str:
    return sources.get(peak_key(precision)) or sources.get("peak_tflops", "")


def _value(device: Device, figure: Figure) -> str:
    return f"{in_file_units(device, figure):,.6g} {figure.unit}"


def _name(key: str) -> str:
    """Without the unit, which is shown with the value."""
    for unit in ("_gbytes_per_s_per_device", "_gbytes_per_s", "_gbps_per_device", "_gib", "_us"):
        key = key.removesuffix(unit)
    return NAMES.get(key, key.replace("_", " "))


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
