"""The figures of a device: their keys in the data files, their units, what values make sense.

The one place where the units of the data files (GiB, GB/s, Gbit/s, TFLOP/s, microseconds) become base
units and, for printing, turn back.
"""

from dataclasses import asdict, dataclass
from typing import Any

from tools.hardware.device import Collectives, Device

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8")
PEAK_KEY = "peak_tflops"
FLOPS_PER_TFLOPS = 1e12


@dataclass(frozen=True, slots=True)
class Figure:
    """One key of a data file and the field of `Device` that it fills."""

    key: str
    field: str
    unit: str
    base_per_unit: float = 1
    integral: bool = False
    lowest: float = 0
    """Exclusive for a measured quantity, inclusive for a count."""
    highest: float = float("inf")


def _count(key: str, unit: str, lowest: int = 1, highest: float = float("inf")) -> Figure:
    return Figure(key, key, unit, integral=True, lowest=lowest, highest=highest)


FIGURES = (
    Figure("memory_gib", "memory_bytes", "GiB", 2**30),
    Figure("memory_bandwidth_gbytes_per_s", "memory_bandwidth_bytes_per_s", "GB/s", 1e9),
    _count("compute_units", "units"),
    _count("tile_m", "rows"),
    _count("tile_n", "columns"),
    Figure("launch_overhead_us", "launch_overhead_s", "µs", 1e-6),
    Figure("intra_node_gbytes_per_s_per_device", "intra_node_bytes_per_s", "GB/s", 1e9),
    Figure("intra_node_latency_us", "intra_node_latency_s", "µs", 1e-6),
    _count("fast_domain_devices", "devices"),
    _count("devices_per_node", "devices"),
    Figure("inter_node_gbps_per_device", "inter_node_bytes_per_s", "Gbit/s", 1e9 / 8),
    Figure("inter_node_latency_us", "inter_node_latency_s", "µs", 1e-6),
    _count("torus_dimensions", "dimensions", lowest=0, highest=3),
)
FIGURE_BY_KEY = {figure.key: figure for figure in FIGURES}


def peak_key(precision: str) -> str:
    """The dotted key by which overrides and sources name one peak."""
    return f"{PEAK_KEY}.{precision}"


def to_base(figure: Figure, value: float) -> float:
    """A checked value of the data file in base units; counts stay whole."""
    return int(value) if figure.integral else value * figure.base_per_unit


def in_file_units(device: Device, figure: Figure) -> float:
    """The figure as the data file (or the override) wrote it."""
    value: float = getattr(device, figure.field)
    # Twelve digits hide what the way to base units and back does to the last bits.
    return value if figure.integral else float(f"{value / figure.base_per_unit:.12g}")


def describe(device: Device) -> dict[str, Any]:
    """The device in the shape of its data file: keys with units, as `cluster.overrides` takes them."""
    peaks = {name: float(f"{peak / FLOPS_PER_TFLOPS:.12g}") for name, peak in device.peak_flops.items()}
    return {
        "name": device.name,
        "title": device.title,
        "vendor": device.vendor,
        "generation": device.generation,
        "aliases": list(device.aliases),
        **{figure.key: in_file_units(device, figure) for figure in FIGURES},
        **({} if device.collectives == Collectives() else {"collectives": asdict(device.collectives)}),
        PEAK_KEY: peaks,
        "sources": dict(device.sources),
    }
