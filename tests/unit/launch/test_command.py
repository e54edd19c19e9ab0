"""Placeholders: whole words in, whole words out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.errors import InputError
from tools.launch.template import PLACEHOLDERS, check_command, fill

VALUES = {name: f"value of {name}; $(id)" for name in PLACEHOLDERS}
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


def test_every_placeholder_is_filled_by_its_own_value() -> None:
    command = ["run", *(f"{{{name}}}" for name in PLACEHOLDERS)]
    check_command(command, "command")
    assert fill(command, VALUES) == ["run", *VALUES.values()]


@given(st.lists(words))
def test_a_command_keeps_its_number_of_words_and_its_literal_ones(rest: list[str]) -> None:
    command = ["run", *rest]
    try:
        check_command(command, "command")
    except InputError:
        return
    filled = fill(command, VALUES)
    assert len(filled) == len(command)
    for before, after in zip(command, filled, strict=True):
        assert after == (
            VALUES[before[1:-1]] if before[1:-1] in PLACEHOLDERS and before[0] == "{" else before
        )


@given(st.sampled_from(sorted(PLACEHOLDERS)), words.filter(bool))
def test_a_placeholder_inside_a_longer_word_is_refused(name: str, more: str) -> None:
    for word in (f"{more}{{{name}}}", f"{{{name}}}{more}"):
        with pytest.raises(InputError):
            check_command(["run", word], "command")


def test_braces_that_are_no_placeholder_stay() -> None:
    command = ["run", '{"lr": 1}', "{}", "{0}", "a{ b }c"]
    check_command(command, "command")
    assert fill(command, {}) == command


def test_an_unknown_placeholder_is_named_with_the_nearest_known() -> None:
    with pytest.raises(InputError, match="did you mean scenario"):
        check_command(["run", "{scenaro}"], "command")


def test_a_job_without_a_value_for_a_placeholder_is_refused() -> None:
    with pytest.raises(InputError) as error:
        fill(["run", "{config}"], {"out": "x"})
    assert error.value.field == "config"
