"""Which sequences and positions a rank trains on, and that keys come back in the order of the sequence."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from testbed.attention import causal_attention, natural_order, rank_positions  # noqa: E402
from testbed.layout import Axis  # noqa: E402
from testbed.weights import FACTOR, STEPS, batch, rank_sequences, sequence  # noqa: E402


@given(ranks=st.integers(1, 8), piece=st.integers(1, 5))
def test_context_ranks_divide_the_sequence_and_gathering_restores_it(ranks: int, piece: int) -> None:
    seq_len = 2 * ranks * piece
    held = [
        torch.cat([torch.arange(p.start, p.stop) for p in rank_positions(seq_len, Axis(ranks, rank))])
        for rank in range(ranks)
    ]
    gathered = held[0] if ranks == 1 else natural_order(torch.cat(held), ranks)
    assert gathered.tolist() == list(range(seq_len))


@given(ranks=st.integers(2, 8), piece=st.integers(1, 5))
def test_context_ranks_see_equally_many_keys(ranks: int, piece: int) -> None:
    seq_len = 2 * ranks * piece
    seen = {
        sum(position + 1 for part in rank_positions(seq_len, Axis(ranks, rank)) for position in part)
        for rank in range(ranks)
    }
    assert len(seen) == 1


@given(dp=st.integers(1, 6), each=st.integers(1, 4))
def test_data_ranks_divide_the_global_batch(dp: int, each: int) -> None:
    indices = [index for rank in range(dp) for index in rank_sequences(dp * each, dp, rank)]
    assert indices == list(range(dp * each))


def test_targets_are_the_next_inputs_at_every_context_rank() -> None:
    whole, _ = batch(50, 16, 0, 3, range(2), Axis())
    for rank in range(2):
        inputs, targets = batch(50, 16, 0, 3, range(2), Axis(2, rank))
        positions = [p for part in rank_positions(16, Axis(2, rank)) for p in part]
        assert torch.equal(inputs, whole[:, positions])
        inner = [i for i, position in enumerate(positions) if position < 15]
        assert torch.equal(targets[:, inner], whole[:, [positions[i] + 1 for i in inner]])


@given(vocabulary=st.integers(2, 100), index=st.integers(0, 1000))
def test_a_token_follows_from_the_one_before(vocabulary: int, index: int) -> None:
    tokens = sequence(vocabulary, 20, 7, 1, index).tolist()
    steps = [(after - FACTOR * before) % vocabulary for before, after in pairwise(tokens)]
    assert set(steps) <= {step % vocabulary for step in range(STEPS)}


@pytest.mark.parametrize("flash", [True, False])
def test_more_keys_than_queries_are_aligned_at_the_end(flash: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(12, 2, heads, 4, generator=generator) for heads in (4, 2, 2))
    whole = causal_attention(query, key, value, flash)
    tail = causal_attention(query[8:], key, value, flash)
    assert torch.allclose(whole[8:], tail, atol=1e-6)
    scores = torch.einsum("qbhd,kbhd->bhqk", query, key.repeat_interleave(2, dim=2)) / 2.0
    masked = scores.masked_fill(torch.ones(12, 12, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
    expected = torch.einsum("bhqk,kbhd->qbhd", masked, value.repeat_interleave(2, dim=2))
    assert torch.allclose(whole, expected, atol=1e-5)
