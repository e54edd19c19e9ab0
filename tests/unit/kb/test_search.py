"""Text to terms, BM25 over what one tenant may read, facets and fusion: what comes first, and why."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.kb.samples import small_seed
from tools.errors import InputError
from tools.kb import KnowledgeBase, open_seed
from tools.kb.entries import Hit
from tools.kb.search import fuse


@pytest.fixture
def knowledge() -> KnowledgeBase:
    return open_seed(small_seed())


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.entry.id for hit in hits]


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
    assert error.value.path == field
