"""What a probe is to measure and what it measured, as `probe.json` holds it.

Standard library only: it is read on nodes that have PyTorch and nothing else.
"""

from dataclasses import dataclass, field

FORMAT = "asap-probe-1"
RESULT = "probe.json"
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class ProbeSettings:
    """The same for every rank."""

    device: str
    """A name of the hardware catalogue."""
    precisions: tuple[str, ...]
    products: tuple[tuple[int, int, int], ...]
    """Shapes (m, n, k) of matrix products."""
    seconds: float = 60.0
    """About how long everything takes."""
    max_bytes: int = 256 * 2**20
    """Limit for a message; a copy takes four times as much, which no cache holds."""
    anyway: bool = False
    """Measure nodes that are not idle too."""


@dataclass(frozen=True)
class RankFacts:
    rank: int
    host: str
    title: str
    """What the device calls itself."""
    copy_bytes_per_s: float
    """Read and written, of a copy in the device's memory."""
    launch_s: float
    """Host time to launch one small kernel."""


@dataclass(frozen=True)
class Product:
    rank: int
    precision: str
    m: int
    n: int
    k: int
    seconds: float

    @property
    def flops_per_s(self) -> float:
        return 2.0 * self.m * self.n * self.k / self.seconds


@dataclass(frozen=True)
class Collective:
    group: str
    """tp: some ranks of a node; node: all of them; network: one rank of every node; all: all ranks."""
    size: int
    kind: str
    message_bytes: int
    """The whole message: what an all-gather leaves, what a reduce-scatter and an all-to-all take."""
    seconds: float
    """The slowest rank's median."""

    @property
    def bus_bytes_per_s(self) -> float:
        """What a link must carry, as nccl-tests count it (doc/PERFORMANCE.md): comparable for all kinds."""
        passes = 2.0 if self.kind == "all_reduce" else 1.0
        return passes * self.message_bytes * (self.size - 1) / self.size / self.seconds


@dataclass(frozen=True)
class Link:
    """Between two ranks of a node, or between two nodes with all their ranks at once."""

    first: int
    second: int
    """Ranks; the nodes' first ranks if it crosses nodes."""
    crosses: bool
    latency_s: float
    """One way, of a small message."""
    bytes_per_s: float
    """One way; of all ranks of a node together."""


@dataclass(frozen=True)
class Probe:
    settings: ProbeSettings
    devices_per_node: int
    backend: str
    ranks: tuple[RankFacts, ...]
    products: tuple[Product, ...]
    collectives: tuple[Collective, ...]
    links: tuple[Link, ...]
    took_s: float
    unavailable: tuple[str, ...] = ()
    """What could not be measured, and why."""
    busy: tuple[str, ...] = ()
    """What else ran on the nodes before; then nothing is measured, unless it was to be anyway."""
    format: str = field(default=FORMAT)

    @property
    def nodes(self) -> int:
        return len(self.ranks) // self.devices_per_node
