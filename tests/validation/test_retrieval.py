"""Does the knowledge base find what it should? Issue 5 wants a recall@3 of 0.9 on the benchmark's queries."""

from pathlib import Path

import pytest

from benchmarks.knowledge import Quality, by_knowledge, compare, load_queries, measure
from tools.kb import open_seed
from tools.kb.embed import MINILM_PACKAGE

BAR = 0.9
FEWEST_QUERIES = 40


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Quality]:
    """Every way of searching, measured once; makes the vectors of the whole seed."""
    pytest.importorskip(MINILM_PACKAGE, reason="the package with the embedding model is not installed")
    folder: Path = tmp_path_factory.mktemp("knowledge")
    return compare(folder)


def test_there_are_enough_queries_and_each_is_asked_once() -> None:
    queries = load_queries()
    assert len(queries) >= FEWEST_QUERIES
    assert len({query.text for query in queries}) == len(queries)
    assert all(1 <= len(query.expect) <= 3 for query in queries)


def test_fused_search_finds_an_answer_among_the_first_three(found: dict[str, Quality]) -> None:
    assert found["fused"].recall >= BAR, [query.text for query in found["fused"].misses]


def test_fused_search_beats_words_alone_and_vectors_alone(found: dict[str, Quality]) -> None:
    fused = found["fused"]
    for other in ("words (BM25)", "vectors", "seed"):
        assert fused.recall > found[other].recall
        assert fused.reciprocal_rank > found[other].reciprocal_rank


def test_without_vectors_words_and_facets_still_find_most() -> None:
    # No bar of the issue's; measured 0.89 when this was written, and the command line relies on it.
    assert measure(by_knowledge(open_seed()), load_queries()).recall >= 0.85
