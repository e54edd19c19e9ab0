"""Finding where JSON values end without decoding them."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tools.trace.stream import find_array_end, find_last_element_end, scan_depth

_VALUES = st.recursive(
    st.one_of(st.integers(), st.text(alphabet='ab"\\{}[],'), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text('k"\\}', max_size=3), inner)
    ),
    max_leaves=12,
)
_OBJECTS = st.lists(
    st.dictionaries(st.text('k"\\}', max_size=3), _VALUES, max_size=3), min_size=1, max_size=4
)


def test_brackets_in_strings_do_not_count() -> None:
    assert scan_depth(rb'{"a": "}]\"}"}').tolist()[-1] == 0


@given(_OBJECTS)
def test_the_array_ends_at_its_own_bracket(objects: list[object]) -> None:
    elements = json.dumps(objects)[1:]
    end = find_array_end((elements + ', "after": [1, 2]}').encode())
    assert end == len(elements.encode()) - 1


@given(_OBJECTS)
def test_the_last_complete_object_is_found_before_an_open_one(objects: list[object]) -> None:
    complete = json.dumps(objects)[1:-1].encode()
    assert find_last_element_end(complete + b', {"open": [1, {"x": 2}') == len(complete)


def test_an_array_that_does_not_end_has_no_end() -> None:
    assert find_array_end(b'{"a": 1}, {"b": "]"') is None
