"""What a framework's own code does that changes the speed of a plan: the table `[speed]` of
`kb_seed/frameworks/NAME.toml`.

Not fitted: each is a documented default of the framework, with its source beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tools.errors import DataError
from tools.hardware import Device
from tools.scenario.frameworks import framework_table
from tools.scenario.spec import TrainingSpec

ByPrecision = float | Mapping[str, float]
FUSED_DISPATCHERS = frozenset({"deepep", "hybridep"})


@dataclass(frozen=True, slots=True)
class Traits:
    """Months are those of `training.software_date`; "" if it was always so."""

    gradient_bytes: ByPrecision
    """Of the gradient that micro-batches are added up in on each rank; 0: none is kept."""
    reduced_bytes: ByPrecision
    """Of a gradient on its way to the other data ranks."""
    attention_kernel: str
    """vendor: the newest of the device's vendor; fa2: FlashAttention-2, written for Ampere."""
    selective_share: float
    """Share of a layer's forward pass that selective recomputation repeats; 0: the attention core alone."""
    recompute_stops_early: bool = False
    """Recomputation ends once backward has what it needs, so a layer's last product is not repeated."""
    scatters_pipeline: bool = False
    """A stage sends the hidden state scattered over its tensor ranks."""
    flat_from_stage: int = 4
    """ZeRO stage from which parameters go one by one over rings that know no nodes; 4: never."""
    messages_per_layer: float = 1.0
    """In which a layer's parameters or gradients are sent when ZeRO shards them; otherwise one."""
    overlaps_tensor: bool = False
    """Tensor-parallel messages are cut up and run beside the products they belong to."""
    overlaps_data: bool = True
    """Gradients are reduced during the backward pass, parameters gathered during the forward pass."""
    fuses_loss: bool = False
    """The cross-entropy is one kernel each way."""
    overlap_since: str = ""
    fused_dispatch_since: str | None = None
    """From when on recipes dispatch tokens with fused kernels (DeepEP, HybridEP); None: never."""
    moe_graph_since: str | None = None
    """From when on recipes run mixtures of experts as CUDA graphs, on `moe_graph_devices`; None: never."""
    moe_graph_devices: tuple[str, ...] = ()
    kernels_per_layer: float = 60.0
    """Launches of a layer, forward and backward, counted in eager profiles of Megatron and FSDP."""
    tensor_kernels: float = 0.0
    """Further launches of a layer with tensor parallelism, as kernels of the usual length."""
    pipelined_tensor_kernels: float = 0.0
    """With pipeline stages too: for each tensor rank, if that is more."""

    def gradient(self, precision: str) -> float:
        return _by_precision(self.gradient_bytes, precision)

    def reduced(self, precision: str) -> float:
        return 4.0 if precision == "fp32" else _by_precision(self.reduced_bytes, precision)

    def overlaps(self, t: TrainingSpec) -> bool:
        """Whether the release overlaps communication at all; without a date, fused attention dates it."""
        if not self.overlap_since:
            return True
        return t.software_date >= self.overlap_since if t.software_date else t.flash_attention

    def overlaps_tensor_traffic(self, t: TrainingSpec) -> bool:
        stated = t.overlap_tensor_communication
        return self.overlaps_tensor and self.overlaps(t) if stated is None else stated

    def overlaps_data_traffic(self, t: TrainingSpec) -> bool:
        stated = t.overlap_gradient_communication
        return self.overlaps_data and self.overlaps(t) if stated is None else stated

    def dispatcher(self, t: TrainingSpec) -> str:
        if t.moe_dispatcher:
            return t.moe_dispatcher
        return "hybridep" if _is_since(t, self.fused_dispatch_since) else "alltoall"

    def has_fused_loss(self, t: TrainingSpec) -> bool:
        return self.fuses_loss if t.fused_loss is None else t.fused_loss

    def has_cuda_graph(self, t: TrainingSpec, device: Device, is_moe: bool) -> bool:
        if t.cuda_graph is not None:
            return t.cuda_graph
        return is_moe and device.name in self.moe_graph_devices and _is_since(t, self.moe_graph_since)


def _is_since(t: TrainingSpec, month: str | None) -> bool:
    """Whether the software is as new as that; the newest is assumed where no date is stated."""
    return month is not None and (t.software_date is None or t.software_date >= month)


def _by_precision(value: ByPrecision, precision: str) -> float:
    if isinstance(value, Mapping):
        return value.get(precision, value["default"])
    return value


@cache
def framework_traits(name: str) -> Traits:
    try:
        table = framework_table(name)["speed"]
        return Traits(**{**table, "moe_graph_devices": tuple(table.get("moe_graph_devices", ()))})
    except (KeyError, TypeError) as error:
        raise DataError(f"kb_seed/frameworks/{name}.toml: bad table speed: {error}") from error
