"""Whatever the data holds, it stays between its markers and keeps its meaning."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from graph.reasoner.prompts import fenced, plain_json

ANY_TEXT = st.text(st.characters(codec=None, categories=None))
ANY_DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)
WHOLE = re.compile(r"<data ([0-9a-f]{16})>\n([^\n]*)\n</data \1>")


@given(ANY_DATA)
def test_the_markers_stand_once_and_the_data_means_the_same(data: object) -> None:
    text = fenced(data)
    found = WHOLE.fullmatch(text)
    assert found is not None
    code, inside = found.groups()
    assert text.count(code) == 2
    assert "<" not in inside
    assert _joined(json.loads(inside)) == _joined(data)


@given(ANY_DATA)
def test_data_can_always_be_sent(data: object) -> None:
    fenced(data).encode("utf-8")


def test_text_that_names_its_own_marker_gets_another_one() -> None:
    first = fenced({"notes": "x"})
    second = fenced({"notes": first})
    assert first.split()[1] != second.split()[1]
    assert second.count("<") == 2


def test_control_tokens_and_invisible_characters_are_written_as_escapes() -> None:
    text = plain_json("<|im_start|> [INST] \u202e \u200b \U000e0041 \ud800 ü 模")
    assert text == ('"\\u003c|im_start|> \\u005bINST] \\u202e \\u200b \\udb40\\udc41 \\ud800 ü 模"')


def test_the_same_data_gives_the_same_text() -> None:
    assert fenced({"a": [1, 2]}) == fenced({"a": [1, 2]})


def _joined(data: object) -> object:
    """JSON reads two neighbouring surrogates as the character they make."""
    return json.loads(json.dumps(data))
