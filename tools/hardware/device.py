"""One accelerator in base units: bytes, bytes per second, flop per second, seconds.

Every rate of a link is one direction, every peak is dense (no structured sparsity).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


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

    intra_node_bytes_per_s: float
    intra_node_latency_s: float
    fast_domain_devices: int
    """How many devices one scale-up domain (NVLink, Infinity Fabric, torus) joins."""
    devices_per_node: int
    inter_node_bytes_per_s: float
    inter_node_latency_s: float
    torus_dimensions: int
    """0 where the scale-up domain is switched or fully connected."""

    collectives: Collectives = Collectives()
    peak_flops: Mapping[str, float] = field(hash=False)
    """By precision; a precision that the hardware lacks is absent."""
    sources: Mapping[str, str] = field(hash=False)
    """By key of the data file; the peaks as `peak_tflops.bf16`."""
