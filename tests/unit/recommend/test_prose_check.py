"""Numbers in text: those that tools returned stand, others are struck."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.recommend.prose_check import STRUCK, Figure, checked, figures_in, is_founded

DATA = {
    "speedup": 1.3412, "step_time_s": 9.8076, "share": 0.1749, "device": "h100-sxm-80gb", "plans": 355413,
    "rows": [{"says": "needs 95.1 GiB of 72.8 usable"}], "fits": True, "id": None,
}  # fmt: skip
FIGURES = list(figures_in(DATA))


@pytest.mark.parametrize(
    "text",
    [
        "1.34x faster, 34% more tokens, 34.1%",
        "a step takes 9.81 s, 9.8 s or about 10 s",
        "communication takes 17% (17.5%) of it",
        "355,413 plans on H100-80GB in bf16 with ZeRO-3",
        "it needs 95.1 GiB",
        "no number at all",
    ],
)
def test_a_number_that_a_tool_returned_stands(text: str) -> None:
    assert checked(text, FIGURES) == (text, [])


@pytest.mark.parametrize(
    ("text", "struck"),
    [
        ("2.58x faster", ["2.58"]),
        ("9.82 s", ["9.82"]),
        ("saves 41% of 9.8 s", ["41"]),
        ("v1.5 and x7", ["1.5", "7"]),
        ("1,234 plans", ["1,234"]),
        ("1.34 s per step", ["1.34"]),
        ("9.81x faster", ["9.81"]),
        ("a speedup of 9.8", ["9.8"]),
        ("needs 9.81 GiB", ["9.81"]),
    ],
)
def test_a_number_that_no_tool_returned_is_struck(text: str, struck: list[str]) -> None:
    cleaned, found = checked(text, FIGURES)
    assert found == struck
    assert cleaned.count(STRUCK) == len(struck)
    assert all(number not in cleaned for number in struck)


def test_truth_values_are_no_numbers() -> None:
    assert list(figures_in({"fits": True, "none": None})) == []


@given(st.floats(0.001, 1e6), st.integers(0, 4))
def test_a_figure_stands_however_it_is_rounded(value: float, digits: int) -> None:
    assert is_founded(f"{value:.{digits}f}", [Figure(value)])
    assert is_founded(f"{value:,.{digits}f}", [Figure(value)])


@given(st.floats(1000, 1e6))
def test_a_number_away_from_every_figure_is_unfounded(value: float) -> None:
    assert not is_founded(f"{value * 1.5:.3f}", [Figure(value)])


@given(st.text(max_size=200), st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5))
def test_checking_a_second_time_changes_nothing(text: str, numbers: list[float]) -> None:
    figures = [Figure(number) for number in numbers]
    once, _ = checked(text, figures)
    assert checked(once, figures) == (once, [])


def test_a_name_may_be_quoted_whole_and_founds_no_number() -> None:
    name = "Model 99.5 (beta)"
    assert checked(f"{name} is slow", [], [name]) == (f"{name} is slow", [])
    assert checked("99.5 times faster", [], [name])[1] == ["99.5"]
