"""What the cost model reads: every fact of a scenario as a broadcastable float array.

A batch of scenarios has arrays everywhere; a million plans of one scenario have arrays for the plan only.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tools.physics.arithmetic import Array as Array
from tools.physics.arithmetic import Mask, ceil, maximum, minimum, where
from tools.scenario.columns import MODULES, SCHEDULES
from tools.scenario.spec import PLAN_ROLES

Indices = NDArray[np.intp]
RowSelection = slice | Indices

LAYER_FIELDS = (
    *("tp", "pp", "cp", "ep", "etp", "micro_batch_size", "sequence_parallel"),
    *("recompute", "recompute_layers", "recompute_modules", "version"),
)
"""Fields of a plan that the cost of a layer and a micro-batch depends on, and the settings it runs."""
VERSION_FIELDS = frozenset({
    "tensor_overlap", "expert_overlap", "has_fused_dispatch", "message_s", "has_cuda_graph",
    "graphed_layers", "graphed_experts", "is_compiled", "optimizer_bytes", "held_optimizer_bytes",
    "offloaded_share",
})  # fmt: skip
"""What differs by the settings that a plan can run (`run_trainings`); rows of a version agree in all."""
SHARDING_FIELDS = (
    *("tp", "pp", "cp", "ep", "etp", "dp", "dp_shard", "zero_stage", "reshard_after_forward", "version"),
)
"""Fields of a plan that a rank's parameters and their traffic depend on."""
MIN_ROWS = 64
"""With fewer rows, telling kinds apart takes longer than it saves."""
MAX_SPAN = 32
"""Possible values per row up to which a table of them is quicker than sorting."""


@dataclass(frozen=True)
class Columns:
    """A record whose fields are arrays of the same rows, or scalars that hold for every row; it is added and
    multiplied field by field."""

    @property
    def parts(self) -> list[Array]:
        """The values of all fields; a field may be such a record again."""
        return list(vars(self).values())[: len(self.__dataclass_fields__)]  # then what was computed of them

    @property
    def arrays(self) -> list[str]:
        """The fields that differ by row."""
        return [name for name in self.__dataclass_fields__ if getattr(getattr(self, name), "ndim", 0)]

    @property
    def size(self) -> int:
        arrays = self.arrays
        return len(getattr(self, arrays[0])) if arrays else 1

    def take(self, rows: RowSelection) -> Self:
        """The given rows; scalars stay scalars."""
        return self._each(lambda part: part[rows] if np.ndim(part) else part)

    def broadcast(self, rows: int) -> Self:
        """As many rows of every field."""
        if rows == 1:  # five times as quick
            return self._each(lambda part: np.array(part, ndmin=1))
        return self._each(lambda part: np.broadcast_to(part, (rows,)))

    def _each(self, function: Callable[[Array], Array]) -> Self:
        parts = (getattr(self, name) for name in self.__dataclass_fields__)
        return type(self)(
            *(part._each(function) if isinstance(part, Columns) else function(part) for part in parts)
        )

    @classmethod
    def joined(cls, tables: Sequence[Self]) -> Self:
        """The rows of all tables, one below the other."""
        columns = ([getattr(table, name) for table in tables] for name in cls.__dataclass_fields__)
        return cls(
            *(type(c[0]).joined(c) if isinstance(c[0], Columns) else np.concatenate(c) for c in columns)
        )

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(operator.add, self.parts, other.parts))

    def __mul__(self, factor: Array) -> Self:
        return type(self)(*[part * factor for part in self.parts])


@dataclass(frozen=True)
class Stages:
    """Layers that an inner stage runs, and the last one, which also holds the head; and those whose weights
    each holds, which are fewer where depths of prediction share theirs."""

    inner: Array
    last: Array
    inner_held: Array
    last_held: Array
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
    prediction_heads: Array
    repeated_layers: Array
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
    fabric: Array
    has_slow_network: Array
    scale_out_latency: Array
    half_rate_bytes: Array
    host_state: Array
    scale_up_size: Array
    torus_dimensions: Array
    torus_longest: Array
    torus_middle: Array
    torus_shortest: Array
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
    dispatch_bytes: Array
    # shares of the layers whose products of a kind are kept in 16 bits (`training.precision_scope`)
    wide_qkv: Array
    wide_proj: Array
    wide_mlp: Array
    wide_experts: Array
    wide_shared: Array
    wide_latent: Array
    wide_mixer_in: Array
    wide_mixer_out: Array
    wide_head: Array
    flash: Array
    trained_share: Array
    stored_bytes: Array
    trains_attention: Array
    trains_mlp: Array
    offloads_optimizer: Array
    host_link: Array
    capacity: Array
    imbalance: Array
    document_tokens: Array
    offloaded_share: Array
    optimizer_bytes: Array
    is_compiled: Array
    # what the framework does
    head_layers: Array
    held_gradient_bytes: Array
    held_optimizer_bytes: Array
    gradient_bytes: Array
    reduced_bytes: Array
    scatters_pipeline: Array
    flat_from_stage: Array
    messages_per_layer: Array
    reduces_each: Array
    context_exchange: Array
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
    message_s: Array
    gathers_tokens: Array
    has_cuda_graph: Array
    graphed_layers: Array
    graphed_experts: Array
    fuses_loss: Array
    version: Array
    """Rows of one scenario with the same number run the same settings."""
    # plan, by the names of its own fields; `encode` fills them from its columns
    tp: Array
    pp: Array
    vpp: Array
    cp: Array
    ep: Array
    etp: Array
    dp: Array
    dp_shard: Array
    zero_stage: Array
    micro_batch_size: Array
    sequence_parallel: Array
    recompute: Array
    schedule: Array
    recompute_layers: Array
    recompute_modules: Array
    reshard_after_forward: Array

    @property
    def micro_batch(self) -> Array:
        """The name under which stored calibrations know it."""
        return self.micro_batch_size

    def has_schedule(self, name: str) -> Mask:
        is_so: Mask = self.schedule == SCHEDULES.index(name)
        return is_so

    @cached_property
    def full_share(self) -> Array:
        """Share of a stage's layers that full recomputation repeats: all where no number is stated."""
        stated = minimum(self.recompute_layers / self.stages.inner, 1.0)
        return where(self.recompute_layers > 0, stated, 1.0)

    def repeats(self, module: str) -> Array:
        """1 where selective recomputation is stated to repeat the module (Megatron's --recompute-modules)."""
        return np.floor(self.recompute_modules / 2.0 ** MODULES.index(module)) % 2.0

    def by_recompute(self, none: Array | float, selective: Array | float, full: Array | float) -> Array:
        """The value that belongs to the recomputation of each row."""
        return where(self.recompute <= 0, none, where(self.recompute < 2, selective, full))

    @cached_property
    def tokens(self) -> Array:
        """Tokens of one micro-batch on one rank, before tensor parallelism divides anything."""
        return self.micro_batch_size * self.seq / self.cp

    @cached_property
    def micro_batches(self) -> Array:
        return self.batch / (self.dp * self.micro_batch_size)

    @cached_property
    def sequence_parallel_degree(self) -> Array:
        """Over how many ranks the work between the GEMMs is divided."""
        return where(self.sequence_parallel > 0, self.tp, 1.0)

    @cached_property
    def stages(self) -> Stages:
        """Even stages where the layers divide; else the last stage, which has the head, gets what remains."""
        # a layer that predicts a further token costs what a layer does; each such token has a head besides
        layers = self.layers + self.prediction_layers
        inner = ceil(layers / self.pp)
        last = maximum(layers - inner * (self.pp - 1.0), 1.0)
        # leading dense layers stand on the first stage, so the others hold a larger share of experts
        staged = self.moe_layers / maximum(self.layers - self.leading_dense, 1.0)
        last_held = maximum(last - self.repeated_layers, 1.0)  # prediction stands on the last stage
        inner_held = where(self.pp > 1, inner, last_held)
        moe_share = where(self.pp > 1, staged, self.moe_layers / self.layers)
        return Stages(inner, last, inner_held, last_held, moe_share)

    @property
    def is_moe(self) -> Array:
        return np.asarray(self.moe_layers > 0, dtype=np.float64)

    def with_recompute(self, code: Array, layers: Array | None = None) -> "Inputs":
        """The same rows with what was computed of them, but for what depends on recomputation."""
        made = object.__new__(Inputs)
        values = vars(made)
        values.update(vars(self), recompute=code)
        if layers is not None:
            values["recompute_layers"] = layers
        values.pop("full_share", None)
        values["_kinds"] = {names: kinds for names, kinds in self._kinds.items() if "recompute" not in names}
        return made

    def once_per(
        self, names: tuple[str, ...], compute: "Compute[ConstantsT, MadeT]", constants: "ConstantsT"
    ) -> "MadeT":
        """`compute(self, constants)`, which depends on these fields of a plan alone, once for each of their
        values."""
        if constants.arrays:  # constants of each row: rows of a kind differ
            return compute(self, constants)
        if names not in self._kinds:
            self._kinds[names] = _kinds(self, names)
        kinds = self._kinds[names]
        return (
            compute(self, constants) if kinds is None else compute(kinds.inputs, constants).take(kinds.of_row)
        )

    @cached_property
    def _kinds(self) -> dict[tuple[str, ...], "Kinds | None"]:
        return {}


ConstantsT = TypeVar("ConstantsT", bound=Columns)
MadeT = TypeVar("MadeT", bound=Columns)
Compute = Callable[[Inputs, ConstantsT], MadeT]


@dataclass(frozen=True)
class Kinds:
    """Rows that agree in some fields are of one kind: a row of each kind, and the kind of each row."""

    inputs: Inputs
    of_row: Indices


def _kinds(x: Inputs, names: tuple[str, ...]) -> Kinds | None:
    """None if rows differ in more than their plans, or are too few."""
    rows = np.size(x.tp)  # batches of plans and of scenarios alike have every degree as an array
    if rows < MIN_ROWS:
        return None
    arrays = set(x.arrays)
    if not arrays <= PLAN_ROLES.keys() | VERSION_FIELDS | {"version"}:
        return None
    kind, count = np.zeros(rows, dtype=np.intp), 1
    for name in names:
        if name not in arrays:
            continue
        values = getattr(x, name).astype(np.intp)
        values -= values.min()
        values += kind * (values.max() + 1)
        # number the different values from 0 on: by a table of all possible ones, or by sorting
        span = int(values.max()) + 1
        if span > MAX_SPAN * rows:
            different, kind = np.unique(values, return_inverse=True)
            count = len(different)
        else:
            is_there = np.zeros(span, dtype=np.bool_)
            is_there[values] = True
            numbers = np.cumsum(is_there, dtype=np.intp)
            kind, count = numbers[values] - 1, int(numbers[-1])
    first = np.empty(count, dtype=np.intp)
    first[kind] = np.arange(rows)
    return Kinds(x.take(first), kind)


@dataclass(frozen=True)
class Coefficients(Columns):
    """What the formulas take beside facts: the value of each constant for each row, or one for all rows."""

    gemm_efficiency: Array
    fp8_gain: Array
    fp4_gain: Array
    gemm_wave_weight: Array
    gemm_depth_half: Array
    grouped_gemm_ratio: Array
    grouped_low_precision_ratio: Array
    attention_efficiency: Array
    attention_score_passes: Array
    elementwise_traffic: Array
    selective_recompute: Array
    fast_link_efficiency: Array
    slow_link_efficiency: Array
    rank_latency_s: Array
    tp_exposed: Array
    cp_exposed: Array
    ep_exposed: Array
    pp_exposed: Array
    dp_exposed: Array
    optimizer_traffic: Array
    host_kernel_s: Array
    host_moe_kernels: Array
    micro_batch_overhead_s: Array
    step_overhead_s: Array
    scale_jitter: Array


@dataclass(frozen=True)
class RowKeys:
    """To which device, generation and framework each row belongs."""

    generation: Sequence[str]
    device: Sequence[str]
    framework: Sequence[str]

    def key(self, level: str, row: int) -> str:
        """The key of a row at a level of constants (`tools.model.constants.LEVELS`)."""
        if level == "everywhere":
            return "all"
        if level == "stack":
            return f"{self.framework[row]}/{self.generation[row]}"
        columns: Sequence[str] = getattr(self, level)
        return columns[row]
