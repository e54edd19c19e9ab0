"""BM25 over what one reader may see."""

from hypothesis import given
from hypothesis import strategies as st

from tools.kb.search import LexicalIndex

WORDS = ["bubble", "pipeline", "expert", "dispatch", "tensor", "memory", "nccl", "ring"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
DOCUMENTS = st.lists(st.tuples(TEXTS, TEXTS), max_size=8)


@given(DOCUMENTS, TEXTS)
def test_scores_are_never_negative_and_zero_without_a_shared_term(
    documents: list[tuple[str, str]], query: str
) -> None:
    scores = LexicalIndex(documents).scores(query)
    assert len(scores) == len(documents)
    for (title, text), score in zip(documents, scores, strict=True):
        shared = set(query.split()) & set(f"{title} {text}".split())
        assert (score > 0) == bool(shared)


@given(DOCUMENTS, TEXTS)
def test_an_unrelated_document_is_not_found_and_hides_nobody(
    documents: list[tuple[str, str]], query: str
) -> None:
    before = LexicalIndex(documents).scores(query)
    after = LexicalIndex([*documents, ("garbage collector", "python stalls")]).scores(query)
    assert after[-1] == 0
    assert [score > 0 for score in before] == [score > 0 for score in after[:-1]]


@given(st.lists(TEXTS.filter(bool), min_size=1, max_size=8), st.sampled_from(WORDS))
def test_an_unrelated_document_of_average_length_leaves_the_order_of_one_term(
    texts: list[str], term: str
) -> None:
    filler = " ".join(f"unrelated{number}" for number in range(len(texts[0].split())))
    same_length = [" ".join(text.split()[:1] * len(texts[0].split())) for text in texts]
    before = LexicalIndex(("", text) for text in same_length).scores(term)
    after = LexicalIndex(("", text) for text in [*same_length, filler]).scores(term)
    rank = sorted(range(len(texts)), key=lambda position: -before[position])
    assert sorted(range(len(texts)), key=lambda position: -after[position]) == rank


@given(DOCUMENTS, TEXTS)
def test_the_order_of_the_query_does_not_matter(documents: list[tuple[str, str]], query: str) -> None:
    index = LexicalIndex(documents)
    turned = " ".join(reversed(query.split()))
    assert [round(score, 9) for score in index.scores(query)] == [
        round(score, 9) for score in index.scores(turned)
    ]


def test_a_rare_term_counts_more_than_a_common_one() -> None:
    index = LexicalIndex([("", "memory ring"), ("", "memory bubble"), ("", "memory expert")])
    scores = index.scores("memory bubble")
    assert max(scores) == scores[1]


def test_a_term_in_the_title_counts_more_than_one_in_the_text() -> None:
    in_title, in_text = LexicalIndex([("bubble", "pipeline expert"), ("expert", "pipeline bubble")]).scores(
        "bubble"
    )
    assert in_title > in_text


def test_a_long_text_is_held_against_it() -> None:
    short, long = LexicalIndex([("", "bubble"), ("", "bubble " + "memory " * 50)]).scores("bubble")
    assert short > long


def test_an_index_of_nothing_answers_nothing() -> None:
    assert list(LexicalIndex([]).scores("bubble")) == []
    assert list(LexicalIndex([("", "")]).scores("bubble")) == [0.0]
