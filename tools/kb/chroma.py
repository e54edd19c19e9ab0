"""Opens Chroma, embedded in a folder or as a server, and keeps the ledger of cases in it.

The ledger is a collection of its own, apart from any vectors: the body of a record is JSON in its metadata,
and since Chroma wants a vector for everything, each has the same one of length 1. Chroma's own embedding,
which would download a model, is never used. Importing chromadb takes a second: this module is imported
only by who opens a store.

An embedded folder is for one process at a time that writes; several share a server. (Tried with two that
wrote 120 cases at once: every case was kept, two of the vectors were not found.)
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, cast

import chromadb
import httpx
from chromadb.api import ClientAPI
from chromadb.api.client import Client
from chromadb.api.types import Where
from chromadb.config import Settings
from chromadb.errors import ChromaError

from tools.kb.errors import KnowledgeError
from tools.kb.ledger import Record

LEDGER = "asap-cases"
_TIMEOUT_S = 30.0
_PUBLIC = ""
_NO_VECTOR: list[Sequence[float] | Sequence[int]] = [[1.0]]
_OPENING = Lock()
"""Chroma keeps its clients in a dictionary without one: a worker and a page that opened the same folder at
once broke each other."""


@contextmanager
def chroma_errors(doing: str) -> Iterator[None]:
    """Chroma reports its troubles in several families of exceptions; outside there is one."""
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
    """The Chroma server at this address."""
    with chroma_errors(f"reach the Chroma server at {host}:{port}"):
        # Chroma's client would wait for ever, in its constructor already: ask first whether anybody answers.
        alive = f"{'https' if ssl else 'http'}://{host}:{port}/api/v2/heartbeat"
        httpx.get(alive, timeout=_TIMEOUT_S).raise_for_status()
        with _OPENING:
            client = chromadb.HttpClient(host, port, ssl=ssl, settings=_settings())
        for session in _sessions(client):
            session.timeout = httpx.Timeout(_TIMEOUT_S)
        return client


def _sessions(client: ClientAPI) -> Iterator[httpx.Client]:
    """The connections of a client to a server, which it neither limits in time nor closes by itself."""
    for owner in (client, getattr(client, "_admin_client", None)):
        session = getattr(getattr(owner, "_server", None), "_session", None)
        if isinstance(session, httpx.Client):
            yield session


def _settings() -> Settings:
    # Not from a .env file: that is ASAP's own, and its settings are given explicitly.
    return Settings(_env_file=None, anonymized_telemetry=False)


def tenant_field(tenant: str | None) -> str:
    """How a tenant stands in metadata: Chroma cannot look for what is absent."""
    return _PUBLIC if tenant is None else tenant


def belonging_to(tenants: Iterable[str | None]) -> Where:
    """The filter for what belongs to one of these tenants."""
    names: list[Any] = [tenant_field(tenant) for tenant in tenants]
    return cast(Where, {"tenant": {"$in": names}})


class ChromaStore:
    """A `CaseStore` in a Chroma collection."""

    def __init__(self, client: ClientAPI) -> None:
        self._client = client
        with chroma_errors("open the collection of cases"):
            self._ledger = client.get_or_create_collection(LEDGER, embedding_function=None)

    def size(self) -> int:
        with chroma_errors("count the cases"):
            return self._ledger.count()

    def read(self, tenants: Sequence[str | None] | None) -> list[Record]:
        where = None if tenants is None else belonging_to(tenants)
        with chroma_errors("read the cases"):
            found = self._ledger.get(where=where, include=["metadatas"])
        return [
            _record(key, metadata)
            for key, metadata in zip(found["ids"], found["metadatas"] or [], strict=True)
        ]

    def append(self, record: Record) -> Record:
        metadata = {
            "kind": record.kind,
            "tenant": tenant_field(record.tenant),
            "body": json.dumps(record.body, allow_nan=False),
        }
        with chroma_errors(f"store {record.key}"):
            # Chroma's add leaves a record that has the id already.
            self._ledger.add(ids=[record.key], embeddings=_NO_VECTOR, metadatas=[metadata])
            kept = self._ledger.get(ids=[record.key], include=["metadatas"])
        if not kept["metadatas"]:
            raise KnowledgeError(f"cannot store {record.key}: it was not there when read back")
        return _record(record.key, kept["metadatas"][0])

    def close(self) -> None:
        if isinstance(self._client, Client):
            self._client.close()
        for session in _sessions(self._client):
            session.close()


def _record(key: str, metadata: Mapping[str, Any]) -> Record:
    try:
        body = json.loads(metadata["body"])
        return Record(key, metadata["kind"], metadata["tenant"] or None, body)
    except (KeyError, TypeError, ValueError) as error:
        raise KnowledgeError(f"the stored record {key} cannot be read: {error}") from error
