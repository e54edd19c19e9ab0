"""The forward pass of a BERT encoder (Devlin et al., 2018) in NumPy, as all-MiniLM-L6-v2 needs it.

In a file of its own because it imports SciPy.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

Array = NDArray[np.float32]
_LAYER_NORM_EPSILON = 1e-12
_MASKED = np.float32(-1e9)
_ROOT_2 = np.float32(np.sqrt(2))


@dataclass(frozen=True)
class Bert:
    """The weights under the names of the published checkpoint, and the one number they do not tell."""

    weights: Mapping[str, Array]
    num_heads: int

    def encode(self, tokens: NDArray[np.int64], mask: NDArray[np.bool_]) -> Array:
        """The last hidden state of each token: batch x tokens x hidden. `mask` is False on padding."""
        hidden = self._embed(tokens)
        # Added to the attention scores: padding gets a weight of zero.
        bias = np.where(mask, np.float32(0), _MASKED)[:, None, None, :]
        layer = 0
        while f"encoder.layer.{layer}.output.dense.weight" in self.weights:
            hidden = self._layer(f"encoder.layer.{layer}", hidden, bias)
            layer += 1
        return hidden

    def _embed(self, tokens: NDArray[np.int64]) -> Array:
        words = self.weights["embeddings.word_embeddings.weight"][tokens]
        positions = self.weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        kind = self.weights["embeddings.token_type_embeddings.weight"][0]
        return self._norm("embeddings.LayerNorm", words + positions + kind)

    def _layer(self, name: str, hidden: Array, bias: Array) -> Array:
        attended = self._linear(f"{name}.attention.output.dense", self._attend(name, hidden, bias))
        hidden = self._norm(f"{name}.attention.output.LayerNorm", hidden + attended)
        inner = self._linear(f"{name}.intermediate.dense", hidden)
        inner = inner * np.float32(0.5) * (1 + erf(inner / _ROOT_2))
        outer = self._linear(f"{name}.output.dense", inner)
        return self._norm(f"{name}.output.LayerNorm", hidden + outer)

    def _attend(self, name: str, hidden: Array, bias: Array) -> Array:
        query, key, value = (
            self._heads(self._linear(f"{name}.attention.self.{part}", hidden))
            for part in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(-1, -2) / np.float32(np.sqrt(query.shape[-1])) + bias
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ value
        joined: Array = mixed.swapaxes(1, 2).reshape(hidden.shape)
        return joined

    def _heads(self, projected: Array) -> Array:
        batch, length, width = projected.shape
        return projected.reshape(batch, length, self.num_heads, width // self.num_heads).swapaxes(1, 2)

    def _linear(self, name: str, hidden: Array) -> Array:
        # As one matrix: NumPy multiplies a stack one by one, which takes four times as long.
        rows = hidden.reshape(-1, hidden.shape[-1]) @ self.weights[f"{name}.weight"].T
        rows += self.weights[f"{name}.bias"]
        return rows.reshape(*hidden.shape[:-1], -1)

    def _norm(self, name: str, hidden: Array) -> Array:
        centred = hidden - hidden.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        scaled: Array = centred / np.sqrt(variance + np.float32(_LAYER_NORM_EPSILON))
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
