"""The typed scenario: model, cluster, training and plan. In a model, zero means "does not have it"."""

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tools.scenario.fields import Allowed, FromList, Integer, JsonObject, whole_number
from tools.scenario.model import MAX_LAYERS, MAX_SEQ_LEN, MAX_WIDTH, ModelSpec, Record


class Result(BaseModel):
    """Base of what ASAP computes: immutable and closed, so that a misspelt field is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        serialize_by_alias=True,
        validate_by_name=True,
        # For readers outside the shape stays open: a later version may add fields.
        json_schema_extra=lambda schema: schema.pop("additionalProperties", None),
    )


MAX_DEVICES = 1_000_000
MAX_BATCH = 1_000_000_000
MAX_NAME = 200
MAX_PATH = 4096
MAX_NOTES = 100_000

Precision = Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"]
Framework = Literal[
    "megatron-core",
    "torchtitan",
    "torch-fsdp",
    "torch-fsdp2",
    "maxtext",
    "deepspeed",
    "internevo",
    "nanotron",
    "other",
]
FRAMEWORK_ALIASES = {
    "megatron": "megatron-core",
    "megatron-lm": "megatron-core",
    "mcore": "megatron-core",
    "nemo": "megatron-core",
    "titan": "torchtitan",
    "fsdp": "torch-fsdp2",
    "fsdp1": "torch-fsdp",
    "fsdp2": "torch-fsdp2",
    "hf": "torch-fsdp2",
    "huggingface": "torch-fsdp2",
    "accelerate": "torch-fsdp2",
}
"""What people call them. Hugging Face's Trainer and Accelerate run FSDP 2 unless DeepSpeed is configured."""


def framework_name(value: object) -> object:
    """The name in the contract for one of everyday use; anything else as it is."""
    return FRAMEWORK_ALIASES.get(value.lower(), value) if isinstance(value, str) else value


Recompute = Literal["none", "selective", "full"]
RecomputeModule = Literal["core_attn", "layernorm", "mlp", "shared_experts", "moe", "moe_act", "mla_up_proj"]
"""Of a layer, by the names of Megatron-Core's --recompute-modules."""
Schedule = Literal["1f1b", "interleaved", "zero_bubble", "gpipe"]
Network = Literal["rail", "fat-tree", "torus"]
MoeDispatcher = Literal["alltoall", "allgather", "deepep", "hybridep"]
LoraTarget = Literal["attention", "mlp"]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Month = Annotated[str, Field(pattern="^20[0-9]{2}-(0[1-9]|1[0-2])$")]
MAX_CAPACITY_FACTOR = 1000
FULL_SHARDING = 3
"""The ZeRO stage that shards weights too, as FSDP does."""


class TopologySpec(Record):
    """What is above the node: the fast-link domain, the network, its oversubscription."""

    nvlink_domain_size: Integer | None = Field(None, ge=1, le=MAX_DEVICES)
    network: Network | None = None
    oversubscription: float = Field(1.0, ge=1, le=1000)
    torus_dimensions: Annotated[
        tuple[Annotated[Integer, Field(ge=1, le=MAX_DEVICES)], ...] | None, FromList
    ] = None


class ClusterSpec(Record):
    """The devices a job runs on; `overrides` replaces figures of the hardware catalogue.

    `name` is what the installation calls the cluster: runs reported for it calibrate its predictions.
    """

    name: str | None = Field(None, min_length=1, max_length=MAX_NAME)
    device: str = Field(max_length=100)
    num_devices: Integer = Field(ge=1, le=MAX_DEVICES)
    devices_per_node: Integer = Field(ge=1, le=MAX_DEVICES)
    overrides: JsonObject = Field(default_factory=dict)
    topology: TopologySpec | None = None


class LoraSpec(Record):
    """Low-rank adapters on frozen base weights, which QLoRA keeps in 4 or 8 bits (`weight_bits`)."""

    rank: Integer = Field(ge=1, le=MAX_WIDTH)
    targets: Annotated[
        tuple[LoraTarget, ...],
        Field(min_length=1),
        FromList,
        Allowed('a non-empty list of "attention" and "mlp"'),
    ] = ("attention", "mlp")
    weight_bits: Annotated[Literal[4, 8, 16], Allowed("4, 8 or 16")] = 16


class TrainingSpec(Record):
    """The measurement contract: plans are comparable only if it is equal.

    From `software_date` on None means "not stated": the newest known software, what its newest recipe does
    for a switch, dropless routing for `capacity_factor`, full training for `lora`.
    """

    seq_len: Integer = Field(ge=1, le=MAX_SEQ_LEN)
    global_batch_size: Integer = Field(ge=1, le=MAX_BATCH)
    precision: Precision
    framework: Annotated[Framework, BeforeValidator(framework_name)]
    flash_attention: bool = True
    software_date: Annotated[Month | None, Allowed('a month from 2000 to 2099, as "2026-06"')] = None
    moe_dispatcher: MoeDispatcher | None = None
    overlap_moe_communication: bool | None = None
    overlap_tensor_communication: bool | None = None
    overlap_gradient_communication: bool | None = None
    cuda_graph: bool | None = None
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
            name: words[value] if isinstance(value, bool) else str(value) for name, value in stated.items()
        }


TRAINING_OPTIONS = (
    "software_date",
    "moe_dispatcher",
    "overlap_moe_communication",
    "overlap_tensor_communication",
    "overlap_gradient_communication",
    "cuda_graph",
    "fused_loss",
    "capacity_factor",
    "optimizer_offload",
    "lora",
)
"""Fields of `TrainingSpec` that a scenario may leave out and that change speed at the same plan."""


@dataclass(frozen=True, slots=True)
class PlanRole:
    """Metadata of a plan field: what people call it and whether the search tries values of it."""

    label: str
    words: tuple[str, ...] = ()
    """How free text may name the field; none: notes cannot set it."""
    may_be_open: bool = False
    """null or absent means what the framework does by default (`frameworks.resolve_defaults`)."""
    is_searched: bool = True
    """False: kept, shown and priced; searched plans leave it open."""


def _open(label: str, *words: str) -> PlanRole:
    return PlanRole(label, words, may_be_open=True)


def _carried(label: str) -> PlanRole:
    return PlanRole(label, may_be_open=True, is_searched=False)


def _is_none(value: object) -> bool:
    return value is None


class Plan(Record):
    """A sharding configuration; `recompute` None lets the cost model choose by memory."""

    # The one list of plan fields: the columns of the search, the constraints, `StatedPlan` (a plan as a
    # scenario states it), the forms and what notes may set derive from these fields and their `PlanRole`.
    tp: Annotated[Integer, PlanRole("Tensor parallel", ("tp", "tensor"))] = Field(ge=1, le=MAX_DEVICES)
    pp: Annotated[Integer, PlanRole("Pipeline stages", ("pp", "pipeline"))] = Field(ge=1, le=MAX_DEVICES)
    vpp: Annotated[Integer, _open("Chunks per stage", "vpp", "virtual", "interleav")] = Field(
        ge=1, le=MAX_LAYERS
    )
    cp: Annotated[Integer, PlanRole("Context parallel", ("cp", "context"))] = Field(ge=1, le=MAX_DEVICES)
    ep: Annotated[Integer, _open("Expert parallel", "ep", "expert")] = Field(ge=1, le=MAX_DEVICES)
    etp: Annotated[Integer, _open("Expert tensor parallel", "etp", "expert tensor")] = Field(
        ge=1, le=MAX_DEVICES
    )
    dp: Annotated[Integer, PlanRole("Data parallel", ("dp", "data parallel", "data-parallel"))] = Field(
        ge=1, le=MAX_DEVICES
    )
    dp_shard: Annotated[Integer, _open("Sharding group", "dp_shard", "shard", "hsdp")] = Field(
        ge=1, le=MAX_DEVICES
    )
    zero_stage: Annotated[Integer, PlanRole("ZeRO stage", ("zero", "fsdp"))] = Field(ge=0, le=FULL_SHARDING)
    micro_batch_size: Annotated[Integer, PlanRole("Micro-batch", ("micro",))] = Field(ge=1, le=MAX_BATCH)
    sequence_parallel: Annotated[bool, _open("Sequence parallel", "sequence")]
    recompute: Annotated[Recompute | None, _open("Recompute", "recomput", "checkpoint", "remat")]
    schedule: Annotated[Schedule, _open("Pipeline schedule")]
    recompute_layers: Annotated[
        Annotated[int, Field(ge=1, le=MAX_LAYERS), BeforeValidator(whole_number)] | None,
        _carried("Recomputed layers"),
        Allowed(f"an integer from 1 to {MAX_LAYERS:,}"),
    ] = Field(None, exclude_if=_is_none)
    """With full recomputation: how many layers of a stage are recomputed; None: all."""
    recompute_modules: Annotated[
        Annotated[tuple[RecomputeModule, ...], Field(min_length=1)] | None,
        FromList,
        _carried("Recomputed modules"),
        Allowed(f"a non-empty list of {', '.join(get_args(RecomputeModule))}"),
    ] = Field(None, exclude_if=_is_none)
    """With selective recomputation: what is repeated; None: what the framework's own switch repeats."""

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


PlanValue = int | str | None
"""A value of a searched plan field; true and false are integers too."""


PLAN_ROLES = {
    name: next(item for item in field.metadata if isinstance(item, PlanRole))
    for name, field in Plan.model_fields.items()
}


def plan_bounds(name: str) -> tuple[int, int]:
    """The least and the greatest value of an integer field of a plan."""
    metadata = Plan.model_fields[name].metadata
    low, high = (next(getattr(item, key) for item in metadata if hasattr(item, key)) for key in ("ge", "le"))
    return low, high


SEARCHED_FIELDS = tuple(name for name, role in PLAN_ROLES.items() if role.is_searched)
"""The plan fields that the search tries values of."""
REQUIRED_PLAN_FIELDS = tuple(name for name, role in PLAN_ROLES.items() if not role.may_be_open)
"""The plan fields that a scenario must state."""


def sharding(stage: int, ranks: int) -> dict[str, int]:
    """The plan fields of a ZeRO stage over these ranks; without a stage there is no group."""
    return {"zero_stage": stage, "dp_shard": ranks if stage else 1}


class Scenario(Record):
    """One workload: what is trained, where, under which contract and, where known, by which plan."""

    id: str | int | float | None = None
    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    plan: Plan | None = None
    constraints: JsonObject = Field(default_factory=dict)
    traces: str | None = Field(None, max_length=MAX_PATH)
    notes: str | None = Field(None, max_length=MAX_NOTES)
