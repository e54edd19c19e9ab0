"""Words and numbers are safe to show and easy to read, whatever they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.render.text import (
    MAX_CHARACTERS,
    address,
    age,
    ago,
    beside_address,
    plain,
    seconds,
)


@given(st.text())
def test_plain_text_is_one_printable_line_of_bounded_length(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable()
    assert len(shown) <= MAX_CHARACTERS


def test_terminal_codes_and_turned_text_are_spelled_out() -> None:
    assert plain("a\x1b[31mb\u202ec\ud800\n\td") == r"a\x1b[31mb\u202ec\ud800 d"


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("https://example.org/a_b(c).md", "https://example.org/a_b(c).md"),
        ("https://example.org/repo, docs/README.md", "https://example.org/repo"),
        ("arXiv 2205.05198, table 5", "https://arxiv.org/abs/2205.05198"),
        ("a session of this installation", None),
        ("javascript:alert(1)", None),
        ("data:text/html,x", None),
        ('https://example.org/"><script>', "https://example.org/"),
    ],
)
def test_an_address_is_found_only_where_it_is_one_of_the_web(where: str, found: str | None) -> None:
    assert address(where) == found


@pytest.mark.parametrize(
    ("where", "rest"),
    [
        ("https://example.org/repo, docs/README.md", "docs/README.md"),
        ("https://example.org/repo", ""),
        ("arXiv 2205.05198, table 5", "arXiv 2205.05198, table 5"),
        ("the team's notebook", "the team's notebook"),
    ],
)
def test_what_a_source_says_beside_its_address_is_kept(where: str, rest: str) -> None:
    assert beside_address(where) == rest


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (21.9995, "22.0 s"), (1.3, "1.30 s"), (340, "340 s"), (999.7, "1,000 s"), (12345.6, "12,346 s"),
        (0.9997, "1,000 ms"), (0.468, "468 ms"), (2.5e-5, "25.0 µs"), (0, "0"),
    ],
)  # fmt: skip
def test_seconds_have_three_digits_in_a_readable_unit_or_that_of_their_table(value: float, text: str) -> None:
    assert seconds(value) == text
    assert seconds(0.0469, like=22.0) == "0.0469 s"


@pytest.mark.parametrize(
    ("passed_s", "text"),
    [(0, "just now"), (42, "42 s"), (61, "1 min"), (7200, "2 h"), (3 * 86_400, "3 d"), (4e7, "1970-01-01")],
)
def test_an_age_has_one_unit_and_is_ago_in_a_sentence_unless_it_is_a_date(passed_s: float, text: str) -> None:
    assert age(0, passed_s) == text
    assert ago(0, passed_s) == (f"{text} ago" if text[0].isdigit() and passed_s < 4e7 else text)
