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
from tools.errors import InputError
from tools.kb import EmbeddingError, KnowledgeBase, KnowledgeError, open_folder, open_server
from tools.kb.embed import MAX_NEW_PER_SEARCH, Embedder
from tools.kb.search import tokenize
from tools.kb.store import PREFIX, ChromaStore, open_server_client

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


@pytest.mark.real
def test_clients_that_add_at_once_lose_nothing_and_agree_on_one_case_per_id(server: int) -> None:
    _empty(server)
    clients = [open_server("127.0.0.1", server, WordEmbedder(), seed=small_seed()) for _ in range(2)]
    barrier, refused = threading.Barrier(2), list[str]()

    def add(knowledge: KnowledgeBase, name: str) -> None:
        barrier.wait()
        for number in range(15):
            knowledge.add(own_case(id=f"{name}-{number}"), by=name)
            knowledge.add(own_case(id=f"both-{number}"), by=name)
            knowledge.mark(f"both-{number}", "confirmed", by=name, reason="measured")
            try:
                knowledge.add(own_case(id=f"same-{number}", story=name), by=name)
            except InputError as error:
                refused.append(error.rule)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(add, clients, "ab"))
    ids = [entry.id for entry in clients[0].entries("case") if not entry.is_seed]
    assert sorted(ids) == sorted(f"{name}-{n}" for name in ("a", "b", "both", "same") for n in range(15))
    assert len(refused) == 15
    assert all("is the id of another case" in reason for reason in refused)
    for number in range(15):
        history = clients[1].get(f"both-{number}").history
        assert sorted(change.by for change in history[1:]) == ["a", "b"]
        assert clients[0].get(f"same-{number}") == clients[1].get(f"same-{number}")
    assert _ids(clients[0], "interleaving our pipeline") == _ids(clients[1], "interleaving our pipeline")
    for client in clients:
        client.close()


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
