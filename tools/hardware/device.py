"""One accelerator as its data file describes it, in base units: bytes, bytes/s, flop/s, seconds.

Every link rate is one direction and every peak is dense (no structured sparsity). `Device` is the one model
of a data file: its fields name the keys, units and bounds of the figures, and `figures` derives from them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError, core_schema

Vendor = Literal["nvidia", "amd", "intel", "google", "aws", "cpu"]
VENDORS: tuple[str, ...] = get_args(Vendor)
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8")
PEAK_KEY = "peak_tflops"
FLOPS_PER_TFLOPS = 1e12
FilledText = Annotated[str, Field(min_length=1)]
PrecisionName = Annotated[str, Field(pattern=f"^({'|'.join(PRECISIONS)})$")]


class FigureError(ValueError):
    """A value breaks the rule of its figure; never leaves this package."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Measure:
    """What a figure counts: its unit in the data files, that in base units, and its bounds."""

    unit: str
    base_per_unit: float = 1
    integral: bool = False
    lowest: float = 0
    """Exclusive for a measured quantity, inclusive for a count."""
    highest: float = math.inf

    def check(self, value: object) -> float:
        """The value, if it is one that such a figure can have; raises `FigureError`."""
        if isinstance(value, int | float) and not isinstance(value, bool):  # `true` GiB is a mistake
            # JSON has one kind of number: 8.0 is a count too. An infinity leaves NaN as its remainder.
            is_count = self.lowest <= value <= self.highest and value % 1 == 0
            if is_count if self.integral else 0 < value < math.inf:
                return value
        if not self.integral:
            raise FigureError(f"must be a finite number of {self.unit} above 0")
        is_open = math.isinf(self.highest)
        limits = f"of at least {self.lowest:g}" if is_open else f"from {self.lowest:g} to {self.highest:g}"
        raise FigureError(f"must be a whole number of {self.unit} {limits}")

    def to_base(self, value: float) -> float:
        """A checked value of the data file in base units; counts stay whole."""
        return int(value) if self.integral else value * self.base_per_unit

    def __get_pydantic_core_schema__(self, *_: object) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(lambda value: self.to_base(self.check(value)))


@dataclass(frozen=True, slots=True)
class Figure:
    """A key of the data files and the field of `Device` that it fills."""

    key: str
    field: str
    measure: Measure

    @property
    def unit(self) -> str:
        return self.measure.unit


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Collectives(_Closed):
    """How the device's collective library differs from NCCL's rings, which are the default."""

    reduce_scatter_passes: float = Field(1.0, gt=0)
    """Bytes that a reduce-scatter moves, over those of an all-gather of the same message."""
    is_flat: bool = False
    """Rings and exchanges know no nodes, and all devices of a node send through one network card."""


class DeviceTraits(_Closed):
    """What the cost model knows of a device beside its figures; each that is stated has a source."""

    is_systolic: bool = False
    """Matrix units compute whole tiles of weights (TPU, Trainium)."""
    host_link_gbytes_per_s: float = Field(50.0, gt=0)
    """Between host and device, one direction, as large copies reach it: PCI Express 5 with 16 lanes."""
    fabric: Literal["ib", "roce", "efa", "tcp"] = "ib"
    """What joins the nodes unless a cluster says otherwise."""
    flash_attention_2_share: float = Field(0.55, gt=0, le=1)
    """What FlashAttention-2 reaches of the device's best attention kernel: on Hopper 35-40% of the peak
    against 65-75% (FlashAttention-3, arXiv 2407.08608, abstract and figure 5), assumed for what is newer."""
    sources: Mapping[str, FilledText] = {}

    @model_validator(mode="after")
    def _name_sources(self) -> "DeviceTraits":
        if unsourced := self.model_fields_set - {"sources"} ^ self.sources.keys():
            raise PydanticCustomError(
                "source", "{names} and [traits.sources] differ", {"names": sorted(unsourced)}
            )
        return self


class DeviceHead(BaseModel):
    """What a device is called: the beginning of its data file, before the first table."""

    model_config = ConfigDict(frozen=True)

    name: FilledText
    title: FilledText
    vendor: Vendor
    generation: FilledText
    """The group that shares calibrated efficiencies."""
    aliases: tuple[FilledText, ...]
    reported_as: str | None = None
    """A pattern of what drivers call it, as traces repeat it; no other device's may match the same name."""


class Device(DeviceHead):
    """What the catalogue knows about one device; `sources` has an entry for every figure."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    memory_bytes: Annotated[float, Measure("GiB", 2**30)] = Field(alias="memory_gib")
    """What a process can allocate, as the device itself reports it."""
    memory_bandwidth_bytes_per_s: Annotated[float, Measure("GB/s", 1e9)] = Field(
        alias="memory_bandwidth_gbytes_per_s"
    )
    compute_units: Annotated[int, Measure("units", integral=True, lowest=1)]
    """Streaming multiprocessors, compute units, matrix units or cores."""
    tile_m: Annotated[int, Measure("rows", integral=True, lowest=1)]
    tile_n: Annotated[int, Measure("columns", integral=True, lowest=1)]
    """The output tile that a matrix multiplication is padded to."""
    launch_overhead_s: Annotated[float, Measure("µs", 1e-6)] = Field(alias="launch_overhead_us")
    """The gap between two kernels that were both queued in time."""
    exponentials_per_s: Annotated[float, Measure("10^12/s", 1e12)] = Field(alias="tera_exponentials_per_s")
    """What the special function units compute, which limits attention at small heads."""
    power_w: Annotated[float, Measure("W")]
    """The limit of the board, which the clocks of long matrix products obey."""
    intra_node_bytes_per_s: Annotated[float, Measure("GB/s", 1e9)] = Field(
        alias="intra_node_gbytes_per_s_per_device"
    )
    intra_node_latency_s: Annotated[float, Measure("µs", 1e-6)] = Field(alias="intra_node_latency_us")
    fast_domain_devices: Annotated[int, Measure("devices", integral=True, lowest=1)]
    """How many devices one scale-up domain (NVLink, Infinity Fabric, torus) joins."""
    devices_per_node: Annotated[int, Measure("devices", integral=True, lowest=1)]
    inter_node_bytes_per_s: Annotated[float, Measure("Gbit/s", 1e9 / 8)] = Field(
        alias="inter_node_gbps_per_device"
    )
    inter_node_latency_s: Annotated[float, Measure("µs", 1e-6)] = Field(alias="inter_node_latency_us")
    torus_dimensions: Annotated[int, Measure("dimensions", integral=True, highest=3)]
    """0 if the scale-up domain is switched or fully connected."""

    collectives: Collectives = Collectives()
    traits: DeviceTraits = DeviceTraits()
    peak_flops: Mapping[PrecisionName, Annotated[float, Measure("TFLOP/s", FLOPS_PER_TFLOPS)]] = Field(
        alias=PEAK_KEY, min_length=1
    )
    """By precision; a precision that the hardware lacks is absent."""
    sources: Mapping[str, str]
    """By key of the data file; the peaks as `peak_tflops.bf16`."""

    @classmethod
    @cache
    def figures(cls) -> tuple[Figure, ...]:
        """The keys of a data file that have a unit, in the order of the fields."""
        return tuple(
            Figure(field.alias or name, name, measure)
            for name, field in cls.model_fields.items()
            for measure in field.metadata
            if isinstance(measure, Measure)
        )

    def __hash__(self) -> int:
        return hash((self.name, *(getattr(self, figure.field) for figure in self.figures())))

    @model_validator(mode="after")
    def _order_sources(self) -> "Device":
        """One source for each figure; `peak_tflops` speaks for the peaks that have none of their own."""
        keys = [*(figure.key for figure in self.figures()), *map(peak_key, self.peak_flops)]
        keys += ["collectives"] if "collectives" in self.model_fields_set else []
        every = dict.fromkeys(map(peak_key, self.peak_flops), self.sources.get(PEAK_KEY, ""))
        sources = {key: self.sources.get(key) or every.get(key, "") for key in keys}
        missing = [key for key, source in sources.items() if not source.strip()]
        unknown = sorted(self.sources.keys() - {*keys, PEAK_KEY})
        if missing or unknown:
            problem = (
                f"{', '.join(missing)} has no source" if missing else f"no figure is called {unknown[0]}"
            )
            raise PydanticCustomError("source", "{problem}", {"problem": problem})
        object.__setattr__(self, "sources", sources)
        return self


def peak_key(precision: str) -> str:
    """The dotted key by which overrides and sources name one peak."""
    return f"{PEAK_KEY}.{precision}"
