"""The knowledge base: search, read, add and mark over the seed and an optional store; and three ways to open
it.

Chroma is imported only by the two that use it.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tools.errors import InputError
from tools.kb.entries import Entry, Hit, Kind, KnowledgeError, Match, Status, read_facets, text
from tools.kb.ledger import (
    CaseStore,
    case_record,
    check_input,
    check_tenant,
    mark_record,
    stored_entries,
    visible_entries,
)
from tools.kb.search import Shelf, fuse
from tools.kb.seed import Seed

if TYPE_CHECKING:
    from tools.kb.store import VectorIndex
from pathlib import Path
from typing import TYPE_CHECKING

from tools.kb.embed import Embedder
from tools.kb.seed import load_seed

if TYPE_CHECKING:
    from chromadb.api import ClientAPI


Clock = Callable[[], datetime]
MOST_HITS = 100
MOST_QUERY_CHARACTERS = 20_000
_MOST_SHELVES = 32
# An endpoint that failed is left alone so long, or every search would wait for its timeout.
_PAUSE = timedelta(seconds=60)


def utc_now() -> datetime:
    return datetime.now(UTC)


class KnowledgeBase:
    """Playbooks and cases. A tenant sees what is public and its own, and nothing tells of the rest."""

    def __init__(
        self,
        seed: Seed,
        store: CaseStore | None = None,
        vectors: "VectorIndex | None" = None,
        clock: Clock = utc_now,
    ) -> None:
        self._seed, self._store, self._clock = seed, store, clock
        self.vectors = vectors
        self._shelves: dict[str | None, Shelf] = {}
        self._paused_until: datetime | None = None
        without = "only the seed is open" if store is None else "no embedder"
        self.limitation = None if vectors else f"{without}: searched by words and facets, not by meaning"
        """Why a search does not use vectors; None when it does."""

    @property
    def methods(self) -> tuple[Match, ...]:
        """The ways in which a search would look now."""
        return ("lexical", "facets") if self.limitation else ("lexical", "vector", "facets")

    def search(
        self,
        query: str,
        facets: Mapping[str, str | int | Sequence[str]] | None = None,
        tenant: str | None = None,
        limit: int = 5,
    ) -> list[Hit]:
        """The entries that answer best, best first; those that measurement refuted are there as warnings."""
        check_input(text(MOST_QUERY_CHARACTERS, empty=True), "query", query)
        if not 1 <= limit <= MOST_HITS:
            raise InputError("limit", limit, f"must be a whole number from 1 to {MOST_HITS}")
        asked = read_facets(facets)
        shelf = self._shelf(tenant)
        meanings = self._similarities(query, shelf, tenant)
        return fuse(shelf.entries, shelf.lexical.scores(query), meanings, asked, limit)

    def get(self, id: str, tenant: str | None = None) -> Entry:
        """The entry with this id; an InputError names the nearest ids when there is none."""
        shelf = self._shelf(tenant)
        if id not in shelf.by_id:
            raise InputError("id", id, _suggest(str(id), shelf.by_id))
        return shelf.by_id[id]

    def find(self, id: str, tenant: str | None = None) -> Entry | None:
        return self._shelf(tenant).by_id.get(id)

    def entries(
        self, kind: Kind | None = None, status: Status | None = None, tenant: str | None = None
    ) -> list[Entry]:
        """All that this tenant sees, of one kind or status where asked: the seed first, then cases by age."""
        return [
            entry
            for entry in self._shelf(tenant).entries
            if kind in (None, entry.kind) and status in (None, entry.status)
        ]

    def add(self, case: Mapping[str, Any], *, by: str, tenant: str | None = None) -> Entry:
        """Remembers a case. Adding it again changes nothing; another case under its id is an InputError."""
        store, record = self._get_store(), case_record(case, by, tenant, self._clock())
        if any(entry.id == case["id"] for entry in self._seed.entries):
            raise InputError("id", case["id"], "is the id of an entry that comes with ASAP; choose another")
        kept = store.append(record)
        if kept.body["case"] != record.body["case"]:
            raise InputError("id", case["id"], "is the id of another case; choose another, or mark that one")
        self._try_vectors(lambda vectors: vectors.add(stored_entries([kept])))
        return self.get(case["id"], tenant)

    def mark(
        self,
        id: str,
        status: Status,
        *,
        by: str,
        reason: str,
        tenant: str | None = None,
        measured: Mapping[str, Any] | None = None,
    ) -> Entry:
        """Gives a case another status and notes who, when and why. A tenant's mark counts for it alone.

        What was measured takes the place of what the case said. Marking again the same way changes nothing.
        """
        store, entry = self._get_store(), self.get(id, tenant)
        record = mark_record(entry, status, by, reason, tenant, self._clock(), measured)
        if record is None:
            return entry
        store.append(record)
        return self.get(id, tenant)

    def prepare(self, tell: Callable[[int], object] = lambda count: None) -> int:
        """Makes the vectors that are missing, for every tenant, and returns how many; `tell` hears it before.

        To be called where it may take a minute, as a new embedder or seed does: a search makes only a few.
        """
        if self.vectors is None:
            return 0
        missing = self.vectors.missing(self._all_entries())
        if missing:
            tell(len(missing))
        made = self.vectors.add(missing)
        self.limitation, self._paused_until = None, None
        return made

    def reindex(self) -> int:
        """Makes all vectors anew, for every tenant, and returns how many; 0 without an embedder."""
        if self.vectors is None:
            return 0
        made = self.vectors.rebuild(self._all_entries())
        self.limitation, self._paused_until = None, None
        return made

    def _all_entries(self) -> list[Entry]:
        return [*self._seed.entries, *stored_entries(self._store.read(None) if self._store else [])]

    def close(self) -> None:
        """Lets go of the store; the seed needs nothing."""
        if self._store:
            self._store.close()

    def _get_store(self) -> CaseStore:
        if self._store is None:
            raise KnowledgeError("only the seed is open, which cannot be written; open a folder or a server")
        return self._store

    def _shelf(self, tenant: str | None) -> Shelf:
        check_tenant(tenant)
        size = self._store.size() if self._store else 0
        shelf = self._shelves.get(tenant)
        if shelf is None or shelf.store_size != size:
            records = self._store.read([None, tenant]) if self._store else []
            shelf = Shelf(visible_entries(self._seed.entries, records, tenant), size)
            if len(self._shelves) >= _MOST_SHELVES:
                self._shelves.clear()
            self._shelves[tenant] = shelf
        return shelf

    def _similarities(self, query: str, shelf: Shelf, tenant: str | None) -> dict[str, float]:
        found: dict[str, float] = {}
        if query.strip():
            self._try_vectors(
                lambda vectors: found.update(vectors.similarities(query, shelf.entries, tenant))
            )
        return found

    def _try_vectors(self, use: "Callable[[VectorIndex], object]") -> None:
        """Vectors help and are never needed: when they fail, the rest goes on and `limitation` says so."""
        if self.vectors is None or (self._paused_until and self._clock() < self._paused_until):
            return
        try:
            use(self.vectors)
        except KnowledgeError as error:
            self.limitation = f"searched by words and facets, not by meaning: {error}"
            self._paused_until = self._clock() + _PAUSE
        else:
            self.limitation, self._paused_until = None, None


def _suggest(wanted: str, known: Mapping[str, Entry]) -> str:
    from difflib import get_close_matches  # a mistake is rare: no start-up time spent on it

    near = get_close_matches(wanted, known, n=3)
    return (
        f"is no entry; did you mean {' or '.join(near)}?" if near else "is no entry; list them to see the ids"
    )


def open_seed(seed: Seed | None = None) -> KnowledgeBase:
    """What comes with ASAP, to read: no store, no vectors, nothing heavy."""
    return KnowledgeBase(seed or load_seed())


def open_folder(
    folder: Path, embedder: Embedder | None, *, clock: Clock = utc_now, seed: Seed | None = None
) -> KnowledgeBase:
    """The seed, and cases kept in a folder by Chroma inside this process. For one writing process."""
    from tools.kb.store import open_folder_client

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
    from tools.kb.store import open_server_client

    return _open(open_server_client(host, port, ssl=ssl), embedder, clock, seed)


def _open(client: "ClientAPI", embedder: Embedder | None, clock: Clock, seed: Seed | None) -> KnowledgeBase:
    from tools.kb.store import ChromaStore, VectorIndex

    known = seed or load_seed()
    vectors = VectorIndex(client, embedder, known.version) if embedder else None
    return KnowledgeBase(known, ChromaStore(client), vectors, clock)
