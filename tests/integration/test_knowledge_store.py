"""The knowledge base on a real Chroma: embedded in a folder, and a server that several clients share."""

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.servers import running_chroma
from tests.unit.kb.samples import Clock, own_case, small_seed
from tools.kb import EmbeddingError, KnowledgeBase, KnowledgeError, open_folder, open_server
from tools.kb.embed import MAX_NEW_PER_SEARCH, Embedder
from tools.kb.search import tokenize
from tools.kb.store import LEDGER, PREFIX, ChromaStore, open_server_client

Opener = Callable[..., KnowledgeBase]
SEED_SIZE = len(small_seed().entries)


class WordEmbedder:
    """Vectors from counted terms; notes how many texts it was given and may be told to fail."""

    def __init__(self, identity: str = "words-1", dimensions: int = 32) -> None:
        self.identity, self.dimensions = identity, dimensions
        self.embedded: list[str] = []
        self.fails = False

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        if self.fails:
            raise EmbeddingError("the embedder is down")
        self.embedded += texts
        return [self._vector(text) for text in texts]

    def is_quick(self, texts: Sequence[str]) -> bool:
        return len(texts) <= MAX_NEW_PER_SEARCH

    def _vector(self, text: str) -> list[float]:
        counts = Counter(sum(map(ord, term)) % self.dimensions for term in tokenize(text))
        length = sum(number**2 for number in counts.values()) ** 0.5 or 1.0
        return [counts[position] / length for position in range(self.dimensions)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_chroma(tmp_path_factory.mktemp("chroma")) as port:
        yield port


@pytest.fixture(params=["folder", pytest.param("server", marks=pytest.mark.real)])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens one and the same empty store, as often as asked; the server's is emptied first."""
    opened: list[KnowledgeBase] = []
    port = request.getfixturevalue("server") if request.param == "server" else None
    if port:
        _empty(port)

    def open_again(embedder: Embedder | None = None, version: str = "v1") -> KnowledgeBase:
        seed, clock = small_seed(version), Clock()
        if port:
            opened.append(open_server("127.0.0.1", port, embedder, clock=clock, seed=seed))
        else:
            opened.append(open_folder(tmp_path / "kept", embedder, clock=clock, seed=seed))
        return opened[-1]

    yield open_again
    for knowledge in opened:
        knowledge.close()


def _empty(port: int) -> None:
    client = open_server_client("127.0.0.1", port)
    for collection in client.list_collections():
        client.delete_collection(collection.name)
    ChromaStore(client).close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    """One store for all examples of a property: opening Chroma takes longer than an example."""
    knowledge = open_folder(tmp_path_factory.mktemp("shared"), None, seed=small_seed())
    yield knowledge
    knowledge.close()


def collections(knowledge: KnowledgeBase) -> dict[str, Any]:
    store: Any = knowledge._store
    return {collection.name: collection for collection in store._client.list_collections()}


def vector_collections(knowledge: KnowledgeBase) -> list[Any]:
    return [item for name, item in collections(knowledge).items() if name.startswith(PREFIX)]


def test_a_case_outlives_the_process_that_added_it(reopen: Opener) -> None:
    first = reopen()
    first.add(own_case(), by="anna")
    first.mark("ours-1", "confirmed", by="bob", reason="measured", measured={"speedup": 1.2})
    kept = first.get("ours-1")
    first.close()
    assert reopen().get("ours-1") == kept
    assert kept.history[-1].by == "bob"


def test_adding_and_marking_again_change_nothing(reopen: Opener) -> None:
    knowledge = reopen()
    entry = knowledge.add(own_case(), by="anna")
    assert knowledge.add(own_case(), by="bob") == entry
    marked = knowledge.mark("ours-1", "refuted", by="bob", reason="slower")
    assert knowledge.mark("ours-1", "refuted", by="bob", reason="slower") == marked
    assert collections(knowledge)[LEDGER].count() == 2


def test_what_one_client_adds_another_finds(reopen: Opener) -> None:
    writer, reader = reopen(WordEmbedder()), reopen(WordEmbedder())
    assert reader.search("zirconium") == [] or "ours-1" not in _ids(reader, "zirconium")
    writer.add(own_case(title="Zirconium pipeline"), by="anna")
    assert "ours-1" in _ids(reader, "zirconium")
    writer.mark("ours-1", "refuted", by="bob", reason="slower")
    assert {hit.entry.id: hit.warning for hit in reader.search("zirconium")}["ours-1"]


def _ids(knowledge: KnowledgeBase, query: str, tenant: str | None = None) -> list[str]:
    return [hit.entry.id for hit in knowledge.search(query, tenant=tenant, limit=100)]


def test_a_tenants_cases_reach_nobody_else_by_words_or_by_vectors(reopen: Opener) -> None:
    knowledge = reopen(WordEmbedder())
    knowledge.add(own_case(id="red-1", title="Zirconium pipeline bubble"), by="r", tenant="red")
    assert "red-1" in _ids(knowledge, "zirconium pipeline bubble", "red")
    for other in (None, "blue", "re", "redd"):
        assert "red-1" not in _ids(knowledge, "zirconium pipeline bubble", other)
        assert "red-1" not in [entry.id for entry in knowledge.entries(tenant=other)]


def test_many_cases_of_others_do_not_crowd_out_ones_own(reopen: Opener) -> None:
    knowledge = reopen(WordEmbedder())
    for number in range(60):
        knowledge.add(own_case(id=f"blue-{number}", title="Zirconium"), by="b", tenant="blue")
    knowledge.add(own_case(id="red-1", title="Zirconium"), by="r", tenant="red")
    knowledge.prepare()
    near = knowledge.vectors.similarities("Zirconium", knowledge.entries(tenant="red"), "red")  # type: ignore[union-attr]
    assert "case:red/red-1" in near
    assert not [key for key in near if "blue" in key]


def test_vectors_take_part_in_a_search(reopen: Opener) -> None:
    knowledge = reopen(WordEmbedder())
    assert knowledge.methods == ("lexical", "vector", "facets")
    hit = knowledge.search("pipeline bubble")[0]
    assert hit.entry.id == "pp-interleave"
    assert hit.matched == ("lexical", "vector")


def test_each_text_is_embedded_once(reopen: Opener) -> None:
    embedder = WordEmbedder()
    knowledge = reopen(embedder)
    knowledge.search("pipeline")
    knowledge.search("bubble")
    assert len(embedder.embedded) == SEED_SIZE + 2
    again = WordEmbedder()
    reopen(again).search("pipeline")
    assert again.embedded == ["pipeline"]


def test_many_vectors_are_made_when_asked_for_and_not_in_a_search(reopen: Opener) -> None:
    writer = reopen()
    for number in range(20):
        writer.add(own_case(id=f"ours-{number}"), by="anna", tenant="red")
    embedder = WordEmbedder()
    knowledge = reopen(embedder)
    assert knowledge.search("pipeline", tenant="red")[0].matched == ("lexical",)
    assert "25 entries have no vectors yet" in str(knowledge.limitation)
    assert embedder.embedded == []
    told: list[int] = []
    assert knowledge.prepare(told.append) == 25
    assert told == [25]
    assert knowledge.methods == ("lexical", "vector", "facets")
    assert knowledge.search("pipeline", tenant="red")[0].matched == ("lexical", "vector")
    assert knowledge.prepare(told.append) == 0
    assert told == [25]


def test_another_embedder_indexes_anew_and_mixes_nothing(reopen: Opener) -> None:
    reopen(WordEmbedder("words-1", 32)).search("pipeline")
    wider = WordEmbedder("words-2", 48)
    knowledge = reopen(wider)
    assert knowledge.search("pipeline bubble")[0].matched == ("lexical", "vector")
    assert len(wider.embedded) == SEED_SIZE + 1
    kept = vector_collections(knowledge)
    assert sorted(item.metadata["embedder"] for item in kept) == ["words-1", "words-2"]
    for collection in kept:
        lengths = {len(vector) for vector in collection.get(include=["embeddings"])["embeddings"]}
        assert lengths == {32 if collection.metadata["embedder"] == "words-1" else 48}


def test_another_seed_indexes_anew(reopen: Opener) -> None:
    reopen(WordEmbedder(), "v1").search("pipeline")
    embedder = WordEmbedder()
    knowledge = reopen(embedder, "v2")
    knowledge.search("pipeline")
    assert len(embedder.embedded) == SEED_SIZE + 1
    assert {item.metadata["seed"] for item in vector_collections(knowledge)} == {"v1", "v2"}


def test_reindexing_drops_what_is_old_and_covers_every_tenant(reopen: Opener) -> None:
    other = reopen(WordEmbedder("words-0", 8))
    other.search("pipeline")
    embedder = WordEmbedder()
    knowledge = reopen(embedder)
    knowledge.add(own_case(id="red-1"), by="r", tenant="red")
    knowledge.add(own_case(id="blue-1"), by="b", tenant="blue")
    assert knowledge.reindex() == SEED_SIZE + 2
    (kept,) = vector_collections(knowledge)
    assert (kept.metadata["embedder"], kept.count()) == ("words-1", SEED_SIZE + 2)
    # The client whose collection is gone makes it again.
    assert other.search("pipeline bubble")[0].matched == ("lexical", "vector")


def test_a_case_is_kept_and_found_when_the_embedder_fails_and_gets_its_vector_later(reopen: Opener) -> None:
    embedder = WordEmbedder()
    knowledge = reopen(embedder)
    embedder.fails = True
    knowledge.add(own_case(title="Zirconium pipeline"), by="anna")
    hit = knowledge.search("zirconium")[0]
    assert (hit.entry.id, hit.matched) == ("ours-1", ("lexical",))
    assert knowledge.limitation is not None
    assert "the embedder is down" in knowledge.limitation
    assert knowledge.methods == ("lexical", "facets")
    embedder.fails = False
    # The clock of these tests moves a minute at every look: the pause is over.
    assert knowledge.search("zirconium pipeline")[0].matched == ("lexical", "vector")
    assert knowledge.limitation is None


def test_a_failing_embedder_is_not_asked_again_at_once(reopen: Opener) -> None:
    embedder = WordEmbedder()
    knowledge = reopen(embedder)
    knowledge._clock = lambda: Clock()()  # time stands still
    embedder.fails = True
    knowledge.search("pipeline")
    embedder.fails = False
    assert knowledge.search("pipeline")[0].matched == ("lexical",)
    assert embedder.embedded == []


@hypothesis_settings(max_examples=15)
@given(case=st.fixed_dictionaries(
    {"id": st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True),
     "title": st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf"]), min_size=1, max_size=40)
     .filter(str.strip)},
    optional={"after": st.fixed_dictionaries({}, optional={"tp": st.integers(1, 64)}),
              "predicted": st.dictionaries(st.text("ab", min_size=1), st.integers() | st.floats(-9, 9))},
))  # fmt: skip
def test_any_case_comes_back_as_it_was_given(shared: KnowledgeBase, case: dict[str, Any]) -> None:
    knowledge = shared
    tenant = f"t{time.monotonic_ns()}"
    given_case = {**case, "id": f"x-{case['id']}", "story": case["title"]}
    entry = knowledge.add(given_case, by="anna", tenant=tenant)
    assert knowledge.add(given_case, by="anna", tenant=tenant) == entry
    assert {key: entry.json_body()[key] for key in given_case} == given_case


def test_a_case_as_long_as_allowed_is_kept_whole(reopen: Opener) -> None:
    scenario = {str(number): "x" * 3000 for number in range(20)}
    assert reopen().add(own_case(scenario=scenario), by="anna").json_body()["scenario"] == scenario


@pytest.mark.real
def test_clients_that_add_at_once_lose_nothing(server: int) -> None:
    _empty(server)
    clients = [open_server("127.0.0.1", server, WordEmbedder(), seed=small_seed()) for _ in range(2)]
    barrier = threading.Barrier(2)

    def add(knowledge: KnowledgeBase, name: str) -> None:
        barrier.wait()
        for number in range(15):
            knowledge.add(own_case(id=f"{name}-{number}"), by=name)
            knowledge.add(own_case(id=f"both-{number}"), by=name)
            knowledge.mark(f"both-{number}", "confirmed", by=name, reason="measured")

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(add, client, name) for client, name in zip(clients, "ab", strict=True)]:
            done.result()
    ids = [entry.id for entry in clients[0].entries("case") if not entry.is_seed]
    assert sorted(ids) == sorted(f"{name}-{n}" for name in ("a", "b", "both") for n in range(15))
    for number in range(15):
        history = clients[1].get(f"both-{number}").history
        assert sorted(change.by for change in history[1:]) == ["a", "b"]
    assert _ids(clients[0], "interleaving our pipeline") == _ids(clients[1], "interleaving our pipeline")
    for client in clients:
        client.close()


@pytest.mark.real
def test_two_clients_that_add_different_cases_under_one_id_agree_on_one(server: int) -> None:
    _empty(server)
    clients = [open_server("127.0.0.1", server, None, seed=small_seed()) for _ in range(2)]
    refused: list[str] = []

    def add(knowledge: KnowledgeBase, story: str) -> None:
        for number in range(15):
            try:
                knowledge.add(own_case(id=f"same-{number}", story=story), by="x")
            except Exception as error:  # noqa: BLE001 - counted below, with its text
                refused.append(str(error))

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(add, client, story) for client, story in zip(clients, "ab", strict=True)]:
            done.result()
    assert len(refused) == 15
    assert all("is the id of another case" in reason for reason in refused)
    for number in range(15):
        assert clients[0].get(f"same-{number}") == clients[1].get(f"same-{number}")
    for client in clients:
        client.close()


def test_a_server_that_is_not_there_is_reported_plainly() -> None:
    with pytest.raises(KnowledgeError, match="cannot reach the Chroma server"):
        open_server("127.0.0.1", 9, None, seed=small_seed())


def test_a_server_that_does_not_answer_is_left_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.kb.store._TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(KnowledgeError, match="timed out"):
            open_server("127.0.0.1", silent.getsockname()[1], None, seed=small_seed())
        silent.settimeout(10)
        with silent.accept()[0] as asked:
            assert asked.recv(1000).startswith(b"GET /"), "nobody asked it"


@pytest.mark.real
def test_every_request_to_a_server_has_a_limit_in_time_and_its_connections_close(server: int) -> None:
    knowledge = open_server("127.0.0.1", server, None, seed=small_seed())
    store: Any = knowledge._store
    sessions = [owner._server._session for owner in (store._client, store._client._admin_client)]
    assert [session.timeout.read for session in sessions] == [30.0, 30.0]
    knowledge.close()
    assert [session.is_closed for session in sessions] == [True, True]


def test_a_broken_folder_is_reported_plainly(tmp_path: Path) -> None:
    (tmp_path / "chroma.sqlite3").write_bytes(b"this is no database" * 100)
    with pytest.raises(KnowledgeError, match="cannot open the knowledge base"):
        open_folder(tmp_path, None, seed=small_seed())


def test_settings_of_a_stray_env_file_reach_chroma_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("CHROMA_SERVER_HOST=elsewhere.example\nANONYMIZED_TELEMETRY=true\n")
    monkeypatch.chdir(tmp_path)
    knowledge = open_folder(tmp_path / "kept", None, seed=small_seed())
    store: Any = knowledge._store
    assert store._client.get_settings().anonymized_telemetry is False
    assert store._client.get_settings().chroma_server_host is None
    knowledge.close()


def test_threads_that_open_the_same_folder_at_once_all_get_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(lambda _: open_folder(tmp_path / "knowledge", None), range(4)))
    try:
        assert len({len(base.entries()) for base in opened}) == 1
    finally:
        for base in opened:
            base.close()
