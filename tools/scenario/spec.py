"""The words of a scenario: model, cluster, training, plan, with every default already filled in.

The names are the contract's; zero stands for "does not have it" in a model's counts (no experts, no
MLA, no sliding window), so that the cost model computes with numbers only. What is read here is already
canonical: Hugging Face synonyms are translated in `huggingface.py`, nulls of a plan in `defaults.py`.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from tools.scenario.fields import Allowed, FromList, Integer, Record

MAX_LAYERS = 10_000
MAX_WIDTH = 1_000_000
MAX_VOCABULARY = 100_000_000
MAX_EXPERTS = 100_000
MAX_SEQ_LEN = 100_000_000
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
Recompute = Literal["none", "selective", "full"]
Schedule = Literal["1f1b", "interleaved", "zero_bubble", "gpipe"]
Network = Literal["rail", "fat-tree", "torus"]
MoeDispatcher = Literal["alltoall", "allgather", "deepep", "hybridep"]
LoraTarget = Literal["attention", "mlp"]
Month = Annotated[str, Field(pattern="^20[0-9]{2}-(0[1-9]|1[0-2])$")]
MAX_CAPACITY_FACTOR = 1000


class ModelSpec(Record):
    """A transformer, by the names of a Hugging Face config.json."""

    name: str = Field("", max_length=200)
    num_hidden_layers: Integer = Field(ge=1, le=MAX_LAYERS)
    hidden_size: Integer = Field(ge=1, le=MAX_WIDTH)
    intermediate_size: Integer = Field(0, ge=0, le=10 * MAX_WIDTH)
    num_attention_heads: Integer = Field(ge=1, le=MAX_WIDTH)
    num_key_value_heads: Integer = Field(ge=1, le=MAX_WIDTH)
    head_dim: Integer = Field(ge=1, le=MAX_WIDTH)
    vocab_size: Integer = Field(ge=1, le=MAX_VOCABULARY)
    gated_mlp: bool = True
    tie_word_embeddings: bool = False

    num_experts: Integer = Field(0, ge=0, le=MAX_EXPERTS)
    num_experts_per_tok: Integer = Field(0, ge=0, le=MAX_EXPERTS)
    moe_intermediate_size: Integer = Field(0, ge=0, le=10 * MAX_WIDTH)
    num_shared_experts: float = Field(0.0, ge=0, le=MAX_EXPERTS)
    shared_expert_intermediate_size: Integer = Field(0, ge=0, le=100 * MAX_WIDTH)
    first_k_dense_replace: Integer = Field(0, ge=0, le=MAX_LAYERS)
    moe_layer_freq: Annotated[
        Annotated[Integer, Field(ge=1, le=MAX_LAYERS)] | tuple[Literal[0, 1], ...],
        FromList,
        Allowed(
            f"an integer from 1 to {MAX_LAYERS:,}, or a list of 0 (dense) and 1 (experts), one per layer"
        ),
    ] = 1
    """Every n-th layer holds experts; a tuple has a 1 for each layer that does."""
    n_group: Integer = Field(0, ge=0, le=MAX_EXPERTS)
    topk_group: Integer = Field(0, ge=0, le=MAX_EXPERTS)

    q_lora_rank: Integer = Field(0, ge=0, le=MAX_WIDTH)
    kv_lora_rank: Integer = Field(0, ge=0, le=MAX_WIDTH)
    qk_nope_head_dim: Integer = Field(0, ge=0, le=MAX_WIDTH)
    qk_rope_head_dim: Integer = Field(0, ge=0, le=MAX_WIDTH)
    v_head_dim: Integer = Field(0, ge=0, le=MAX_WIDTH)

    sliding_window: Integer = Field(0, ge=0, le=MAX_SEQ_LEN)
    sliding_window_every: float = Field(1.0, ge=1, le=MAX_LAYERS)
    num_nextn_predict_layers: Integer = Field(0, ge=0, le=100)

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank > 0

    def is_moe_layer(self, layer: int) -> bool:
        """By the list of layers, or leading dense layers and then every n-th (layers count from 0)."""
        if isinstance(self.moe_layer_freq, tuple):
            return self.is_moe and self.moe_layer_freq[layer] == 1
        return self.is_moe and layer >= self.first_k_dense_replace and (layer + 1) % self.moe_layer_freq == 0

    @property
    def num_moe_layers(self) -> int:
        if isinstance(self.moe_layer_freq, tuple):
            return sum(self.moe_layer_freq) if self.is_moe else 0
        leading = min(self.first_k_dense_replace, self.num_hidden_layers)
        counted = self.num_hidden_layers // self.moe_layer_freq - leading // self.moe_layer_freq
        return counted if self.is_moe else 0

    @property
    def num_dense_layers(self) -> int:
        return self.num_hidden_layers - self.num_moe_layers

    @property
    def num_sliding_layers(self) -> int:
        """Layers whose attention sees only `sliding_window` tokens."""
        return round(self.num_hidden_layers / self.sliding_window_every) if self.sliding_window else 0


class TopologySpec(Record):
    """What is above the node: the fast-link domain, the network, its oversubscription."""

    nvlink_domain_size: Integer | None = Field(None, ge=1, le=MAX_DEVICES)
    network: Network | None = None
    oversubscription: float = Field(1.0, ge=1, le=1000)
    torus_dimensions: tuple[Annotated[Integer, Field(ge=1, le=MAX_DEVICES)], ...] | None = None


class ClusterSpec(Record):
    """The devices a job runs on; `overrides` replaces figures of the hardware catalogue.

    `name` is what the installation calls the cluster. Stored and shown; no prediction reads it yet.
    """

    name: str | None = Field(None, min_length=1, max_length=MAX_NAME)
    device: str = Field(max_length=100)
    num_devices: Integer = Field(ge=1, le=MAX_DEVICES)
    devices_per_node: Integer = Field(ge=1, le=MAX_DEVICES)
    overrides: dict[str, Any] = Field(default_factory=dict)
    topology: TopologySpec | None = None


class LoraSpec(Record):
    """Low-rank adapters on frozen base weights."""

    rank: Integer = Field(ge=1, le=MAX_WIDTH)
    targets: Annotated[
        tuple[LoraTarget, ...],
        Field(min_length=1),
        FromList,
        Allowed('a non-empty list of "attention" and "mlp"'),
    ] = ("attention", "mlp")


class TrainingSpec(Record):
    """The measurement contract: plans are comparable only where it is equal.

    Everything from `software_date` on is stored and shown, but not priced yet: it changes no prediction. None
    means "not stated": the newest known software, the framework's own default for a switch, dropless routing
    for `capacity_factor`, full training for `lora`.
    """

    seq_len: Integer = Field(ge=1, le=MAX_SEQ_LEN)
    global_batch_size: Integer = Field(ge=1, le=MAX_BATCH)
    precision: Precision
    framework: Framework
    flash_attention: bool = True
    software_date: Annotated[Month | None, Allowed('a month from 2000 to 2099, as "2026-06"')] = None
    moe_dispatcher: MoeDispatcher | None = None
    overlap_moe_communication: bool | None = None
    cuda_graph: bool | None = None
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
            stated["lora"] = f"rank {self.lora.rank} on {' and '.join(self.lora.targets)}"
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
    "cuda_graph",
    "capacity_factor",
    "optimizer_offload",
    "lora",
)
"""Fields of `TrainingSpec` that a scenario may leave out and that change speed at the same plan."""


class Plan(Record):
    """A sharding configuration; `recompute` None lets the cost model choose by memory."""

    tp: Integer = Field(ge=1, le=MAX_DEVICES)
    pp: Integer = Field(ge=1, le=MAX_DEVICES)
    vpp: Integer = Field(ge=1, le=MAX_LAYERS)
    cp: Integer = Field(ge=1, le=MAX_DEVICES)
    ep: Integer = Field(ge=1, le=MAX_DEVICES)
    etp: Integer = Field(ge=1, le=MAX_DEVICES)
    dp: Integer = Field(ge=1, le=MAX_DEVICES)
    dp_shard: Integer = Field(ge=1, le=MAX_DEVICES)
    zero_stage: Integer = Field(ge=0, le=3)
    micro_batch_size: Integer = Field(ge=1, le=MAX_BATCH)
    sequence_parallel: bool
    recompute: Recompute | None
    schedule: Schedule


class Scenario(Record):
    """One workload: what is trained, where, under which contract and, where known, by which plan."""

    id: str | int | float | None = None
    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    plan: Plan | None = None
    constraints: dict[str, Any] = Field(default_factory=dict)
    traces: str | None = Field(None, max_length=MAX_PATH)
    notes: str | None = Field(None, max_length=MAX_NOTES)
