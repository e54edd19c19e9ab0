"""Chroma, embedded in a folder or as a server: the ledger of cases and the vectors of entries.

In a file of its own because it imports chromadb. One vector collection per embedder and seed version.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, cast

import chromadb
import httpx
from chromadb.api import ClientAPI
from chromadb.api.client import Client
from chromadb.api.models.Collection import Collection
from chromadb.api.types import Metadata, Where
from chromadb.config import Settings
from chromadb.errors import ChromaError, NotFoundError

from tools.kb.embed import CANDIDATES, Embedder, gist
from tools.kb.entries import SHARED, Entry, KnowledgeError
from tools.kb.ledger import AddedCase, AnyRecord, LedgerRecord, Mark

LEDGER = "asap-cases"
PREFIX = "asap-vectors-"
SEED = "/seed"
"""In place of a tenant: vectors that every tenant searches."""
_BATCH = 64
FoundT = TypeVar("FoundT")
_TIMEOUT_S = 30.0
_DEFAULT = ""
_NO_VECTOR: list[Sequence[float] | Sequence[int]] = [[1.0]]
_OPENING = Lock()
"""Chroma's dictionary of clients is not thread-safe: two that opened one folder at once broke."""


@contextmanager
def chroma_errors(doing: str) -> Iterator[None]:
    """Chroma raises several families of exceptions; callers see one."""
    try:
        yield
    except (ChromaError, httpx.HTTPError, OSError, ValueError) as error:
        raise KnowledgeError(f"cannot {doing}: {error}") from error


def open_folder_client(folder: Path) -> ClientAPI:
    """Chroma in this process, its files in `folder`, which is made when it is not there."""
    with chroma_errors(f"open the knowledge base in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        with _OPENING:
            return chromadb.PersistentClient(folder, settings=_settings())


def open_server_client(host: str, port: int, *, ssl: bool = False) -> ClientAPI:
    with chroma_errors(f"reach the Chroma server at {host}:{port}"):
        # Chroma's client has no timeout, not even in its constructor: check first that the server answers.
        alive = f"{'https' if ssl else 'http'}://{host}:{port}/api/v2/heartbeat"
        httpx.get(alive, timeout=_TIMEOUT_S).raise_for_status()
        with _OPENING:
            client = chromadb.HttpClient(host, port, ssl=ssl, settings=_settings())
        for session in _sessions(client):
            session.timeout = httpx.Timeout(_TIMEOUT_S)
        return client


def _sessions(client: ClientAPI) -> Iterator[httpx.Client]:
    """The HTTP sessions of a client, which have no timeout and which it does not close."""
    for owner in (client, getattr(client, "_admin_client", None)):
        session = getattr(getattr(owner, "_server", None), "_session", None)
        if isinstance(session, httpx.Client):
            yield session


def _settings() -> Settings:
    # Not from a .env file: that is ASAP's own, and its settings are given explicitly.
    return Settings(_env_file=None, anonymized_telemetry=False)


def belonging_to(tenants: Iterable[str | None]) -> Where:
    """The filter for what belongs to one of these tenants; Chroma cannot filter by an absent value."""
    return cast(Where, {"tenant": {"$in": [tenant or _DEFAULT for tenant in tenants]}})


class ChromaStore:
    """A `CaseStore` in a Chroma collection."""

    def __init__(self, client: ClientAPI) -> None:
        self._client = client
        with chroma_errors("open the collection of cases"):
            self._ledger = client.get_or_create_collection(LEDGER, embedding_function=None)

    def size(self) -> int:
        with chroma_errors("count the cases"):
            return self._ledger.count()

    def read(self, tenants: Sequence[str | None] | None, skip: int = 0) -> list[AnyRecord]:
        where = None if tenants is None else belonging_to(tenants)
        with chroma_errors("read the cases"):
            # Chroma returns them in the order in which they were added.
            records = self._ledger.get(where=where, include=["metadatas"], offset=skip)
        return [
            _record(key, metadata)
            for key, metadata in zip(records["ids"], records["metadatas"] or [], strict=True)
        ]

    def append(self, record: AnyRecord) -> AnyRecord:
        metadata = {
            "kind": record.kind,
            "tenant": record.tenant or _DEFAULT,
            "body": record.body.model_dump_json(by_alias=True, exclude_unset=True),
        }
        with chroma_errors(f"store {record.key}"):
            # Chroma's add leaves a record that has the id already.
            self._ledger.add(ids=[record.key], embeddings=_NO_VECTOR, metadatas=[metadata])
        kept = self.find(record.key)
        if kept is None:
            raise KnowledgeError(f"cannot store {record.key}: it was not there when read back")
        return kept

    def find(self, key: str) -> AnyRecord | None:
        with chroma_errors(f"read {key}"):
            found = self._ledger.get(ids=[key], include=["metadatas"])
        return _record(key, found["metadatas"][0]) if found["metadatas"] else None

    def close(self) -> None:
        if isinstance(self._client, Client):
            self._client.close()
        for session in _sessions(self._client):
            session.close()


def _record(key: str, metadata: Metadata) -> AnyRecord:
    try:
        model = AddedCase if metadata["kind"] == "case" else Mark
        body = model.model_validate(json.loads(str(metadata["body"])))
        return LedgerRecord(key, str(metadata["tenant"]) or None, body)
    except (KeyError, ValueError) as error:
        raise KnowledgeError(f"the stored record {key} cannot be read: {error}") from error


class VectorIndex:
    """Vectors of one embedder, computed as they are needed."""

    def __init__(self, client: ClientAPI, embedder: Embedder, seed_version: str) -> None:
        self._client, self._embedder, self._seed_version = client, embedder, seed_version
        digest = sha256(f"{embedder.identity}\n{seed_version}\n{SEED}".encode()).hexdigest()
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
        """Computes the missing vectors and returns how many."""
        return self._with_collection("store vectors", lambda: self._add(entries))

    def rebuild(self, entries: Sequence[Entry]) -> int:
        """Drops all vectors, also those of other embedders and older seeds, and recomputes them."""
        with chroma_errors("drop the old vectors"):
            for collection in self._client.list_collections():
                if collection.name.startswith(PREFIX):
                    self._client.delete_collection(collection.name)
        self._forget()
        return self.add(entries)

    def _with_collection(self, doing: str, work: Callable[[], FoundT]) -> FoundT:
        """Retries once with a new collection, in case another process re-indexed."""
        with chroma_errors(doing):
            try:
                return work()
            except NotFoundError:
                self._forget()
                return work()

    def _nearest(self, query: str, entries: Sequence[Entry], tenant: str | None) -> dict[str, float]:
        missing = self._missing(entries)
        if not self._embedder.is_quick([gist(entry) for entry in missing]):
            raise KnowledgeError(
                f"{len(missing)} entries have no vectors yet; 'asap kb reindex' computes them"
            )
        self._add(missing)
        vectors: list[Any] = self._embedder.embed([query])
        nearest = self._opened().query(
            query_embeddings=vectors,
            n_results=CANDIDATES,
            where=belonging_to({SEED, SHARED, tenant}),
            include=["distances"],
        )
        distances = nearest["distances"] or [[]]
        return {key: 1.0 - distance for key, distance in zip(nearest["ids"][0], distances[0], strict=True)}

    def _add(self, entries: Sequence[Entry]) -> int:
        missing = self._missing(entries)
        for batch in _batches(missing):
            keys = [entry.key for entry in batch]
            vectors: list[Any] = self._embedder.embed([gist(entry) for entry in batch])
            owners = [SEED if entry.is_seed else entry.tenant or _DEFAULT for entry in batch]
            tenants: list[Metadata] = [{"tenant": owner} for owner in owners]
            self._opened().add(ids=keys, embeddings=vectors, metadatas=tenants)
            self._present |= {*keys}
        return len(missing)

    def _missing(self, entries: Sequence[Entry]) -> list[Entry]:
        unknown = [entry for entry in entries if entry.key not in self._present]
        for batch in _batches(unknown):
            there = self._opened().get(ids=[entry.key for entry in batch], include=[])["ids"]
            self._present |= set(there)
        return [entry for entry in unknown if entry.key not in self._present]

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


def _batches(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    for start in range(0, len(entries), _BATCH):
        yield entries[start : start + _BATCH]
