"""The vectors of entries in Chroma, for search by meaning.

One collection for each embedder and version of the seed: its name carries a digest of both, so vectors of two
embedders, or of an older text, are never compared. A few entries that have no vector yet get one before the
next search, whoever wrote them; many are made only when asked for, since a search should not take a minute.
Losing a collection loses nothing but the time to make it again.
"""

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any, TypeVar

from chromadb.api import ClientAPI
from chromadb.api.models.Collection import Collection
from chromadb.errors import NotFoundError

from tools.kb.chroma import belonging_to, chroma_errors, tenant_field
from tools.kb.embedder import Embedder
from tools.kb.entry import Entry
from tools.kb.errors import KnowledgeError

PREFIX = "asap-vectors-"
_CANDIDATES = 50
# The title and the symptoms or the beginning of the story: longer texts blur what they are about (recall@3 of
# vectors alone on the retrieval benchmark: 0.71 with 300 characters, 0.68 with 600 and with 1,200).
_GIST_CHARACTERS = 300
_BATCH = 64
_MOST_BEFORE_A_SEARCH = 16
Result = TypeVar("Result")


class VectorIndex:
    """Vectors of one embedder, made as they are needed."""

    def __init__(self, client: ClientAPI, embedder: Embedder, seed_version: str) -> None:
        self._client, self._embedder, self._seed_version = client, embedder, seed_version
        digest = sha256(f"{embedder.identity}\n{seed_version}".encode()).hexdigest()
        self.name = f"{PREFIX}{digest[:24]}"
        self._collection: Collection | None = None
        self._present: set[str] = set()

    def similarities(self, query: str, entries: Sequence[Entry], tenant: str | None) -> dict[str, float]:
        """How near the query is in meaning to the nearest of these entries, by entry key: a cosine."""
        return self._with_collection("search the vectors", lambda: self._nearest(query, entries, tenant))

    def missing(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those of the entries that have no vector yet."""
        return self._with_collection("look for vectors", lambda: self._missing(entries))

    def add(self, entries: Sequence[Entry]) -> int:
        """Makes the vectors that are missing and returns how many that were."""
        return self._with_collection("store vectors", lambda: self._add(entries))

    def rebuild(self, entries: Sequence[Entry]) -> int:
        """Drops all vectors, those of other embedders and older seeds too, and makes them anew."""
        with chroma_errors("drop the old vectors"):
            for collection in self._client.list_collections():
                if collection.name.startswith(PREFIX):
                    self._client.delete_collection(collection.name)
        self._forget()
        return self.add(entries)

    def _with_collection(self, doing: str, work: Callable[[], Result]) -> Result:
        """Once more with a new collection when someone re-indexed meanwhile."""
        with chroma_errors(doing):
            try:
                return work()
            except NotFoundError:
                self._forget()
                return work()

    def _nearest(self, query: str, entries: Sequence[Entry], tenant: str | None) -> dict[str, float]:
        missing = self._missing(entries)
        if len(missing) > _MOST_BEFORE_A_SEARCH:
            raise KnowledgeError(f"{len(missing)} entries have no vectors yet; 'asap kb reindex' makes them")
        self._add(missing)
        vectors: list[Any] = self._embedder.embed([query])
        found = self._opened().query(
            query_embeddings=vectors,
            n_results=_CANDIDATES,
            where=belonging_to({None, tenant}),
            include=["distances"],
        )
        distances = found["distances"] or [[]]
        return {key: 1.0 - distance for key, distance in zip(found["ids"][0], distances[0], strict=True)}

    def _add(self, entries: Sequence[Entry]) -> int:
        missing = self._missing(entries)
        for batch in _batches(missing):
            self._embed(batch)
            self._present |= {entry.key for entry in batch}
        return len(missing)

    def _missing(self, entries: Sequence[Entry]) -> list[Entry]:
        unknown = [entry for entry in entries if entry.key not in self._present]
        for batch in _batches(unknown):
            there = self._opened().get(ids=[entry.key for entry in batch], include=[])["ids"]
            self._present |= set(there)
        return [entry for entry in unknown if entry.key not in self._present]

    def _embed(self, entries: Sequence[Entry]) -> None:
        vectors: list[Any] = self._embedder.embed([_gist(entry) for entry in entries])
        self._opened().add(
            ids=[entry.key for entry in entries],
            embeddings=vectors,
            metadatas=[{"tenant": tenant_field(entry.tenant)} for entry in entries],
        )

    def _opened(self) -> Collection:
        if self._collection is None:
            self._collection = self._client.get_or_create_collection(
                self.name,
                embedding_function=None,
                configuration={"hnsw": {"space": "cosine"}},
                metadata={"embedder": self._embedder.identity, "seed": self._seed_version},
            )
        return self._collection

    def _forget(self) -> None:
        self._collection, self._present = None, set()


def _gist(entry: Entry) -> str:
    return f"{entry.title}\n{entry.text}"[:_GIST_CHARACTERS]


def _batches(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    for start in range(0, len(entries), _BATCH):
        yield entries[start : start + _BATCH]
