"""The three ways to open a knowledge base. Chroma is imported only by the two that use it."""

from pathlib import Path
from typing import TYPE_CHECKING

from tools.kb.base import Clock, KnowledgeBase, utc_now
from tools.kb.embedder import Embedder
from tools.kb.seed import Seed, load_seed

if TYPE_CHECKING:
    from chromadb.api import ClientAPI


def open_seed(seed: Seed | None = None) -> KnowledgeBase:
    """What comes with ASAP, to read: no store, no vectors, nothing heavy."""
    return KnowledgeBase(seed or load_seed())


def open_folder(
    folder: Path, embedder: Embedder | None, *, clock: Clock = utc_now, seed: Seed | None = None
) -> KnowledgeBase:
    """The seed, and cases kept in a folder by Chroma inside this process. For one writing process."""
    from tools.kb.chroma import open_folder_client

    return _open(open_folder_client(folder), embedder, clock, seed)


def open_server(
    host: str,
    port: int,
    embedder: Embedder | None,
    *,
    ssl: bool = False,
    clock: Clock = utc_now,
    seed: Seed | None = None,
) -> KnowledgeBase:
    """The seed, and cases kept by a Chroma server, which any number of processes may share."""
    from tools.kb.chroma import open_server_client

    return _open(open_server_client(host, port, ssl=ssl), embedder, clock, seed)


def _open(client: "ClientAPI", embedder: Embedder | None, clock: Clock, seed: Seed | None) -> KnowledgeBase:
    from tools.kb.chroma import ChromaStore
    from tools.kb.vectors import VectorIndex

    known = seed or load_seed()
    vectors = VectorIndex(client, embedder, known.version) if embedder else None
    return KnowledgeBase(known, ChromaStore(client), vectors, clock)
