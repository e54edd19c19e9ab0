"""Does the knowledge base find what it should? Recall and rank, against words alone and vectors alone.

    python -m benchmarks.knowledge [--misses]

The queries (kb_queries.toml) are diagnosis reports and engineers' questions, each with the entries that
answer it. recall@3: queries with at least one of them among the first three. full@3: share of them there (of
three at most). MRR: mean of one over the rank of the first. "vectors" is plain embedding search in Chroma
with the local model, "words" BM25 alone, "seed" what is used without a store: words and facets.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import tomli

from tools.errors import DataError
from tools.kb import KnowledgeBase, find_local_embedder, open_folder, open_seed
from tools.kb.entries import Entry
from tools.kb.search import LexicalIndex
from tools.kb.seed import load_seed

REPO = Path(__file__).resolve().parents[1]

QUERIES = REPO / "benchmarks" / "kb_queries.toml"
DEPTH = 100
TOP = 3


class Query(NamedTuple):
    text: str
    facets: Mapping[str, Any]
    expect: Sequence[str]


class Quality(NamedTuple):
    recall: float
    full: float
    reciprocal_rank: float
    query_s: float
    misses: Sequence[Query]


Search = Callable[[Query], list[str]]


def load_queries() -> list[Query]:
    """The queries; one that expects an entry which is not in the seed is refused."""
    known = {entry.id for entry in load_seed().entries}
    queries = [
        Query(item["text"], item.get("facets", {}), item["expect"])
        for item in tomli.loads(QUERIES.read_text(encoding="utf-8"))["query"]
    ]
    if unknown := sorted({id for query in queries for id in query.expect} - known):
        raise DataError(f"{QUERIES.name}: expects {', '.join(unknown)}, which the seed does not have")
    return queries


def measure(search: Search, queries: Sequence[Query]) -> Quality:
    """How well a search method answers all queries."""
    search(queries[0])  # what is loaded at the first search is not part of a query's time
    start = time.perf_counter()
    answers = [search(query) for query in queries]
    query_s = (time.perf_counter() - start) / len(queries)
    hits = [_hits(query, ids) for query, ids in zip(queries, answers, strict=True)]
    ranks = [_first_rank(query, ids) for query, ids in zip(queries, answers, strict=True)]
    return Quality(
        recall=fmean(count > 0 for count in hits),
        full=fmean(count / min(TOP, len(query.expect)) for count, query in zip(hits, queries, strict=True)),
        reciprocal_rank=fmean(1 / rank if rank else 0.0 for rank in ranks),
        query_s=query_s,
        misses=[query for query, count in zip(queries, hits, strict=True) if not count],
    )


def _hits(query: Query, ids: Sequence[str]) -> int:
    return len(set(ids[:TOP]) & set(query.expect))


def _first_rank(query: Query, ids: Sequence[str]) -> int | None:
    return next((rank for rank, id in enumerate(ids, start=1) if id in query.expect), None)


def by_knowledge(knowledge: KnowledgeBase) -> Search:
    """As `asap` searches: all that this knowledge base has."""
    return lambda query: [hit.entry.id for hit in knowledge.search(query.text, query.facets, limit=DEPTH)]


def by_words() -> Search:
    """BM25 alone."""
    entries = load_seed().entries
    index = LexicalIndex((entry.title, entry.text) for entry in entries)
    return lambda query: _ranked(entries, index.scores(query.text))


def by_vectors(knowledge: KnowledgeBase) -> Search:
    """The nearest vectors in Chroma, and nothing else."""
    entries, vectors = load_seed().entries, knowledge.vectors
    if vectors is None:
        raise DataError("this knowledge base has no vectors")

    def search(query: Query) -> list[str]:
        near = vectors.similarities(query.text, entries, None)
        return _ranked(entries, [near.get(entry.key, 0.0) for entry in entries])

    return search


def _ranked(entries: Sequence[Entry], scores: Sequence[float]) -> list[str]:
    ranked = [(-score, entry.id) for entry, score in zip(entries, scores, strict=True) if score > 0]
    return [id for _, id in sorted(ranked)]


def compare(folder: Path) -> dict[str, Quality]:
    """Every search method that is installed, measured on all queries."""
    queries, embedder = load_queries(), find_local_embedder()
    qualities = {
        "words (BM25)": measure(by_words(), queries),
        "seed": measure(by_knowledge(open_seed()), queries),
    }
    if embedder is not None:
        knowledge = open_folder(folder, embedder)
        knowledge.prepare()
        qualities |= {
            "vectors": measure(by_vectors(knowledge), queries),
            "fused": measure(by_knowledge(knowledge), queries),
        }
        knowledge.close()
    return qualities


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--misses", action="store_true", help="print the queries that fused search fails")
    show_misses = parser.parse_args().misses
    with TemporaryDirectory() as folder:
        start = time.perf_counter()
        qualities = compare(Path(folder))
        print(f"{len(load_queries())} queries over {len(load_seed().entries)} entries")
        print(f"{'':14}{'recall@3':>10}{'full@3':>10}{'MRR':>10}{'ms/query':>10}")
        for name, quality in qualities.items():
            figures = f"{quality.recall:10.3f}{quality.full:10.3f}{quality.reciprocal_rank:10.3f}"
            print(f"{name:14}{figures}{quality.query_s * 1e3:10.1f}")
        print(f"all of it, vectors of the seed made on the way: {time.perf_counter() - start:.0f} s")
    if "fused" not in qualities:
        print("no vectors: pip install 'asap-sharding[embeddings]'")
    for query in qualities["fused" if "fused" in qualities else "seed"].misses if show_misses else ():
        print(f"missed: {query.text}\n        expected {', '.join(query.expect)}")


if __name__ == "__main__":
    main()
