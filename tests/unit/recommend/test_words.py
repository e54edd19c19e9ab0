"""Figures in words: ends of a range with the same decimals."""

import pytest

from tools.recommend.words import format_same_decimals, span


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (0.0469, 2.0, "0.05 to 2.00"),
        (2.0, 0.0469, "2.00 to 0.05"),
        (9.81, 10.3, "9.8 to 10.3"),
        (0.0, 0.0, "0 to 0"),
        (0.001, 0.00123, "0.00100 to 0.00123"),
        (950.0, 12_345.6, "950 to 12,346"),
    ],
)
def test_both_ends_of_a_range_have_the_same_decimals(start: float, end: float, words: str) -> None:
    assert span(start, end) == words


def test_a_figure_and_the_ends_of_its_interval_are_written_the_same_way() -> None:
    assert format_same_decimals(9.812, 8.9, 10.94) == ["9.8", "8.9", "10.9"]
