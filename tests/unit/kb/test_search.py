"""Text to terms, BM25 over what one tenant may read, facets and fusion: what comes first, and why."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kb.samples import small_seed
from tools.errors import InputError
from tools.kb import KnowledgeBase, open_seed
from tools.kb.entries import Hit, scale_of
from tools.kb.search import LexicalIndex, agreement, fuse, read_facets, tokenize


@pytest.mark.parametrize(
    "spellings",
    [
        ["all-reduce", "AllReduce", "all_reduce", "all reduce", "ALL-REDUCE", "all-reduces"],
        ["all-to-all", "AllToAll", "all_to_all", "all to all"],
        ["out of memory", "out-of-memory"],
        ["shard", "shards", "sharded", "sharding"],
        ["overlap", "overlapping", "overlapped", "overlaps"],
        ["recompute", "recomputation", "recomputing", "recomputed"],
        ["parallel", "parallelism", "parallelize", "parallelized"],
        ["process", "processes"],
        ["latency", "latencies"],
        ["pipeline", "pipelines", "pipelining"],
        ["tensor parallelism", "tensor-parallel", "tensor_parallel"],
    ],
)
def test_spellings_of_one_thing_share_a_term(spellings: list[str]) -> None:
    assert set.intersection(*(set(tokenize(spelling)) for spelling in spellings))


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("NCCL_ALGO=Ring", {"ncclalgo", "nccl"}),
        ("ZeRO-3", {"zero3", "zero"}),
        ("tp=8", {"tp"}),
        ("tensor parallelism of 8", {"tp"}),
        ("expert-parallel groups of a mixture of experts", {"ep", "moe"}),
        ("CUDA out of memory", {"oom"}),
        ("micro-batches", {"microbatch"}),
        ("micro batch", {"microbatch"}),
        ("h100-sxm-80gb", {"h100"}),
        ("--tensor-model-parallel-size", {"tensor"}),
        ("speedup of 1.5 on 64-128 devices, from 1.25/2.5", {"1.5", "64", "2.5"}),
        ("FSDP2", {"fsdp2"}),
    ],
)
def test_the_words_of_the_field_are_kept(text: str, terms: set[str]) -> None:
    assert terms <= set(tokenize(text))


def test_words_that_say_nothing_are_dropped_and_different_things_share_no_term() -> None:
    assert tokenize("It is the one that you would use") == []
    assert not set(tokenize("tp pp cp ep dp")) & set(tokenize("all-reduce ZeRO-3 NCCL_ALGO fp8"))


@given(st.text(max_size=200))
def test_any_text_gives_plain_lower_case_terms(text: str) -> None:
    for term in tokenize(text):
        assert term
        assert term == term.lower()
        assert not set(term) & set(" -_/\n")


@given(st.lists(st.sampled_from(["tp", "nccl", "shards", "all-reduce", "ZeRO-3", "memory", "4096"])))
def test_terms_of_joined_texts_are_the_terms_of_the_parts(words: list[str]) -> None:
    joined = tokenize(" . ".join(words))
    assert sorted(joined) == sorted(term for word in words for term in tokenize(word))


WORDS = ["bubble", "pipeline", "expert", "dispatch", "tensor", "memory", "nccl", "ring"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
DOCUMENTS = st.lists(st.tuples(TEXTS, TEXTS), max_size=8)


@given(DOCUMENTS, TEXTS)
def test_a_document_scores_if_it_shares_a_term_whatever_the_order_and_the_other_documents(
    documents: list[tuple[str, str]], query: str
) -> None:
    index, unrelated = LexicalIndex(documents), ("garbage collector", "python stalls")
    scores = list(index.scores(query))
    shared = [bool(set(query.split()) & set(f"{title} {text}".split())) for title, text in documents]
    assert [score > 0 for score in scores] == shared
    assert all(score >= 0 for score in scores)
    assert list(index.scores(" ".join(reversed(query.split())))) == pytest.approx(scores)
    more = LexicalIndex([*documents, unrelated]).scores(query)
    assert [score > 0 for score in more] == [*shared, False]


@pytest.mark.parametrize(
    ("documents", "query", "best"),
    [
        ([("", "memory ring"), ("", "memory bubble"), ("", "memory expert")], "memory bubble", 1),
        ([("bubble", "pipeline expert"), ("expert", "pipeline bubble")], "bubble", 0),
        ([("", "bubble"), ("", "bubble " + "memory " * 50)], "bubble", 0),
    ],
    ids=["a rare term", "a term in the title", "a short text"],
)
def test_what_counts_more_scores_higher(documents: list[tuple[str, str]], query: str, best: int) -> None:
    scores = list(LexicalIndex(documents).scores(query))
    assert scores.count(max(scores)) == 1
    assert scores.index(max(scores)) == best


def test_an_index_of_nothing_answers_nothing() -> None:
    assert list(LexicalIndex([]).scores("bubble")) == []
    assert list(LexicalIndex([("", "")]).scores("bubble")) == [0.0]


VALUES = st.dictionaries(
    st.sampled_from(["device", "vendor", "architecture"]),
    st.lists(st.sampled_from("abc"), min_size=1).map(tuple),
)


@pytest.fixture
def knowledge() -> KnowledgeBase:
    return open_seed(small_seed())


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.entry.id for hit in hits]


def test_words_find_the_entry_that_has_them_and_nothing_else(knowledge: KnowledgeBase) -> None:
    first = knowledge.search("the pipeline bubble takes a quarter of the step")[0]
    assert (first.entry.id, first.matched) == ("pp-interleave", ("lexical",))
    assert knowledge.search("quantum chromodynamics") == []


def test_a_search_without_vectors_says_so(knowledge: KnowledgeBase) -> None:
    assert knowledge.methods == ("lexical", "facets")
    assert "not by meaning" in (knowledge.limitation or "")


def test_facets_put_what_agrees_first(knowledge: KnowledgeBase) -> None:
    words = "exposed communication of the node"
    dense = knowledge.search(words, {"architecture": "dense"})
    moe = knowledge.search(words, {"architecture": "moe"})
    assert ids(moe).index("ep-inside-node") < ids(dense).index("ep-inside-node")
    assert "facets" in moe[0].matched


def test_facets_alone_find_without_a_query(knowledge: KnowledgeBase) -> None:
    (hit,) = knowledge.search("", {"bottleneck": "pipeline"})
    assert (hit.entry.id, hit.matched) == ("pp-interleave", ("facets",))


def test_a_refuted_case_is_found_as_a_warning(knowledge: KnowledgeBase) -> None:
    hits = knowledge.search("tp of the whole node slower than half")
    assert [hit.entry.id for hit in hits if hit.warning] == ["case-tp-node"]


def test_of_two_that_answer_alike_the_confirmed_one_comes_first() -> None:
    confirmed, refuted = small_seed().entries[3:]
    order = fuse([refuted, confirmed], [1.0, 1.0], {}, {}, limit=2)
    assert ids(order) == [confirmed.id, refuted.id]


def test_vectors_find_what_words_do_not_and_what_both_find_comes_first() -> None:
    entries = small_seed().entries
    hits = fuse(entries, [0.0] * len(entries), {entries[1].key: 0.7, entries[2].key: 0.3}, {}, limit=5)
    assert [(hit.entry.id, hit.matched) for hit in hits] == [
        (entries[1].id, ("vector",)),
        (entries[2].id, ("vector",)),
    ]
    hits = fuse(entries[:3], [2.0, 2.0, 0.0], {entries[1].key: 0.5, entries[2].key: 0.5}, {}, limit=3)
    assert (hits[0].entry.id, hits[0].matched) == (entries[1].id, ("lexical", "vector"))


@given(st.lists(st.floats(0, 10), min_size=5, max_size=5), st.integers(1, 5))
def test_the_best_come_first_and_no_more_than_the_limit(scores: list[float], limit: int) -> None:
    hits = fuse(small_seed().entries, scores, {}, {}, limit)
    assert len(hits) == min(limit, sum(score > 0 for score in scores))
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@given(VALUES, VALUES)
def test_agreement_lies_between_all_against_and_all_for(
    facets: Mapping[str, tuple[str, ...]], entry: Mapping[str, tuple[str, ...]]
) -> None:
    assert -1 <= agreement(facets, entry) <= 1
    assert agreement(facets, facets) == (1 if facets else 0)
    assert agreement({}, entry) == agreement(facets, {}) == 0


def test_an_entry_for_any_device_is_not_behind_one_for_this_device() -> None:
    facets = read_facets({"device": "h100-sxm-80gb", "bottleneck": "pipeline"})
    anywhere = agreement(facets, {"bottleneck": ("pipeline",)})
    here = agreement(facets, {"bottleneck": ("pipeline",), "device": ("h100-sxm-80gb",)})
    elsewhere = agreement(
        facets, {"bottleneck": ("pipeline",), "device": ("tpu-v5p",), "vendor": ("google",)}
    )
    assert anywhere == here > elsewhere


@pytest.mark.parametrize(
    ("devices", "scale"), [(1, "8"), (8, "8"), (9, "64"), (512, "512"), (4096, "4096"), (4097, "more")]
)
def test_jobs_fall_into_classes_of_size(devices: int, scale: str) -> None:
    assert scale_of(devices) == scale
    assert read_facets({"num_devices": devices}) == {"scale": (scale,)}


def test_a_device_brings_its_maker() -> None:
    assert read_facets({"device": "mi300x"})["vendor"] == ("amd",)
    assert "vendor" not in read_facets({"device": "our-own-chip"})


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"facets": {"colour": "red"}}, "facets.colour"),
        ({"facets": {"bottleneck": "network"}}, "facets.bottleneck"),
        ({"facets": {"architecture": ["dense", "sparse"]}}, "facets.architecture"),
        ({"facets": {"device": 8}}, "facets.device"),
        ({"facets": {"num_devices": "8"}}, "facets.num_devices"),
        ({"facets": {"num_devices": 0}}, "facets.num_devices"),
        *(({"limit": limit}, "limit") for limit in (0, -1, 101)),
        ({"query": "bubble " * 4000}, "query"),
    ],
)
def test_a_search_that_cannot_be_meant_names_its_field(
    knowledge: KnowledgeBase, arguments: dict[str, Any], field: str
) -> None:
    assert knowledge.search("bubble " * 2000), "a query may be long but not endless"
    with pytest.raises(InputError) as error:
        knowledge.search(**({"query": "bubble"} | arguments))
    assert error.value.field == field


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"]), max_size=60))
def test_any_printable_query_is_answered(query: str) -> None:
    assert len(open_seed(small_seed()).search(query)) <= 5
