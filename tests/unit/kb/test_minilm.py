"""The local embedding model: the same vectors as the reference implementation, in NumPy."""

from typing import Any

import numpy as np
import pytest

from tools.kb import find_local_embedder
from tools.kb.embed import MAX_TOKENS, MINILM_PACKAGE, Embedder, MiniLM

QUICKSTART = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    pytest.importorskip(MINILM_PACKAGE, reason="the package with the model is not installed")
    found = find_local_embedder()
    assert found is not None
    return found


def test_similarities_are_those_published_for_this_model(minilm: Embedder) -> None:
    # sbert.net, "Quickstart", for all-MiniLM-L6-v2; printed there with four digits.
    vectors = np.array(minilm.embed(QUICKSTART))
    published = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    assert np.allclose(vectors @ vectors.T, published, atol=5e-5)


def test_the_first_numbers_are_those_of_the_reference_implementation(minilm: Embedder) -> None:
    # sentence-transformers 6.2.0 with PyTorch 2.13.0 on this model: the largest difference was 2e-7.
    vector = minilm.embed(QUICKSTART[:1])[0]
    expected = [0.01919574, 0.12008539, 0.15959834, 0.0670659, 0.05007485, -0.02591869]
    assert len(vector) == 384
    assert vector[:6] == pytest.approx(expected, abs=1e-6)


def test_a_vector_does_not_depend_on_its_neighbours(minilm: Embedder) -> None:
    texts = ["NCCL_ALGO=Ring", "pipeline bubble " * 30, "", "naïve 漢字"]
    together, alone = minilm.embed(texts), [minilm.embed([text])[0] for text in texts]
    assert np.allclose(together, alone, atol=1e-5)
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


def test_what_is_too_long_is_cut(minilm: Embedder) -> None:
    words = ["bubble"] * (MAX_TOKENS - 2)
    assert np.allclose(
        minilm.embed([" ".join(words)]), minilm.embed([" ".join([*words, "expert", "memory"])]), atol=1e-6
    )


def test_words_of_one_meaning_are_nearer_than_others(minilm: Embedder) -> None:
    query, near, far = minilm.embed(
        ["the GPUs run out of memory", "peak memory exceeds the device", "the data loader is too slow"]
    )
    assert np.dot(query, near) > np.dot(query, far) + 0.2


def test_no_texts_give_no_vectors(minilm: Embedder) -> None:
    assert minilm.embed([]) == []


def test_making_one_loads_nothing() -> None:
    assert MiniLM()._model is None


def test_without_the_package_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.kb.embed.find_spec", lambda name: None)
    assert find_local_embedder() is None


@pytest.mark.slow
def test_vectors_are_those_of_sentence_transformers(minilm: Embedder) -> None:
    reference: Any = pytest.importorskip(MINILM_PACKAGE).load_model("cpu")
    texts = [*QUICKSTART, "NCCL_ALGO=Ring", "", "expert all-to-all across nodes " * 80, "naïve ünïcödé 漢字"]
    expected = reference.encode(texts, normalize_embeddings=True)
    cosines = (np.array(minilm.embed(texts)) * expected).sum(axis=1)
    assert cosines.min() > 0.9999
