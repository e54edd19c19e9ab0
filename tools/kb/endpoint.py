"""Vectors from an OpenAI-compatible endpoint (`POST {base_url}/embeddings`).

The key goes into one request header and nowhere else: not into repr, identity, errors or logs. What the
server says when it fails is not repeated either, since some quote the key back.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.address import parse_address
from tools.errors import InputError
from tools.kb.errors import EmbeddingError

_BATCH = 64


@dataclass(frozen=True)
class EndpointEmbedder:
    """An embedder behind HTTP."""

    base_url: str
    model: str
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        parse_address("base_url", self.base_url)
        if not self.model:
            raise InputError("model", self.model, "must name the embedding model")
        if not self.timeout_s > 0:
            raise InputError("timeout_s", self.timeout_s, "must be above 0")

    @property
    def identity(self) -> str:
        return f"{self.model} at {self.base_url.rstrip('/')}"

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, of unit length; a batch that fails fails the whole call."""
        return [
            vector
            for start in range(0, len(texts), _BATCH)
            for vector in self._post(texts[start : start + _BATCH])
        ]

    def _post(self, texts: Sequence[str]) -> list[list[float]]:
        import httpx

        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        body = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        url = f"{self.base_url.rstrip('/')}/embeddings"
        try:
            response = httpx.post(url, json=body, headers=headers, timeout=self.timeout_s)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise EmbeddingError(f"{url}: {type(error).__name__} within {self.timeout_s:g} s") from None
        if response.status_code != httpx.codes.OK:
            raise EmbeddingError(f"{url}: answered {response.status_code}")
        try:
            return list(_vectors(response.json(), len(texts)))
        except (ValueError, TypeError, KeyError, IndexError):
            raise EmbeddingError(f"{url}: answered what are not {len(texts)} vectors") from None


def _vectors(answer: dict[str, Any], count: int) -> Iterator[list[float]]:
    """The vectors in the order of the texts: the answer numbers them and need not keep the order."""
    data = sorted(answer["data"], key=lambda item: int(item["index"]))
    if [item["index"] for item in data] != list(range(count)):
        raise ValueError("not one vector a text")
    if len({len(item["embedding"]) for item in data}) > 1:
        raise ValueError("vectors of different lengths")
    for item in data:
        vector = [float(value) for value in item["embedding"]]
        length = math.hypot(*vector)
        if not 0 < length < math.inf:
            raise ValueError("a vector without direction")
        yield [value / length for value in vector]
