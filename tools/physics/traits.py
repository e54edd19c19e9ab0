"""What a framework's own code does that changes the speed of a plan: the table `[speed]` of
`kb_seed/frameworks/NAME.toml`.

Not fitted: each is a documented default of the framework, with its source beside it.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import kb_seed
from tools.errors import DataError
from tools.scenario.frameworks import framework_table
from tools.scenario.spec import StateType, TrainingSpec

ByPrecision = float | Mapping[str, float]
CONTEXT_EXCHANGES = ("ring", "gather", "heads")
"""ring: blocks of keys and values go round; gather: all are gathered; heads: ranks exchange tokens for heads
(DeepSpeed-Ulysses, arXiv 2309.14509, section 3)."""
GRADIENT_BYTES: Mapping[str | None, float] = {"fp32": 4.0, "bf16": 2.0}
MOMENTS = 4.0
"""Bytes of Adam's two moments in bf16, and what they take more in fp32; an fp32 master copy stays beside them
(Megatron-Core's precision-aware optimizer, exp_avg_dtype and main_params_dtype)."""
FUSED_DISPATCHERS = frozenset({"deepep", "hybridep"})


@dataclass(frozen=True, slots=True)
class Traits:
    """Months are those of `training.software_date`; "" if it was always so."""

    gradient_bytes: ByPrecision
    """Size of the gradient in which each rank adds up micro-batches; 0: none is kept."""
    reduced_bytes: ByPrecision
    """Size of a gradient on its way to the other data ranks."""
    attention_kernel: str
    """vendor: the newest of the device's vendor; fa2: FlashAttention-2, written for Ampere."""
    selective_share: float
    """Share of a layer's forward pass that selective recomputation repeats; 0: the attention core alone."""
    balances_stages_by_cost: bool = False
    """Layers and the output head are spread over the stages by their cost, not by number; memory knows it."""
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
    reduces_every_micro_batch: bool = False
    """Replicas of hybrid sharding sum their gradients in every micro-batch, not at the step's end."""
    context_exchange: str = "ring"
    """How context parallelism moves keys and values, one of CONTEXT_EXCHANGES."""
    kernels_per_layer: float = 60.0
    """Launches of a layer, forward and backward, counted in eager profiles of Megatron and FSDP."""
    tensor_kernels: float = 0.0
    """Further launches of a layer with tensor parallelism, as kernels of the usual length."""
    pipelined_tensor_kernels: float = 0.0
    """With pipeline stages too: for each tensor rank, if that is more."""

    def gradient(self, t: TrainingSpec) -> float:
        usual = by_precision(self.gradient_bytes, t.precision)
        return GRADIENT_BYTES.get(t.gradient_dtype, usual) if usual else 0.0

    def reduced(self, t: TrainingSpec) -> float:
        if t.precision == "fp32":
            return 4.0
        return GRADIENT_BYTES.get(t.gradient_dtype, by_precision(self.reduced_bytes, t.precision))

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

    def has_fused_loss(self, t: TrainingSpec) -> bool:
        return self.fuses_loss if t.fused_loss is None else t.fused_loss


@cache
def framework_traits(name: str) -> Traits:
    try:
        return Traits(**framework_table(name)["speed"])
    except (KeyError, TypeError) as error:
        raise DataError(f"kb_seed/frameworks/{name}.toml: bad table speed: {error}") from error


class HeldBytes(NamedTuple):
    """Per parameter, on a rank for the whole step."""

    gradient: float
    optimizer: float
    """State, and the copies that its step makes."""


def held_bytes(
    framework: str,
    precision: str,
    optimizer_state: StateType | None = None,
    gradient_dtype: StateType | None = None,
) -> HeldBytes:
    """What a stack keeps per parameter beside the parameter; None: what it does by default."""
    table = memory_table(framework)
    names = ("parameter_bytes", "gradient_bytes", "fp32_gradient_bytes", "optimizer_bytes", "step_bytes")
    parameter, gradient, summed, optimizer, step = (by_precision(table[name], precision) for name in names)
    if gradient_dtype is not None and parameter < 4.0:  # the gradient of an fp32 master is fp32
        gradient = summed if gradient_dtype == "fp32" else 2.0
    if optimizer_state == "bf16" and optimizer > MOMENTS:
        optimizer -= MOMENTS
    elif optimizer_state == "fp32" and optimizer <= MOMENTS:
        optimizer += MOMENTS
    return HeldBytes(gradient, optimizer + step)


@cache
def memory_table(framework: str) -> Mapping[str, ByPrecision]:
    """`calibration/memory.toml`, and what `[memory]` of the framework's file says otherwise."""
    defaults = tomllib.loads(kb_seed.folder("calibration").joinpath("memory.toml").read_text())
    return {**defaults, **framework_table(framework).get("memory", {})}


def by_precision(value: ByPrecision, precision: str) -> float:
    return value.get(precision, value["default"]) if isinstance(value, Mapping) else value
