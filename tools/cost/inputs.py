"""What the cost model reads: every fact of a scenario as a broadcastable float array.

A batch of scenarios has arrays everywhere; a million plans of one scenario have arrays for the plan only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tools.cost.arithmetic import Array as Array
from tools.cost.arithmetic import ceil, maximum, where

Indices = NDArray[np.intp]
Rows = slice | Indices


@dataclass(frozen=True)
class Columns:
    """A record whose fields are arrays of the same rows, or scalars that hold for every row."""

    @property
    def size(self) -> int:
        arrays = self.arrays
        return len(getattr(self, arrays[0])) if arrays else 1

    @property
    def arrays(self) -> list[str]:
        """The fields that differ by row."""
        return [name for name in self.__dataclass_fields__ if getattr(getattr(self, name), "ndim", 0)]

    def take(self, rows: Rows) -> Self:
        """The given rows; scalars stay scalars."""
        return type(self)(*[_taken(getattr(self, name), rows) for name in self.__dataclass_fields__])


def _taken(part: Columns | Array, rows: Rows) -> Columns | Array:
    if isinstance(part, Columns):
        return part.take(rows)
    return part[rows] if getattr(part, "ndim", 0) else part


@dataclass(frozen=True)
class Stages:
    """Layers of an inner stage and of the last one, which also holds the head."""

    inner: Array
    last: Array
    moe_share: Array


@dataclass(frozen=True)
class Inputs(Columns):
    """One array (or scalar) per fact; widths are in elements, the rest in base units."""

    # model
    layers: Array
    moe_layers: Array
    hidden: Array
    ffn: Array
    moe_ffn: Array
    shared_ffn: Array
    leading_dense: Array
    experts: Array
    experts_per_token: Array
    heads: Array
    kv_heads: Array
    qk_dim: Array
    v_dim: Array
    q_lora: Array
    kv_lora: Array
    rope_dim: Array
    vocab: Array
    up_matrices: Array
    tied: Array
    window: Array
    window_share: Array
    # what is not a uniform transformer layer (mixers.layer_facts); averages over the layers
    attention_share: Array
    projection_ratio: Array
    mixer_share: Array
    mixer_in: Array
    mixer_out: Array
    mixer_flops: Array
    mixer_inner_weights: Array
    mixing_offset: Array
    dense_offset: Array
    norm_offset: Array
    moe_hidden: Array
    index_flops: Array
    compressed_keys: Array
    other_weights: Array
    routing_groups: Array
    groups_per_token: Array
    prediction_layers: Array
    # cluster
    devices: Array
    gemm_peak: Array
    half_peak: Array
    memory_bytes: Array
    memory_bandwidth: Array
    compute_units: Array
    tile_m: Array
    tile_n: Array
    scale_up_bandwidth: Array
    scale_up_latency: Array
    scale_out_bandwidth: Array
    scale_out_latency: Array
    scale_up_size: Array
    torus_dimensions: Array
    scatter_passes: Array
    flat_rings: Array
    launch_s: Array
    exponentials_per_s: Array
    is_systolic: Array
    power_share: Array
    # training
    seq: Array
    batch: Array
    gemm_bytes: Array
    value_bytes: Array
    flash: Array
    trained_share: Array
    stored_bytes: Array
    offloads_optimizer: Array
    host_link: Array
    capacity: Array
    # what the framework does
    gradient_bytes: Array
    reduced_bytes: Array
    scatters_pipeline: Array
    flat_from_stage: Array
    messages_per_layer: Array
    stops_early: Array
    tensor_overlap: Array
    data_overlap: Array
    expert_overlap: Array
    attention_kernel: Array
    selective_share: Array
    kernels_per_layer: Array
    tensor_kernels: Array
    pipelined_tensor_kernels: Array
    has_fused_dispatch: Array
    gathers_tokens: Array
    has_cuda_graph: Array
    fuses_loss: Array
    # plan
    tp: Array
    pp: Array
    vpp: Array
    cp: Array
    ep: Array
    etp: Array
    dp: Array
    dp_shard: Array
    zero: Array
    micro_batch: Array
    sequence_parallel: Array
    recompute: Array
    zero_bubble: Array
    is_gpipe: Array
    recomputed_layers: Array
    repeats_stated: Array
    repeats_core: Array
    repeats_norm: Array
    repeats_mlp: Array
    repeats_shared: Array
    repeats_experts: Array
    repeats_activation: Array
    repeats_latent: Array

    @cached_property
    def tokens(self) -> Array:
        """Tokens of one micro-batch on one rank, before tensor parallelism divides anything."""
        return self.micro_batch * self.seq / self.cp

    @cached_property
    def micro_batches(self) -> Array:
        return self.batch / (self.dp * self.micro_batch)

    @cached_property
    def sequence_parallel_degree(self) -> Array:
        """Over how many ranks the work between the GEMMs is divided."""
        return where(self.sequence_parallel > 0, self.tp, 1.0)

    @cached_property
    def stages(self) -> Stages:
        """Even stages where the layers divide; else the last stage, which has the head, gets what remains."""
        # a layer that predicts a further token costs what a layer does, and another head
        layers = self.layers + self.prediction_layers
        inner = ceil(layers / self.pp)
        last = maximum(layers - inner * (self.pp - 1.0), 1.0)
        # leading dense layers stand on the first stage, so the others hold a larger share of experts
        staged = self.moe_layers / maximum(self.layers - self.leading_dense, 1.0)
        return Stages(inner, last, where(self.pp > 1, staged, self.moe_layers / self.layers))

    @property
    def is_moe(self) -> Array:
        return np.asarray(self.moe_layers > 0, dtype=np.float64)

    def with_recompute(self, code: Array, layers: Array | None = None) -> "Inputs":
        """With all that was computed of these rows but their kinds, which alone depend on recomputation."""
        made = object.__new__(Inputs)
        values = vars(made)
        values.update(vars(self), recompute=code)
        if layers is not None:
            values["recomputed_layers"] = layers
        values.pop("_layer_kinds", None)
        return made

    def once_per_layer(self, compute: "Compute[Constants, Result]", constants: "Constants") -> "Result":
        """`compute(self, constants)`, which depends on LAYER_FIELDS alone, once for each of their values."""
        return self._once_per_kind(self._layer_kinds, compute, constants)

    def once_per_sharding(self, compute: "Compute[Constants, Result]", constants: "Constants") -> "Result":
        """The same for what depends on SHARDING_FIELDS alone."""
        return self._once_per_kind(self._sharding_kinds, compute, constants)

    @cached_property
    def _layer_kinds(self) -> "Kinds | None":
        return _kinds(self, LAYER_FIELDS)

    @cached_property
    def _sharding_kinds(self) -> "Kinds | None":
        return _kinds(self, SHARDING_FIELDS)

    def _once_per_kind(
        self, kinds: "Kinds | None", compute: "Compute[Constants, Result]", constants: "Constants"
    ) -> "Result":
        if kinds is None or constants.arrays:  # constants of each row: rows of a kind differ
            return compute(self, constants)
        return compute(kinds.inputs, constants).take(kinds.of_row)


LAYER_FIELDS = ("tp", "pp", "cp", "ep", "etp", "micro_batch", "sequence_parallel", "recompute")
"""Of a plan, what the cost of a layer and a micro-batch depends on."""
SHARDING_FIELDS = ("tp", "pp", "cp", "ep", "etp", "dp", "dp_shard", "zero")
"""Of a plan, what a rank's parameters and their traffic depend on."""
PLAN_FIELDS = frozenset((*LAYER_FIELDS, *SHARDING_FIELDS, "vpp", "zero_bubble", "is_gpipe"))

Constants = TypeVar("Constants", bound=Columns)
Result = TypeVar("Result", bound=Columns)
Compute = Callable[[Inputs, Constants], Result]


@dataclass(frozen=True)
class Kinds:
    """Rows that agree in some fields are of one kind: a row of each kind, and the kind of each row."""

    inputs: Inputs
    of_row: Indices


MIN_ROWS = 64
"""Of fewer rows, telling kinds apart takes longer than it saves."""


def _kinds(x: Inputs, names: tuple[str, ...]) -> Kinds | None:
    """None if rows differ in more than their plans, or are too few."""
    rows = np.size(x.tp)  # batches of plans and of scenarios alike have every degree as an array
    if rows < MIN_ROWS:
        return None
    arrays = set(x.arrays)
    if not arrays <= PLAN_FIELDS:
        return None
    kind, count = np.zeros(rows, dtype=np.intp), 1
    for name in names:
        if name in arrays:
            values = getattr(x, name).astype(np.intp)
            values -= values.min()
            kind, count = _numbered(kind * (values.max() + 1) + values)
    first = np.empty(count, dtype=np.intp)
    first[kind] = np.arange(rows)
    return Kinds(x.take(first), kind)


def _numbered(values: Indices) -> tuple[Indices, int]:
    """Each value's number among the different ones, and how many those are."""
    span = int(values.max()) + 1
    if span > MAX_SPAN * len(values):
        different, numbers = np.unique(values, return_inverse=True)
        return numbers, len(different)
    is_there = np.zeros(span, dtype=np.bool_)
    is_there[values] = True
    numbers = np.cumsum(is_there, dtype=np.intp)
    return numbers[values] - 1, int(numbers[-1])


MAX_SPAN = 32
"""Possible values per row up to which a table of them is quicker than sorting."""
