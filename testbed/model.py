"""A chunk of the network (layers; at the ends embedding and head with the loss), and what layers keep for
backward.

Parameter names are global whatever the stage, because weights are seeded by name.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from testbed.attention import Attention, Rotary
from testbed.feed_forward import ExpertLayer, FeedForward
from testbed.layout import Layout
from testbed.plan import ChunkSpec
from testbed.tensor_parallel import ColumnLinear, Norm, Region, VocabularyEmbedding, mean_cross_entropy
from tools.scenario import ModelSpec

Layer = Callable[[Tensor, Rotary], Tensor]


class _PolicyContext(Protocol):
    is_recompute: bool


def recomputing(recompute: str, layer: Layer) -> Layer:
    """The layer, run under the plan's recomputation."""
    if recompute == "none":
        return layer
    run: Callable[..., Tensor] = partial(checkpoint, layer, use_reentrant=False)
    return partial(run, context_fn=selective_contexts) if recompute == "selective" else run


def selective_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The pair of contexts, forward and recomputation, of one call of one layer."""
    contexts: Callable[..., tuple[AbstractContextManager[None], AbstractContextManager[None]]] = (
        create_selective_checkpoint_contexts
    )
    return contexts(EverySecondProduct())


class EverySecondProduct:
    """The policy; it counts the products of the forward pass and of the recomputation apart."""

    def __init__(self) -> None:
        self._products = {False: 0, True: 0}
        self._kept = _kept_operators()
        self._product = torch.ops.aten.mm.default

    def __call__(
        self, context: _PolicyContext, operator: object, *arguments: object, **named: object
    ) -> CheckpointPolicy:
        keep = operator in self._kept
        if operator == self._product:
            self._products[context.is_recompute] += 1
            keep = self._products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def _kept_operators() -> set[object]:
    aten, collectives = torch.ops.aten, torch.ops._c10d_functional
    return {
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        collectives.all_reduce.default,
        collectives.reduce_scatter_tensor.default,
        collectives.all_to_all_single.default,
    }


@dataclass(frozen=True)
class Recipe:
    """What every layer of a run has in common."""

    model: ModelSpec
    layout: Layout
    seq_len: int
    sequence_parallel: bool
    recompute: str
    flash: bool
    micro_batches: int
    dtype: torch.dtype = torch.float32
    balanced_routing: bool = False

    @property
    def region(self) -> Region:
        return Region(self.layout.tp, self.sequence_parallel)


class Block(nn.Module):
    """One layer: attention, then a feed-forward network or experts, each behind a norm."""

    def __init__(self, recipe: Recipe, has_experts: bool) -> None:
        super().__init__()
        model, region = recipe.model, recipe.region
        self.attention_norm = Norm(model.hidden_size)
        self.attention = Attention(model, region, recipe.layout.cp, recipe.flash)
        self.feed_forward_norm = Norm(model.hidden_size)
        self.feed_forward: nn.Module = (
            ExpertLayer(model, region, recipe.layout.ep, recipe.balanced_routing)
            if has_experts
            else FeedForward(model.hidden_size, model.intermediate_size, model.gated_mlp, region)
        )
        self._run = recomputing(recipe.recompute, self._layer)

    def forward(self, hidden: Tensor, rotary: Rotary) -> Tensor:
        return self._run(hidden, rotary)

    def _layer(self, hidden: Tensor, rotary: Rotary) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), rotary)
        added: Tensor = self.feed_forward(self.feed_forward_norm(hidden))
        return hidden + added


class Chunk(nn.Module):
    def __init__(self, recipe: Recipe, spec: ChunkSpec) -> None:
        super().__init__()
        model, tp = recipe.model, recipe.layout.tp
        self.recipe, self.spec = recipe, spec
        self.embedding = (
            VocabularyEmbedding(model.vocab_size, model.hidden_size, tp) if spec.is_first else None
        )
        self.layers = nn.ModuleDict({str(i): Block(recipe, experts) for i, experts in spec.layers.items()})
        self.norm = Norm(model.hidden_size) if spec.is_last else None
        self.head = ColumnLinear(model.hidden_size, model.vocab_size, tp) if spec.is_last else None
        self.tie()

    def tie(self) -> None:
        """Again after `to_empty`, which gives each module a parameter of its own."""
        if self.head and self.embedding and self.recipe.model.tie_word_embeddings:
            self.head.weight = self.embedding.weight

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Tokens (batch, sequence) or hidden states in; hidden states or the micro-batch's loss out."""
        recipe = self.recipe
        hidden = inputs if self.embedding is None else self._embed(inputs)
        rotary = Rotary(recipe.seq_len, recipe.model.head_dim, recipe.layout.cp, hidden.device)
        for layer in self.layers.values():
            hidden = layer(hidden, rotary)
        return hidden if self.head is None else self._loss(hidden, targets)

    def _embed(self, tokens: Tensor) -> Tensor:
        assert self.embedding is not None
        return self.recipe.region.leave(self.embedding(tokens.t()).to(self.recipe.dtype))

    def _loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        assert self.norm is not None
        assert self.head is not None
        logits = self.head(self.recipe.region.enter(self.norm(hidden)))
        return mean_cross_entropy(logits, targets, self.recipe.layout.tp) / self.recipe.micro_batches
