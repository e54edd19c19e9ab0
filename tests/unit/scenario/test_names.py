"""Guessing what a misspelt name meant."""

from hypothesis import given
from hypothesis import strategies as st

from tools.scenario import did_you_mean, nearest

KNOWN = ["hidden_size", "vocab_size", "tp", "pp"]


def test_the_nearest_name_comes_first() -> None:
    assert nearest("hiden_size", KNOWN)[0] == "hidden_size"


def test_case_does_not_matter() -> None:
    assert nearest("H100-SXM", ["h100-sxm", "a100"]) == ["h100-sxm"]


def test_nothing_is_near_an_unlike_name() -> None:
    assert nearest("zzzzz", KNOWN) == []


def test_all_names_are_listed_where_none_is_near() -> None:
    assert did_you_mean("zzzzz", KNOWN) == "allowed: hidden_size, pp, tp, vocab_size"


@given(st.text() | st.integers() | st.none(), st.lists(st.text(), max_size=5))
def test_only_known_names_are_offered(name: object, known: list[str]) -> None:
    assert set(nearest(name, known)) <= set(known)
