"""The knowledge base: search, read, add and mark over the seed and an optional store; and three ways to open
it.

Chroma is imported only by the two that use it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from tools.errors import InputError
from tools.kb.conditions import FactValues, applies
from tools.kb.embed import Embedder, SeedVectors
from tools.kb.entries import Entry, EntryKind, EntryStatus, Hit, KnowledgeError, Match, Playbook
from tools.kb.ledger import (
    AddedCase,
    CaseStore,
    case_key,
    case_record,
    check_tenant,
    check_text,
    mark_record,
    stored_entries,
    visible_entries,
)
from tools.kb.search import TenantIndex, fuse, read_facets
from tools.kb.seed import Seed, load_seed

if TYPE_CHECKING:
    from chromadb.api import ClientAPI

    from tools.kb.store import VectorIndex

Clock = Callable[[], datetime]
MAX_HITS = 100
MAX_QUERY_CHARACTERS = 20_000
_MAX_INDEXES = 32
# Cool-down after an endpoint failed: otherwise every search would wait for its timeout.
_PAUSE = timedelta(seconds=60)


def utc_now() -> datetime:
    return datetime.now(UTC)


class KnowledgeBase:
    """Playbooks and cases. A tenant sees what comes with ASAP and its own, and nothing reveals the rest.

    With `shares` it also sees facts and measured figures of other tenants' cases, without their words.
    """

    def __init__(
        self,
        seed: Seed,
        store: CaseStore | None = None,
        vectors: "VectorIndex | SeedVectors | None" = None,
        clock: Clock = utc_now,
        shares: bool = False,
    ) -> None:
        self._seed, self._store, self._clock, self._shares = seed, store, clock, shares
        self.vectors = vectors
        self._indexes: dict[str | None, TenantIndex] = {}
        self._paused_until: datetime | None = None
        without = "only the seed is open" if store is None else "no embedder"
        self.limitation = None if vectors else f"{without}: searched by words and facets, not by meaning"
        """Why a search does not use vectors; None when it does."""

    @property
    def methods(self) -> tuple[Match, ...]:
        return ("lexical", "facets") if self.limitation else ("lexical", "vector", "facets")

    def search(
        self,
        query: str,
        facets: Mapping[str, str | int | Sequence[str]] | None = None,
        tenant: str | None = None,
        limit: int = 5,
    ) -> list[Hit]:
        """The entries that answer best, best first; those refuted by measurement are included as warnings."""
        check_text("query", query, MAX_QUERY_CHARACTERS, empty=True)
        if not 1 <= limit <= MAX_HITS:
            raise InputError("limit", limit, f"must be a whole number from 1 to {MAX_HITS}")
        wanted, index = read_facets(facets), self._index(tenant)
        near: dict[str, float] = {}
        if query.strip():
            self._try_vectors(lambda v: near.update(v.similarities(query, index.entries, tenant)))
        return fuse(index.entries, index.lexical.scores(query), near, wanted, limit)

    def get(self, id: str, tenant: str | None = None) -> Entry:
        """The entry with this id; an InputError names the nearest ids when there is none."""
        entry = self.find(id, tenant)
        if entry is None:
            from difflib import get_close_matches  # a mistake is rare: no start-up time spent on it

            near = get_close_matches(str(id), self._index(tenant).by_id, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "list them to see the ids"
            raise InputError("id", id, f"is not an entry; {hint}")
        return entry

    def find(self, id: str, tenant: str | None = None) -> Entry | None:
        index = self._index(tenant)
        if id in index.by_id or not index.is_cut or self._store is None:
            return index.by_id.get(id)
        record = self._store.find(case_key(tenant, id))
        return stored_entries([record])[0] if record else None

    def entries(
        self, kind: EntryKind | None = None, status: EntryStatus | None = None, tenant: str | None = None
    ) -> list[Entry]:
        """All that this tenant sees, filtered by kind or status: the seed first, then cases by age."""
        return [
            entry
            for entry in self._index(tenant).entries
            if kind in (None, entry.kind) and status in (None, entry.status)
        ]

    def add(self, case: object, *, by: str, tenant: str | None = None) -> Entry:
        """Stores a case. Idempotent; another case under the same id is an InputError."""
        store, record = self._get_store(), case_record(case, by, tenant, self._clock())
        added = record.body.case
        if any(entry.id == added.id for entry in self._seed.entries):
            raise InputError("id", added.id, "is the id of an entry that comes with ASAP; choose another")
        kept = store.append(record)
        if not isinstance(kept.body, AddedCase) or kept.body.case != added:
            raise InputError("id", added.id, "is the id of another case; choose another, or mark that one")
        self._try_vectors(lambda vectors: vectors.add(stored_entries([kept])))
        return self.get(added.id, tenant)

    def mark(
        self,
        id: str,
        status: EntryStatus,
        *,
        by: str,
        reason: str,
        tenant: str | None = None,
        measured: Mapping[str, JsonValue] | None = None,
    ) -> Entry:
        """Changes the status of a case and records who, when and why. A tenant's mark counts for it alone.

        `measured` replaces what the case stated. Repeating the same mark changes nothing.
        """
        store, entry = self._get_store(), self.get(id, tenant)
        record = mark_record(entry, status, by, reason, tenant, self._clock(), measured)
        if record is None:
            return entry
        store.append(record)
        return self.get(id, tenant)

    def prepare(self, on_start: Callable[[int], object] = lambda count: None) -> int:
        """Computes the missing vectors of all tenants and returns how many; `on_start` gets the number first.

        Takes up to a minute after a change of embedder or seed; a search computes only a few by itself.
        """
        missing = self.vectors.missing(self._all_entries()) if self.vectors else []
        if missing:
            on_start(len(missing))
        return self._compute(lambda vectors: vectors.add(missing))

    def reindex(self) -> int:
        """Recomputes all vectors of all tenants and returns how many; 0 without an embedder."""
        return self._compute(lambda vectors: vectors.rebuild(self._all_entries()))

    def _compute(self, work: "Callable[[VectorIndex | SeedVectors], int]") -> int:
        if self.vectors is None:
            return 0
        made = work(self.vectors)
        self.limitation, self._paused_until = None, None
        return made

    def _all_entries(self) -> list[Entry]:
        return [*self._seed.entries, *stored_entries(self._store.read(None) if self._store else [])]

    def close(self) -> None:
        if self._store:
            self._store.close()

    def _get_store(self) -> CaseStore:
        if self._store is None:
            raise KnowledgeError("only the seed is open, which cannot be written; open a folder or a server")
        return self._store

    def _index(self, tenant: str | None) -> TenantIndex:
        check_tenant(tenant)
        size = self._store.size() if self._store else 0
        index = self._indexes.get(tenant)
        if index is not None and index.store_size == size:
            return index
        new = self._store.read([tenant], skip=index.records_read) if self._store and index else []
        only_grew = not self._shares and all(isinstance(record.body, AddedCase) for record in new)
        if index is not None and self._store and only_grew:
            entries = {**index.by_id, **{entry.id: entry for entry in stored_entries(new)}}
            index = TenantIndex(list(entries.values()), size, index.records_read + len(new), index)
        else:
            records = self._store.read(None if self._shares else [tenant]) if self._store else []
            seen = visible_entries(self._seed.entries, records, tenant)
            index = TenantIndex(seen, size, len(records))
        if len(self._indexes) >= _MAX_INDEXES:
            self._indexes.clear()
        self._indexes[tenant] = index
        return index

    def _try_vectors(self, use: "Callable[[VectorIndex | SeedVectors], object]") -> None:
        """Vectors are optional: if they fail, the search goes on without and `limitation` says why."""
        if self.vectors is None or (self._paused_until and self._clock() < self._paused_until):
            return
        try:
            use(self.vectors)
        except KnowledgeError as error:
            self.limitation = f"searched by words and facets, not by meaning: {error}"
            self._paused_until = self._clock() + _PAUSE
        else:
            self.limitation, self._paused_until = None, None


def matching(facts: FactValues, playbooks: Iterable[Entry]) -> list[Entry]:
    """The playbooks whose conditions all hold, in order."""
    return [
        entry for entry in playbooks if isinstance(entry.body, Playbook) and applies(entry.body.when, facts)
    ]


def open_seed(seed: Seed | None = None, embedder: Embedder | None = None) -> KnowledgeBase:
    """What comes with ASAP, read-only: no store, and without an embedder nothing heavy."""
    return KnowledgeBase(seed or load_seed(), vectors=SeedVectors(embedder) if embedder else None)


def open_folder(
    folder: Path,
    embedder: Embedder | None,
    *,
    clock: Clock = utc_now,
    seed: Seed | None = None,
    shares: bool = False,
) -> KnowledgeBase:
    """The seed, and cases kept in a folder by Chroma inside this process. For one writing process."""
    from tools.kb.store import open_folder_client

    return _open(open_folder_client(folder), embedder, clock, seed, shares)


def open_server(
    host: str,
    port: int,
    embedder: Embedder | None,
    *,
    ssl: bool = False,
    clock: Clock = utc_now,
    seed: Seed | None = None,
    shares: bool = False,
) -> KnowledgeBase:
    """The seed, and cases kept by a Chroma server, which any number of processes may share."""
    from tools.kb.store import open_server_client

    return _open(open_server_client(host, port, ssl=ssl), embedder, clock, seed, shares)


def _open(
    client: "ClientAPI", embedder: Embedder | None, clock: Clock, seed: Seed | None, shares: bool
) -> KnowledgeBase:
    from tools.kb.store import ChromaStore, VectorIndex

    known = seed or load_seed()
    vectors = VectorIndex(client, embedder, known.version) if embedder else None
    return KnowledgeBase(known, ChromaStore(client), vectors, clock, shares)
