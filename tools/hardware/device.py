"""One accelerator in base units (bytes, bytes/s, flop/s, seconds), and the keys, units and bounds of its
figures.

Every link rate is one direction and every peak is dense (no structured sparsity). The only place that
converts the units of the data files.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from pydantic import JsonValue


@dataclass(frozen=True, slots=True)
class Collectives:
    """How the device's collective library differs from NCCL's rings, which are the default."""

    reduce_scatter_passes: float = 1.0
    """Bytes that a reduce-scatter moves, over those of an all-gather of the same message."""
    is_flat: bool = False
    """Rings and exchanges know no nodes, and all devices of a node send through one network card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What the catalogue knows about one device; `sources` has an entry for every figure."""

    name: str
    title: str
    vendor: str
    generation: str
    """The group that shares calibrated efficiencies."""
    aliases: tuple[str, ...]

    memory_bytes: float
    """What a process can allocate, as the device itself reports it."""
    memory_bandwidth_bytes_per_s: float
    compute_units: int
    """Streaming multiprocessors, compute units, matrix units or cores."""
    tile_m: int
    tile_n: int
    """The output tile that a matrix multiplication is padded to."""
    launch_overhead_s: float
    """The gap between two kernels that were both queued in time."""
    exponentials_per_s: float
    """What the special function units compute, which limits attention at small heads."""

    power_w: float
    """The limit of the board, which the clocks of long matrix products obey."""

    intra_node_bytes_per_s: float
    intra_node_latency_s: float
    fast_domain_devices: int
    """How many devices one scale-up domain (NVLink, Infinity Fabric, torus) joins."""
    devices_per_node: int
    inter_node_bytes_per_s: float
    inter_node_latency_s: float
    torus_dimensions: int
    """0 if the scale-up domain is switched or fully connected."""

    collectives: Collectives = Collectives()
    peak_flops: Mapping[str, float] = field(hash=False)
    """By precision; a precision that the hardware lacks is absent."""
    sources: Mapping[str, str] = field(hash=False)
    """By key of the data file; the peaks as `peak_tflops.bf16`."""

    @property
    def is_systolic(self) -> bool:
        """Matrix units compute whole tiles of weights (TPU, Trainium)."""
        return self.vendor in SYSTOLIC_VENDORS


SYSTOLIC_VENDORS = frozenset({"google", "aws"})


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
    Figure("tera_exponentials_per_s", "exponentials_per_s", "10^12/s", 1e12),
    Figure("power_w", "power_w", "W"),
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


def describe(device: Device) -> "dict[str, JsonValue]":
    """The device in the shape of its data file: keys with units, as `cluster.overrides` takes them."""
    peaks: dict[str, JsonValue] = {
        name: float(f"{peak / FLOPS_PER_TFLOPS:.12g}") for name, peak in device.peak_flops.items()
    }
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


class ValueFault(Exception):
    """What a value must be and is not; never leaves this package."""


def check_figure(figure: Figure, value: object) -> float:
    """The value, once it is known to be one that this figure can have."""
    if not figure.integral:
        return check_amount(value, figure.unit)
    # JSON has one kind of number: 8.0 is a count too. An infinity leaves NaN as its remainder.
    if _is_number(value) and figure.lowest <= value <= figure.highest and value % 1 == 0:
        return value
    limits = f"from {figure.lowest:g} to {figure.highest:g}"
    if math.isinf(figure.highest):
        limits = f"of at least {figure.lowest:g}"
    raise ValueFault(f"must be a whole number of {figure.unit} {limits}")


def check_amount(value: object, unit: str) -> float:
    """The value, once it is known to be finite and above zero."""
    if _is_number(value) and 0 < value < math.inf:
        return value
    raise ValueFault(f"must be a finite number of {unit} above 0")


def _is_number(value: object) -> TypeGuard[float]:
    # bool is an int to Python, and `true` GiB of memory is a mistake.
    return isinstance(value, int | float) and not isinstance(value, bool)
