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


@given(_PAIRS)
def test_the_union_has_the_length_of_the_moments_covered(pairs: list[tuple[int, int]]) -> None:
    assert _cover(pairs).total_ns == len(_covered(pairs))


@given(_PAIRS, st.integers(-5, 90), st.integers(-5, 90))
def test_any_window_counts_only_what_lies_inside(pairs: list[tuple[int, int]], one: int, other: int) -> None:
    start, end = min(one, other), max(one, other)
    inside = sum(1 for moment in _covered(pairs) if start <= moment < end)
    assert _cover(pairs).between(start, end).tolist() == [inside]


@given(_PAIRS, _PAIRS)
def test_a_join_covers_what_either_covers(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    assert join(_cover(left), _cover(right)).total_ns == len(_covered(left) | _covered(right))


def test_touching_intervals_leave_no_gap() -> None:
    starts, ends = _cover([(0, 5), (5, 5), (12, 3)]).gaps()
    assert (starts.tolist(), ends.tolist()) == ([10], [12])
