"""A chunk of the network: some layers and, at the ends, the embedding and the head with the loss.

The whole model is the chunk of all layers. Names are global (`layers.7.attention.query.weight` whatever the
stage), because weights are seeded by name. The head gives the loss, not the logits, so that no schedule
keeps them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tools.scenario import ModelSpec
from tools.trainer.attention import Attention, Rotary
from tools.trainer.experts import ExpertLayer
from tools.trainer.feed_forward import FeedForward
from tools.trainer.layout import Layout
from tools.trainer.loss import mean_cross_entropy
from tools.trainer.recompute import recomputing
from tools.trainer.stages import ChunkSpec
from tools.trainer.tensor_parallel import ColumnLinear, Norm, Region, VocabularyEmbedding


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

    def forward(self, given: Tensor, targets: Tensor) -> Tensor:
        """Tokens (batch, sequence) or hidden states in; hidden states or the micro-batch's loss out."""
        recipe = self.recipe
        hidden = given if self.embedding is None else self._embed(given)
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
