"""The forward pass of a BERT encoder (Devlin et al., 2018) in NumPy, as all-MiniLM-L6-v2 needs it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
_LAYER_NORM_EPSILON = 1e-12
_MASKED = np.float32(-1e9)
_ROOT_2 = np.float32(np.sqrt(2))
_ERF = [np.float32(c) for c in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0.3275911)]
"""Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: off by at most 1.5e-7, as float32 is."""


@dataclass(frozen=True)
class Bert:
    """The weights under the names of the published checkpoint, and the one number they do not tell."""

    weights: Mapping[str, Float32]
    num_heads: int

    def encode(self, tokens: NDArray[np.int64], mask: NDArray[np.bool_]) -> Float32:
        """The last hidden state of each token: batch x tokens x hidden. `mask` is False on padding."""
        words = self.weights["embeddings.word_embeddings.weight"][tokens]
        positions = self.weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        kind = self.weights["embeddings.token_type_embeddings.weight"][0]
        hidden = self._norm("embeddings.LayerNorm", words + positions + kind)
        # Added to the attention scores: padding gets a weight of zero.
        bias = np.where(mask, np.float32(0), _MASKED)[:, None, None, :]
        layer = 0
        while (name := f"encoder.layer.{layer}") + ".output.dense.weight" in self.weights:
            attended = self._linear(f"{name}.attention.output.dense", self._attend(name, hidden, bias))
            hidden = self._norm(f"{name}.attention.output.LayerNorm", hidden + attended)
            inner = self._linear(f"{name}.intermediate.dense", hidden)
            inner *= np.float32(0.5) * (1 + _erf(inner / _ROOT_2))
            outer = self._linear(f"{name}.output.dense", inner)
            hidden = self._norm(f"{name}.output.LayerNorm", hidden + outer)
            layer += 1
        return hidden

    def _attend(self, name: str, hidden: Float32, bias: Float32) -> Float32:
        batch, length, width = hidden.shape
        by_head = (batch, length, self.num_heads, width // self.num_heads)
        query, key, value = (
            self._linear(f"{name}.attention.self.{part}", hidden).reshape(by_head).swapaxes(1, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(-1, -2) / np.float32(np.sqrt(query.shape[-1])) + bias
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ value
        joined: Float32 = mixed.swapaxes(1, 2).reshape(hidden.shape)
        return joined

    def _linear(self, name: str, hidden: Float32) -> Float32:
        # As one matrix: NumPy multiplies a stack one by one, which takes four times as long.
        rows = hidden.reshape(-1, hidden.shape[-1]) @ self.weights[f"{name}.weight"].T
        rows += self.weights[f"{name}.bias"]
        return rows.reshape(*hidden.shape[:-1], -1)

    def _norm(self, name: str, hidden: Float32) -> Float32:
        centred = hidden - hidden.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        scaled: Float32 = centred / np.sqrt(variance + np.float32(_LAYER_NORM_EPSILON))
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def _erf(x: Float32) -> Float32:
    *coefficients, scale = _ERF
    t = 1 / (1 + scale * np.abs(x))
    tail = np.zeros_like(t)
    for coefficient in coefficients:
        tail += coefficient
        tail *= t
    signed: Float32 = np.copysign(1 - tail * np.exp(-x * x), x)
    return signed
