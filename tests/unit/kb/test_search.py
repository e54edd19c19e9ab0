"""Facets and fusion: what comes first, and what is said about it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kb.samples import small_seed
from tools.errors import InputError
from tools.kb import KnowledgeBase, open_seed
from tools.kb.entries import Hit, scale_of
from tools.kb.search import agreement, fuse, read_facets

VALUES = st.dictionaries(
    st.sampled_from(["device", "vendor", "architecture"]),
    st.lists(st.sampled_from("abc"), min_size=1).map(tuple),
)


@pytest.fixture
def knowledge() -> KnowledgeBase:
    return open_seed(small_seed())


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.entry.id for hit in hits]


def test_words_find_the_entry_that_has_them(knowledge: KnowledgeBase) -> None:
    hits = knowledge.search("the pipeline bubble takes a quarter of the step")
    assert hits[0].entry.id == "pp-interleave"
    assert hits[0].matched == ("lexical",)


def test_what_shares_nothing_is_not_found(knowledge: KnowledgeBase) -> None:
    assert knowledge.search("quantum chromodynamics") == []


def test_a_search_without_vectors_says_so(knowledge: KnowledgeBase) -> None:
    assert knowledge.methods == ("lexical", "facets")
    assert knowledge.limitation is not None
    assert "not by meaning" in knowledge.limitation


def test_facets_put_what_agrees_first(knowledge: KnowledgeBase) -> None:
    words = "exposed communication of the node"
    dense = knowledge.search(words, {"architecture": "dense"})
    moe = knowledge.search(words, {"architecture": "moe"})
    assert ids(moe).index("ep-inside-node") < ids(dense).index("ep-inside-node")
    assert "facets" in moe[0].matched


def test_facets_alone_find_when_nothing_is_said(knowledge: KnowledgeBase) -> None:
    hits = knowledge.search("", {"bottleneck": "pipeline"})
    assert ids(hits) == ["pp-interleave"]
    assert hits[0].matched == ("facets",)


def test_a_refuted_case_is_found_as_a_warning(knowledge: KnowledgeBase) -> None:
    hits = knowledge.search("tp of the whole node slower than half")
    warnings = [hit.entry.id for hit in hits if hit.warning]
    assert warnings == ["case-tp-node"]


def test_of_two_that_answer_alike_the_confirmed_one_comes_first() -> None:
    confirmed, refuted = small_seed().entries[3:]
    order = fuse([refuted, confirmed], [1.0, 1.0], {}, {}, limit=2)
    assert ids(order) == [confirmed.id, refuted.id]


def test_vectors_find_what_words_do_not() -> None:
    entries = small_seed().entries
    hits = fuse(entries, [0.0] * len(entries), {entries[1].key: 0.7, entries[2].key: 0.3}, {}, limit=5)
    assert [(hit.entry.id, hit.matched) for hit in hits] == [
        (entries[1].id, ("vector",)),
        (entries[2].id, ("vector",)),
    ]


def test_found_by_both_comes_before_found_by_one() -> None:
    entries = small_seed().entries
    hits = fuse(entries[:3], [2.0, 2.0, 0.0], {entries[1].key: 0.5, entries[2].key: 0.5}, {}, limit=3)
    assert hits[0].entry.id == entries[1].id
    assert hits[0].matched == ("lexical", "vector")


@given(st.lists(st.floats(0, 10), min_size=5, max_size=5), st.integers(1, 5))
def test_the_best_come_first_and_no_more_than_asked(scores: list[float], limit: int) -> None:
    hits = fuse(small_seed().entries, scores, {}, {}, limit)
    assert len(hits) == min(limit, sum(score > 0 for score in scores))
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@given(VALUES, VALUES)
def test_agreement_lies_between_all_against_and_all_for(
    asked: Mapping[str, tuple[str, ...]], entry: Mapping[str, tuple[str, ...]]
) -> None:
    assert -1 <= agreement(asked, entry) <= 1
    assert agreement(asked, asked) == (1 if asked else 0)
    assert agreement({}, entry) == agreement(asked, {}) == 0


def test_an_entry_for_any_device_is_not_behind_one_for_this_device() -> None:
    asked = read_facets({"device": "h100-sxm-80gb", "bottleneck": "pipeline"})
    anywhere = agreement(asked, {"bottleneck": ("pipeline",)})
    here = agreement(asked, {"bottleneck": ("pipeline",), "device": ("h100-sxm-80gb",)})
    elsewhere = agreement(asked, {"bottleneck": ("pipeline",), "device": ("tpu-v5p",), "vendor": ("google",)})
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
    ("facets", "field"),
    [
        ({"colour": "red"}, "facets.colour"),
        ({"bottleneck": "network"}, "facets.bottleneck"),
        ({"architecture": ["dense", "sparse"]}, "facets.architecture"),
        ({"device": 8}, "facets.device"),
        ({"num_devices": "8"}, "facets.num_devices"),
        ({"num_devices": 0}, "facets.num_devices"),
    ],
)
def test_a_facet_that_does_not_exist_is_named(
    knowledge: KnowledgeBase, facets: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as error:
        knowledge.search("bubble", facets)
    assert error.value.field == field


@pytest.mark.parametrize("limit", [0, -1, 101])
def test_the_limit_is_bounded(knowledge: KnowledgeBase, limit: int) -> None:
    with pytest.raises(InputError, match="limit"):
        knowledge.search("bubble", limit=limit)


def test_a_query_may_be_long_but_not_endless(knowledge: KnowledgeBase) -> None:
    assert knowledge.search("bubble " * 2000)
    with pytest.raises(InputError, match="query"):
        knowledge.search("bubble " * 4000)


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"]), max_size=60))
def test_any_printable_query_is_answered(query: str) -> None:
    assert len(open_seed(small_seed()).search(query)) <= 5
