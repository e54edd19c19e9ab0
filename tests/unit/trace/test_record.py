"""Unions of intervals against counting every nanosecond."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tools.trace.record import Coverage, cover, join

_PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=12)


def _covered(pairs: list[tuple[int, int]]) -> set[int]:
    return {moment for start, length in pairs for moment in range(start, start + length)}


def _cover(pairs: list[tuple[int, int]]) -> Coverage:
    starts = np.array([start for start, _ in pairs], dtype=np.int64)
    return cover(starts, starts + np.array([length for _, length in pairs], dtype=np.int64))


@given(_PAIRS, _PAIRS, st.integers(-5, 90), st.integers(-5, 90))
def test_any_window_of_a_union_counts_the_moments_covered_inside(
    left: list[tuple[int, int]], right: list[tuple[int, int]], one: int, other: int
) -> None:
    start, end = min(one, other), max(one, other)
    union, moments = join(_cover(left), _cover(right)), _covered(left) | _covered(right)
    assert union.total_ns == len(moments)
    assert union.between(start, end).tolist() == [sum(start <= moment < end for moment in moments)]
