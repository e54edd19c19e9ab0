"""The typed scenario: cluster, training and plan, and the whole; the model is in `model.py`."""

from dataclasses import dataclass
from itertools import dropwhile
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tools.scenario.fields import WHOLE, Allowed, FromList, JsonObject, StrictModel
from tools.scenario.frameworks import FrameworkName
from tools.scenario.model import MAX_LAYERS, MAX_SEQ_LEN, MAX_WIDTH, ModelSpec

MAX_DEVICES = 1_000_000
MAX_BATCH = 1_000_000_000
MAX_NAME = 200
MAX_PATH = 4096
MAX_NOTES = 100_000
MAX_CAPACITY_FACTOR = 1000
MAX_IMBALANCE = 1000
FULL_SHARDING = 3
"""The ZeRO stage that shards weights too, as FSDP does."""

Devices = Annotated[int, Field(ge=1, le=MAX_DEVICES), WHOLE]
Samples = Annotated[int, Field(ge=1, le=MAX_BATCH), WHOLE]
Layers = Annotated[int, Field(ge=1, le=MAX_LAYERS), WHOLE]
Precision = Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"]
Recompute = Literal["none", "selective", "full"]
RecomputeModule = Literal["core_attn", "layernorm", "mlp", "shared_experts", "moe", "moe_act", "mla_up_proj"]
"""Parts of a layer, by the names of Megatron-Core's --recompute-modules."""
PipelineSchedule = Literal["1f1b", "interleaved", "zero_bubble", "gpipe"]
Network = Literal["rail", "fat-tree", "torus"]
MoeDispatcher = Literal["alltoall", "allgather", "deepep", "hybridep"]
MoeTransport = Literal["nccl", "gpu", "host-proxy"]
"""Who posts a dispatched message: NCCL's kernels, the device itself (GPU-initiated RDMA), a CPU thread."""
Fabric = Literal["ib", "roce", "efa", "tcp"]
"""What joins the nodes, apart from its bandwidth."""
GraphScope = Literal["attn", "mamba", "mlp", "moe_router", "moe_preprocess", "moe"]
"""Modules of a layer, by the names of Megatron-Core's --cuda-graph-scope."""
CudaGraph = Annotated[
    Literal["none", "scoped", "full"],
    BeforeValidator(
        lambda value: ("none", "full")[value] if isinstance(value, bool) else value,
        json_schema_input_type=Literal["none", "scoped", "full"] | bool,
    ),
]
"""none: every kernel is launched by the host; full: the whole iteration is one graph."""
StateType = Literal["fp32", "bf16"]
ScopedModule = Literal[
    "qkv",
    "proj",
    "core_attn",
    "mlp",
    "experts",
    "shared_experts",
    "router",
    "latent",
    "mamba_in",
    "mamba_out",
    "lm_head",
    "mtp",
    "dispatch",
]
"""Products of a model, and the tokens sent to experts, that a recipe may keep in another precision."""
LoraTarget = Literal["attention", "mlp"]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Month = Annotated[str, Field(pattern="^20[0-9]{2}-(0[1-9]|1[0-2])$")]
PlanValue = int | str | bool | None
"""A value of a searched plan field; true and false are integers too."""

TOPOLOGY_SYNONYMS = {
    "fast_domain_devices": "nvlink_domain_size",
    "nvlink_domain": "nvlink_domain_size",
    "nvlink_domain_devices": "nvlink_domain_size",
    "kind": "network",
    "type": "network",
    "oversubscription_ratio": "oversubscription",
    "torus": "torus_dimensions",
    "torus_dims": "torus_dimensions",
}


class ClosedModel(BaseModel):
    """Base of what ASAP computes: immutable and closed, so that a misspelt field is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        serialize_by_alias=True,
        validate_by_name=True,
        # For readers outside the shape stays open: a later version may add fields.
        json_schema_extra=lambda schema: schema.pop("additionalProperties", None),
    )


class TopologySpec(StrictModel):
    """What is above the node: the fast-link domain, the network, its oversubscription."""

    nvlink_domain_size: Devices | None = None
    network: Network | None = None
    oversubscription: float = Field(1.0, ge=1, le=1000)
    torus_dimensions: Annotated[tuple[Devices, ...] | None, FromList] = None

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, stated: object) -> object:
        if not isinstance(stated, dict):
            return stated
        return {TOPOLOGY_SYNONYMS.get(key, key): value for key, value in stated.items()}


class StatedCluster(StrictModel):
    """The devices a job runs on, as written: the node size may be left to the device.

    `overrides` replaces figures of the hardware catalogue. `name` is what the installation calls the
    cluster: runs reported for it calibrate its predictions.
    """

    name: Name | None = None
    device: str = Field(min_length=1, max_length=100)
    num_devices: Devices
    devices_per_node: Devices | None = None
    overrides: JsonObject | None = None
    topology: TopologySpec | None = None
    fabric: Fabric | None = None
    """None: the catalogue's for the device."""


class ClusterSpec(StatedCluster):
    """The devices a job runs on."""

    devices_per_node: Devices
    overrides: JsonObject = Field(default_factory=dict)


class LoraSpec(StrictModel):
    """Low-rank adapters on frozen base weights, which QLoRA keeps in 4 or 8 bits (`weight_bits`)."""

    rank: Annotated[int, Field(ge=1, le=MAX_WIDTH), WHOLE]
    targets: Annotated[
        tuple[LoraTarget, ...],
        Field(min_length=1),
        FromList,
        Allowed('a non-empty list of "attention" and "mlp"'),
    ] = ("attention", "mlp")
    weight_bits: Annotated[Literal[4, 8, 16], Allowed("4, 8 or 16")] = 16


class PrecisionScope(StrictModel):
    """Parts that are kept in another precision than the run's."""

    bf16: Annotated[tuple[ScopedModule, ...], FromList] = ()
    mxfp8: Annotated[tuple[ScopedModule, ...], FromList] = ()
    bf16_last_layers: Annotated[int, Field(ge=0, le=MAX_LAYERS), WHOLE] = 0


class TrainingSpec(StrictModel):
    """The measurement contract: plans are comparable only if it is equal.

    From `software_date` on None means "not stated": the newest known software, what its newest recipe does
    for a switch, dropless routing for `capacity_factor`, full training for `lora`.
    """

    seq_len: Annotated[int, Field(ge=1, le=MAX_SEQ_LEN), WHOLE]
    global_batch_size: Samples
    precision: Precision
    framework: FrameworkName
    flash_attention: bool = True
    software_date: Annotated[Month | None, Allowed('a month from 2000 to 2099, as "2026-06"')] = None
    moe_dispatcher: MoeDispatcher | None = None
    overlap_moe_communication: bool | None = None
    overlap_tensor_communication: bool | None = None
    overlap_gradient_communication: bool | None = None
    cuda_graph: CudaGraph | None = None
    cuda_graph_scopes: Annotated[tuple[GraphScope, ...] | None, FromList] = None
    moe_transport: MoeTransport | None = None
    routing: Literal["forced", "natural"] | None = None
    expert_imbalance: Annotated[
        float | None,
        Field(ge=1, le=MAX_IMBALANCE),
        Allowed(f"a number from 1 to {MAX_IMBALANCE:,}: tokens of the busiest rank over the mean"),
    ] = None
    compile: bool | None = None
    precision_scope: PrecisionScope | None = None
    packed_mean_tokens: Annotated[float | None, Field(ge=1, le=MAX_SEQ_LEN)] = None
    activation_offload: Annotated[
        bool | Annotated[int, Field(ge=1, le=MAX_LAYERS), WHOLE] | None,
        Allowed(f"true, false or how many layers, from 1 to {MAX_LAYERS:,}"),
    ] = None
    optimizer_state: StateType | None = None
    gradient_dtype: StateType | None = None
    fused_loss: bool | None = None
    capacity_factor: Annotated[
        float | None,
        Field(gt=0, le=MAX_CAPACITY_FACTOR),
        Allowed(f"a number above 0 and at most {MAX_CAPACITY_FACTOR:,}, or null for dropless"),
    ] = None
    optimizer_offload: bool = False
    lora: LoraSpec | None = None

    def options(self) -> dict[str, str]:
        """The optional fields that are stated, as text for tables and reports."""
        stated = {name: getattr(self, name) for name in TRAINING_OPTIONS if getattr(self, name) is not None}
        if self.lora is not None:
            bits = "" if self.lora.weight_bits == 16 else f", frozen weights in {self.lora.weight_bits} bits"
            stated["lora"] = f"rank {self.lora.rank} on {' and '.join(self.lora.targets)}{bits}"
        if not self.optimizer_offload:
            del stated["optimizer_offload"]
        words = {True: "on", False: "off"}
        return {
            name: words[value] if isinstance(value, bool) else _in_words(value)
            for name, value in stated.items()
        }


def _in_words(value: object) -> str:
    if isinstance(value, PrecisionScope):
        parts = value.model_dump(exclude_defaults=True)
        return "; ".join(f"{name}: {_in_words(part)}" for name, part in parts.items())
    return ", ".join(value) if isinstance(value, tuple) else str(value)


TRAINING_OPTIONS = tuple(dropwhile(lambda name: name != "software_date", TrainingSpec.model_fields))
"""Fields of `TrainingSpec` that a scenario may leave out and that change speed at the same plan."""


@dataclass(frozen=True, slots=True)
class PlanRole:
    """Metadata of a plan field: what people call it and whether the search tries values of it."""

    label: str
    words: tuple[str, ...] = ()
    """How free text may name the field; none: notes cannot set it."""
    may_be_open: bool = False
    """null or absent means what the framework does by default (`stated.resolve_defaults`)."""
    is_axis: bool = False
    """The sizes of all axes multiply to the number of devices."""
    is_degree: bool = False
    """How many ways something is divided: plans in short name it if it is above one."""
    is_searched: bool = True
    """False: kept, shown and priced; searched plans leave it open."""
    only_with: tuple[str, PlanValue] | None = None
    """The field that it details, and the value under which it may be stated."""
    in_short: str = ""
    """How a plan in short continues if it is stated; {} is the value."""
    decides: str = ""
    """What a format without a setting for it cannot say."""


def _axis(label: str, *words: str) -> PlanRole:
    return PlanRole(label, words, is_axis=True, is_degree=True)


def _degree(label: str, *words: str) -> PlanRole:
    return PlanRole(label, words, may_be_open=True, is_degree=True)


def _open(label: str, *words: str) -> PlanRole:
    return PlanRole(label, words, may_be_open=True)


def _carried(label: str, only_with: tuple[str, PlanValue], in_short: str, decides: str) -> PlanRole:
    return PlanRole(
        label, may_be_open=True, is_searched=False, only_with=only_with, in_short=in_short, decides=decides
    )


def _is_none(value: object) -> bool:
    return value is None


class Plan(StrictModel):
    """A sharding configuration; `recompute` None lets the cost model choose by memory."""

    # The one list of plan fields: the columns of the search, the constraints, `StatedPlan` (a plan as a
    # scenario states it), the forms and what notes may set derive from these fields and their `PlanRole`.
    tp: Annotated[Devices, _axis("Tensor parallel", "tp", "tensor")]
    pp: Annotated[Devices, _axis("Pipeline stages", "pp", "pipeline")]
    vpp: Annotated[Layers, _degree("Chunks per stage", "vpp", "virtual", "interleav")]
    cp: Annotated[Devices, _axis("Context parallel", "cp", "context")]
    ep: Annotated[Devices, _degree("Expert parallel", "ep", "expert")]
    etp: Annotated[Devices, _degree("Expert tensor parallel", "etp", "expert tensor")]
    dp: Annotated[Devices, _axis("Data parallel", "dp", "data parallel", "data-parallel")]
    dp_shard: Annotated[Devices, _open("Sharding group", "dp_shard", "shard", "hsdp")]
    zero_stage: Annotated[int, Field(ge=0, le=FULL_SHARDING), WHOLE, PlanRole("ZeRO stage", ("zero", "fsdp"))]
    micro_batch_size: Annotated[Samples, PlanRole("Micro-batch", ("micro",))]
    sequence_parallel: Annotated[bool, _open("Sequence parallel", "sequence")]
    recompute: Annotated[Recompute | None, _open("Recompute", "recomput", "checkpoint", "remat")]
    schedule: Annotated[PipelineSchedule, _open("Pipeline schedule")]
    recompute_layers: Annotated[
        Layers | None,
        _carried(
            "Recomputed layers",
            ("recompute", "full"),
            " of {} layers per stage",
            "which layers are recomputed",
        ),
        Allowed(f"an integer from 1 to {MAX_LAYERS:,}"),
    ] = Field(None, exclude_if=_is_none)
    """With full recomputation: how many layers of a stage are recomputed; None: all."""
    recompute_modules: Annotated[
        Annotated[tuple[RecomputeModule, ...], Field(min_length=1)] | None,
        FromList,
        _carried("Recomputed modules", ("recompute", "selective"), " of {}", "which modules are recomputed"),
        Allowed(f"a non-empty list of {', '.join(get_args(RecomputeModule))}"),
    ] = Field(None, exclude_if=_is_none)
    """With selective recomputation: what is repeated; None: what the framework's own switch repeats."""
    reshard_after_forward: Annotated[
        bool | None,
        _carried(
            "Reshard after forward",
            ("zero_stage", FULL_SHARDING),
            ", resharded after forward: {}",
            "whether weights stay gathered until backward",
        ),
    ] = Field(None, exclude_if=_is_none)
    """With ZeRO 3: false gathers a micro-batch's weights once and keeps them until backward."""

    @property
    def data_ranks(self) -> int:
        """Ranks that hold the same part of the model."""
        return self.dp * self.cp

    @property
    def sharding_stage(self) -> int:
        """The ZeRO stage that has an effect: sharding over one rank is none."""
        return self.zero_stage if self.dp_shard > 1 else 0

    @property
    def is_hybrid_sharded(self) -> bool:
        """Sharded over a part of the data ranks (HSDP)."""
        return self.sharding_stage > 0 and self.dp_shard < self.data_ranks

    @property
    def sharding_text(self) -> str:
        """ "ZeRO 3 over 8", "ZeRO 0"."""
        return f"ZeRO {self.zero_stage}" + (f" over {self.dp_shard}" if self.zero_stage else "")

    def sharded_over_all(self) -> "Plan":
        """Sharded over all ranks that hold the same weights."""
        return self.model_copy(update=sharding(self.zero_stage, self.data_ranks))

    def sharded_like(self, previous: "Plan") -> "Plan":
        """Over all data ranks if the previous plan was, or was not sharded; else over as many ranks."""
        if previous.dp_shard == previous.data_ranks or previous.zero_stage == 0:
            return self.sharded_over_all()
        return self.model_copy(update=sharding(self.zero_stage, min(previous.dp_shard, self.data_ranks)))


PLAN_ROLES = {
    name: next(item for item in field.metadata if isinstance(item, PlanRole))
    for name, field in Plan.model_fields.items()
}
SEARCHED_FIELDS = tuple(name for name, role in PLAN_ROLES.items() if role.is_searched)
"""The plan fields that the search tries values of."""
CARRIED_FIELDS = tuple(name for name, role in PLAN_ROLES.items() if not role.is_searched)
"""The plan fields that are stated, shown and priced only."""
AXES = tuple(name for name, role in PLAN_ROLES.items() if role.is_axis)
"""The plan fields whose product is the number of devices."""
MODEL_AXES = tuple(name for name in AXES if name != "dp")
"""The axes that a plan chooses; data parallelism takes the devices that are left."""
DEGREES = tuple(name for name, role in PLAN_ROLES.items() if role.is_degree)
REQUIRED_PLAN_FIELDS = tuple(name for name, role in PLAN_ROLES.items() if not role.may_be_open)
"""The plan fields that a scenario must state."""


def plan_bounds(name: str) -> tuple[int, int]:
    """The least and the greatest value of an integer field of a plan."""
    metadata = Plan.model_fields[name].metadata
    low, high = (next(getattr(item, key) for item in metadata if hasattr(item, key)) for key in ("ge", "le"))
    return low, high


def sharding(stage: int, ranks: int) -> dict[str, int]:
    """The plan fields of a ZeRO stage over these ranks; without a stage there is no group."""
    return {"zero_stage": stage, "dp_shard": ranks if stage else 1}


class RunGoal(StrictModel):
    """What a whole run is to reach, what it costs and what interrupts it: predictions then forecast it."""

    tokens: Annotated[int, Field(ge=1, le=10**16), WHOLE] = Field(
        10**9, description="trained on in the whole run; absent: per billion"
    )
    price_per_device_hour: float | None = Field(None, gt=0, le=10_000)
    device_hours_between_failures: float | None = Field(
        None, gt=0, le=1e9, description="that stop the job; Llama 3 had one in 50,700 (arXiv 2407.21783)"
    )
    checkpoint_s: float = Field(
        30.0, gt=0, le=86_400, description="training stands still while one is written"
    )
    restart_s: float = Field(600.0, ge=0, le=86_400, description="from a failure to the first step after it")


class Scenario(StrictModel):
    """One workload: what is trained, where, under which contract and, where known, by which plan."""

    id: str | int | float | None = None
    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    plan: Plan | None = None
    constraints: JsonObject = Field(default_factory=dict)
    traces: str | None = Field(None, max_length=MAX_PATH)
    notes: str | None = Field(None, max_length=MAX_NOTES)
    run: RunGoal | None = None
