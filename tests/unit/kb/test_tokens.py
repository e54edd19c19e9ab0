"""How text becomes terms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.kb.search import tokenize


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
    ("text", "term"),
    [
        ("NCCL_ALGO=Ring", "ncclalgo"),
        ("NCCL_ALGO=Ring", "nccl"),
        ("ZeRO-3", "zero3"),
        ("ZeRO-3", "zero"),
        ("tp=8", "tp"),
        ("tensor parallelism of 8", "tp"),
        ("expert-parallel groups", "ep"),
        ("a mixture of experts", "moe"),
        ("CUDA out of memory", "oom"),
        ("micro-batches", "microbatch"),
        ("micro batch", "microbatch"),
        ("h100-sxm-80gb", "h100"),
        ("--tensor-model-parallel-size", "tensor"),
        ("speedup of 1.5", "1.5"),
        ("64-128 devices", "64"),
        ("from 1.25/2.5", "2.5"),
        ("FSDP2", "fsdp2"),
    ],
)
def test_the_words_of_the_field_are_kept(text: str, term: str) -> None:
    assert term in tokenize(text)


def test_words_that_say_nothing_are_dropped() -> None:
    assert tokenize("It is the one that you would use") == []


def test_different_things_share_no_term() -> None:
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
