"""/hardware: the device catalogue, every figure with its source."""

from typing import NamedTuple

from fastapi import APIRouter, Response

from service.errors import NotFoundError
from service.web.errors import PageRoute
from service.web.rendering import ReaderPage
from tools.errors import InputError
from tools.hardware import Device, device_names, get_device
from tools.hardware.catalogue import FIGURES, in_file_units
from tools.hardware.device import peak_key
from tools.physics.memory import GIB

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
"""Figures whose key in the data file does not read well."""
UNITS = ("_gbytes_per_s_per_device", "_gbytes_per_s", "_gbps_per_device", "_gib", "_us")

router = APIRouter(prefix="/hardware", route_class=PageRoute)


@router.get("")
def show(page: ReaderPage) -> Response:
    return page("hardware", lines=[_line(get_device(name)) for name in device_names()])


@router.get("/{name}")
def show_device(name: str, page: ReaderPage) -> Response:
    try:
        device = get_device(name)
    except InputError:
        raise NotFoundError("device", name) from None
    return page("device", device=device, facts=facts_of(device))


class DeviceLine(NamedTuple):
    device: Device
    memory_gib: str
    bandwidth_gb_per_s: str
    peak: str
    links_gb_per_s: tuple[str, str]


def _line(device: Device) -> DeviceLine:
    def gigabytes(count: float) -> str:
        return f"{count / 1e9:,.0f}" if count >= 1e11 else f"{count / 1e9:.3g}"

    peak = device.peak_flops.get("bf16")
    shown = "none" if peak is None else f"{peak / 1e12:,.0f}" if peak >= 1e13 else f"{peak / 1e12:.2g}"
    links = gigabytes(device.intra_node_bytes_per_s), gigabytes(device.inter_node_bytes_per_s)
    memory_gib, rate = f"{device.memory_bytes / GIB:.0f}", gigabytes(device.memory_bandwidth_bytes_per_s)
    return DeviceLine(device, memory_gib, rate, shown, links)


class DeviceFigure(NamedTuple):
    name: str
    value: str
    source: str


def facts_of(device: Device) -> list[DeviceFigure]:
    """Every figure, the peaks last."""
    facts = []
    for figure in FIGURES:
        name = figure.key
        for unit in UNITS:  # shown with the value
            name = name.removesuffix(unit)
        value = f"{in_file_units(device, figure):,.6g} {figure.unit}"
        source = device.sources.get(figure.key, "")
        facts.append(DeviceFigure(NAMES.get(name, name.replace("_", " ")), value, source))
    for precision, flops in device.peak_flops.items():
        source = device.sources.get(peak_key(precision)) or device.sources.get("peak_tflops", "")
        facts.append(DeviceFigure(f"peak, {precision}", f"{flops / 1e12:,.4g} TFLOP/s", source))
    return facts
