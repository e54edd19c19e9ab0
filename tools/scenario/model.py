"""The model of a scenario: a decoder of attention, other token mixers, dense and expert feed-forward parts.

Zero, an empty list or null means "does not have it".
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from tools.scenario.fields import Allowed, FromList, Integer


class Record(BaseModel):
    """Base of all parts of a scenario: immutable, strictly typed, finite, closed to unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


MAX_LAYERS = 10_000
MAX_WIDTH = 1_000_000
MAX_VOCABULARY = 100_000_000
MAX_EXPERTS = 100_000
MAX_SEQ_LEN = 100_000_000
MAX_OTHER_PARAMETERS = 10**13


def _absent(value: object) -> bool:
    """Left out of JSON: most models have none, and stored contracts are compared by their JSON."""
    return not value


MixerKind = Literal[
    "mamba", "mamba2", "linear_attention", "gated_delta_net", "kimi_delta_attention", "short_conv", "rg_lru"
]
LayerKind = Literal["attention", "mixer", "parallel", "none"]
"""What mixes tokens in a layer: softmax attention, the model's other mixer, both side by side, nothing."""
FeedForwardKind = Literal["dense", "moe", "both", "none"]


class MixerSpec(Record):
    """The token mixer of layers that are not softmax attention; widths in elements.

    `inner_size` is the width of values (Mamba: channels), `key_size` that of keys over all heads (Mamba 2:
    groups times state), `state_size` the state per channel (Mamba) or the size of a key head, `low_rank` the
    rank of the step size (Mamba 1) or of the gates (Kimi).
    """

    kind: MixerKind
    inner_size: Integer = Field(ge=1, le=10 * MAX_WIDTH)
    key_size: Integer = Field(0, ge=0, le=10 * MAX_WIDTH)
    state_size: Integer = Field(0, ge=0, le=MAX_WIDTH)
    num_heads: Integer = Field(0, ge=0, le=MAX_WIDTH)
    conv_kernel: Integer = Field(0, ge=0, le=1000)
    low_rank: Integer = Field(0, ge=0, le=MAX_WIDTH)


class ModelSpec(Record):
    """A decoder, by the names of a Hugging Face config.json."""

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
    moe_latent_size: Integer = Field(0, ge=0, le=MAX_WIDTH, exclude_if=_absent)
    """Width that routed experts read and write; 0: the hidden size."""
    n_group: Integer = Field(0, ge=0, le=MAX_EXPERTS)
    topk_group: Integer = Field(0, ge=0, le=MAX_EXPERTS)

    q_lora_rank: Integer = Field(0, ge=0, le=MAX_WIDTH)
    kv_lora_rank: Integer = Field(0, ge=0, le=MAX_WIDTH)
    qk_nope_head_dim: Integer = Field(0, ge=0, le=MAX_WIDTH)
    qk_rope_head_dim: Integer = Field(0, ge=0, le=MAX_WIDTH)
    v_head_dim: Integer = Field(0, ge=0, le=MAX_WIDTH)

    sliding_window: Integer = Field(0, ge=0, le=MAX_SEQ_LEN)
    sliding_window_every: float = Field(1.0, ge=1, le=MAX_LAYERS)
    sliding_num_attention_heads: Integer = Field(0, ge=0, le=MAX_WIDTH, exclude_if=_absent)
    sliding_num_key_value_heads: Integer = Field(0, ge=0, le=MAX_WIDTH, exclude_if=_absent)
    sliding_head_dim: Integer = Field(0, ge=0, le=MAX_WIDTH, exclude_if=_absent)
    """Shapes of sliding-window layers; 0: those of the other attention layers."""
    num_nextn_predict_layers: Integer = Field(0, ge=0, le=100)

    index_n_heads: Integer = Field(0, ge=0, le=MAX_WIDTH, exclude_if=_absent)
    index_head_dim: Integer = Field(0, ge=0, le=MAX_WIDTH, exclude_if=_absent)
    index_topk: Integer = Field(0, ge=0, le=MAX_SEQ_LEN, exclude_if=_absent)
    """Sparse attention: an indexer scores all keys and attention reads the best (DeepSeek-V3.2)."""
    num_index_layers: Integer = Field(0, ge=0, le=MAX_LAYERS, exclude_if=_absent)
    """Layers with an indexer of their own; 0: all, if there is one."""
    compress_ratios: Annotated[tuple[Annotated[Integer, Field(ge=0, le=MAX_SEQ_LEN)], ...], FromList] = Field(
        (), exclude_if=_absent
    )
    """Per layer: how many keys are compressed into one (DeepSeek-V4); 0: only the window is read."""
    o_lora_rank: Integer = Field(0, ge=0, le=MAX_WIDTH, exclude_if=_absent)
    o_groups: Integer = Field(0, ge=0, le=MAX_WIDTH, exclude_if=_absent)
    attn_output_gate: bool = Field(False, exclude_if=_absent)
    """Queries are projected twice: the second gates the output (Qwen3-Next)."""

    mixer: MixerSpec | None = Field(None, exclude_if=_absent)
    layer_types: Annotated[
        tuple[LayerKind, ...],
        FromList,
        Allowed("a list of attention, mixer, parallel and none, one per layer"),
    ] = Field((), exclude_if=_absent)
    """Empty: attention in every layer."""
    ffn_types: Annotated[
        tuple[FeedForwardKind, ...], FromList, Allowed("a list of dense, moe, both and none, one per layer")
    ] = Field((), exclude_if=_absent)
    """Empty: one feed-forward part per layer, with experts as `moe_layer_freq` says."""
    left_out: Annotated[tuple[str, ...], FromList, Allowed("a list of names")] = Field((), exclude_if=_absent)
    """Parts of a multimodal model beside the text model, which alone is planned."""
    other_parameters: Integer = Field(
        0, ge=-MAX_OTHER_PARAMETERS, le=MAX_OTHER_PARAMETERS, exclude_if=_absent
    )
    """What the fields above do not count: biases, position tables, per-layer embeddings; less than 0 if
    parts are shared between layers."""

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank > 0

    def is_moe_layer(self, layer: int) -> bool:
        """By the list of layers, or leading dense layers and then every n-th (layers count from 0)."""
        if self.ffn_types:
            return self.ffn_types[layer] in ("moe", "both")
        if isinstance(self.moe_layer_freq, tuple):
            return self.is_moe and self.moe_layer_freq[layer] == 1
        return self.is_moe and layer >= self.first_k_dense_replace and (layer + 1) % self.moe_layer_freq == 0

    @property
    def num_moe_layers(self) -> int:
        if self.ffn_types:
            return sum(kind in ("moe", "both") for kind in self.ffn_types)
        if isinstance(self.moe_layer_freq, tuple):
            return sum(self.moe_layer_freq) if self.is_moe else 0
        leading = min(self.first_k_dense_replace, self.num_hidden_layers)
        counted = self.num_hidden_layers // self.moe_layer_freq - leading // self.moe_layer_freq
        return counted if self.is_moe else 0

    @property
    def num_dense_layers(self) -> int:
        if self.ffn_types:
            return sum(kind in ("dense", "both") for kind in self.ffn_types)
        return self.num_hidden_layers - self.num_moe_layers

    @property
    def num_attention_layers(self) -> int:
        """Layers with softmax attention."""
        if not self.layer_types:
            return self.num_hidden_layers
        return sum(kind in ("attention", "parallel") for kind in self.layer_types)

    @property
    def num_mixer_layers(self) -> int:
        """Layers with the other token mixer."""
        return sum(kind in ("mixer", "parallel") for kind in self.layer_types)

    @property
    def num_sliding_layers(self) -> int:
        """Layers whose attention sees only `sliding_window` tokens."""
        return round(self.num_hidden_layers / self.sliding_window_every) if self.sliding_window else 0
