"""The model of a scenario: a decoder of attention, other token mixers, dense and expert feed-forward parts.

Zero, an empty list or null means "does not have it".
"""

from typing import Annotated, Literal

from pydantic import Field

from tools.scenario.fields import WHOLE, Allowed, FromList, StrictModel

MAX_LAYERS = 10_000
MAX_WIDTH = 1_000_000
MAX_VOCABULARY = 100_000_000
MAX_EXPERTS = 100_000
MAX_SEQ_LEN = 100_000_000
MAX_OTHER_PARAMETERS = 10**13

Size = Annotated[int, Field(ge=1, le=MAX_WIDTH), WHOLE]
Width = Annotated[int, Field(ge=0, le=MAX_WIDTH), WHOLE]
WideWidth = Annotated[int, Field(ge=0, le=10 * MAX_WIDTH), WHOLE]
Experts = Annotated[int, Field(ge=0, le=MAX_EXPERTS), WHOLE]
Tokens = Annotated[int, Field(ge=0, le=MAX_SEQ_LEN), WHOLE]
LayerCount = Annotated[int, Field(ge=0, le=MAX_LAYERS), WHOLE]


def _absent(value: object) -> bool:
    """Left out of JSON: most models have none, and stored contracts are compared by their JSON."""
    return not value


MixerKind = Literal[
    "mamba", "mamba2", "linear_attention", "gated_delta_net", "kimi_delta_attention", "short_conv", "rg_lru"
]
LayerKind = Literal["attention", "mixer", "parallel", "none"]
"""What mixes tokens in a layer: softmax attention, the model's other mixer, both side by side, nothing."""
FeedForwardKind = Literal["dense", "moe", "both", "none"]


class MixerSpec(StrictModel):
    """The token mixer of layers that are not softmax attention; widths in elements.

    `inner_size` is the width of values (Mamba: channels), `key_size` that of keys over all heads (Mamba 2:
    groups times state), `state_size` the state per channel (Mamba) or the size of a key head, `low_rank` the
    rank of the step size (Mamba 1) or of the gates (Kimi).
    """

    kind: MixerKind
    inner_size: Annotated[int, Field(ge=1, le=10 * MAX_WIDTH), WHOLE]
    key_size: WideWidth = 0
    state_size: Width = 0
    num_heads: Width = 0
    conv_kernel: Annotated[int, Field(ge=0, le=1000), WHOLE] = 0
    low_rank: Width = 0


class ModelSpec(StrictModel):
    """A decoder, by the names of a Hugging Face config.json."""

    name: str = Field("", max_length=200)
    num_hidden_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS), WHOLE]
    hidden_size: Size
    intermediate_size: WideWidth = 0
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    vocab_size: Annotated[int, Field(ge=1, le=MAX_VOCABULARY), WHOLE]
    gated_mlp: bool = True
    tie_word_embeddings: bool = False

    num_experts: Experts = 0
    num_experts_per_tok: Experts = 0
    moe_intermediate_size: WideWidth = 0
    num_shared_experts: float = Field(0.0, ge=0, le=MAX_EXPERTS)
    shared_expert_intermediate_size: Annotated[int, Field(ge=0, le=100 * MAX_WIDTH), WHOLE] = 0
    first_k_dense_replace: LayerCount = 0
    moe_layer_freq: Annotated[
        Annotated[int, Field(ge=1, le=MAX_LAYERS), WHOLE] | tuple[Literal[0, 1], ...],
        FromList,
        Allowed(
            f"an integer from 1 to {MAX_LAYERS:,}, or a list of 0 (dense) and 1 (experts), one per layer"
        ),
    ] = 1
    """Every n-th layer holds experts; a tuple has a 1 for each layer that does."""
    moe_latent_size: Width = Field(0, exclude_if=_absent)
    """Width that routed experts read and write; 0: the hidden size."""
    n_group: Experts = 0
    topk_group: Experts = 0

    q_lora_rank: Width = 0
    kv_lora_rank: Width = 0
    qk_nope_head_dim: Width = 0
    qk_rope_head_dim: Width = 0
    v_head_dim: Width = 0

    sliding_window: Tokens = 0
    sliding_window_every: float = Field(1.0, ge=1, le=MAX_LAYERS)
    sliding_num_attention_heads: Width = Field(0, exclude_if=_absent)
    sliding_num_key_value_heads: Width = Field(0, exclude_if=_absent)
    sliding_head_dim: Width = Field(0, exclude_if=_absent)
    """Shapes of sliding-window layers; 0: those of the other attention layers."""
    num_nextn_predict_layers: Annotated[int, Field(ge=0, le=100), WHOLE] = 0
    """Depths of multi-token prediction as they run, also where one set of weights serves all."""
    layers_per_nextn: Annotated[int, Field(ge=0, le=100), WHOLE] = Field(0, exclude_if=_absent)
    """Layers of each depth, where a layer is a mixer or a feed-forward part (Nemotron's "*E": 2); 0: one."""
    mtp_use_repeated_layer: bool = Field(False, exclude_if=_absent)
    """One depth's weights serve all (Megatron-LM, --mtp-use-repeated-layer)."""

    index_n_heads: Width = Field(0, exclude_if=_absent)
    index_head_dim: Width = Field(0, exclude_if=_absent)
    index_topk: Tokens = Field(0, exclude_if=_absent)
    """Sparse attention: an indexer scores all keys and attention reads the best (DeepSeek-V3.2)."""
    num_index_layers: LayerCount = Field(0, exclude_if=_absent)
    """Layers with an indexer of their own; 0: all, if there is one."""
    compress_ratios: Annotated[tuple[Tokens, ...], FromList] = Field((), exclude_if=_absent)
    """Per layer: how many keys are compressed into one (DeepSeek-V4); 0: only the window is read."""
    o_lora_rank: Width = Field(0, exclude_if=_absent)
    o_groups: Width = Field(0, exclude_if=_absent)
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
    other_parameters: Annotated[int, Field(ge=-MAX_OTHER_PARAMETERS, le=MAX_OTHER_PARAMETERS), WHOLE] = Field(
        0, exclude_if=_absent
    )
    """What the fields above do not count: biases, position tables, per-layer embeddings; less than 0 if
    parts are shared between layers."""

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def num_nextn_layers(self) -> int:
        """That multi-token prediction runs beside the model's own."""
        return self.num_nextn_predict_layers * max(self.layers_per_nextn, 1)

    @property
    def num_repeated_nextn_layers(self) -> int:
        """Those of them that run on another depth's weights."""
        depths = self.num_nextn_predict_layers if self.mtp_use_repeated_layer else 0
        return max(depths - 1, 0) * max(self.layers_per_nextn, 1)

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
