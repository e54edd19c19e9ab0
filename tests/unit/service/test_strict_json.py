"""Strict parsing of one JSON object: what is accepted is what was meant, what is refused names its line."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.strict_json import MAX_DEPTH, is_complete, parse_object
from tools.errors import InputError

finite = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def refusal(text: str | bytes, first_line: int = 1) -> InputError:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(InputError) as caught:
        parse_object(data, "plan.json", first_line)
    return caught.value


def nested(depth: int) -> str:
    """An object that nests `depth` levels, itself included."""
    return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


@given(st.dictionaries(st.text(), values))
def test_every_finite_object_is_read_back_as_it_was(value: dict[str, object]) -> None:
    assert parse_object(json.dumps(value).encode(), "plan.json") == value


@given(st.binary())
def test_any_bytes_give_an_object_or_an_input_error(data: bytes) -> None:
    try:
        value: object = parse_object(data, "plan.json")
    except InputError:
        return
    assert value == json.loads(data)


@given(st.text(alphabet='{}[]",:0123456789.eE+- \nNaInfity\\ud', max_size=60))
def test_any_near_json_text_gives_finite_numbers_or_an_input_error(text: str) -> None:
    try:
        value = parse_object(text.encode(), "plan.json")
    except InputError:
        return
    assert all(math.isfinite(item) for item in value.values() if isinstance(item, float))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_number_that_is_not_finite_is_refused_with_its_line(number: str) -> None:
    error = refusal(f'{{"name": "x",\n "tp": 4,\n "pp": {number}}}')
    assert error.field == "plan.json line 3"
    assert error.given == number
    assert "finite" in error.allowed


def test_the_name_of_a_number_inside_a_string_is_only_text() -> None:
    assert parse_object(b'{"name": "NaN Infinity"}', "plan.json") == {"name": "NaN Infinity"}


def test_a_syntax_error_names_line_and_column() -> None:
    error = refusal('{\n "tp": 4\n "pp": 2\n}')
    assert error.field == "plan.json line 3"
    assert "column 2" in error.allowed
    assert error.given == '"pp": 2'


def test_line_numbers_count_from_where_the_text_begins() -> None:
    assert refusal('{"tp": }', first_line=41).field == "plan.json line 41"


def test_a_repeated_key_is_refused_by_name() -> None:
    error = refusal('{"plan": {"tp": 4, "pp": 1, "tp": 8}}')
    assert error.given == "tp"
    assert error.field == "plan.json line 1"


def test_a_repeated_key_somewhere_in_many_lines_claims_no_line() -> None:
    assert refusal('{"plan":\n {"tp": 4,\n "tp": 8}}').field == "plan.json"


def test_the_same_key_in_two_objects_is_no_repetition() -> None:
    assert parse_object(b'{"a": {"x": 1}, "b": {"x": 2}}', "plan.json") == {"a": {"x": 1}, "b": {"x": 2}}


def test_nesting_up_to_the_limit_is_read() -> None:
    assert "a" in parse_object(nested(MAX_DEPTH).encode(), "plan.json")


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 200_000])
def test_nesting_beyond_the_limit_is_refused(depth: int) -> None:
    assert str(MAX_DEPTH) in refusal(nested(depth)).allowed


def test_many_brackets_side_by_side_are_not_depth() -> None:
    wide = json.dumps({str(i): [] for i in range(500)})
    assert len(parse_object(wide.encode(), "plan.json")) == 500


def test_an_integer_too_long_for_python_is_refused() -> None:
    assert refusal('{\n"tp": ' + "9" * 5000 + "}").field == "plan.json line 2"


@pytest.mark.parametrize("text", ["[]", "3", '"plan"', "null", "true"])
def test_a_value_that_is_not_an_object_is_refused(text: str) -> None:
    assert "JSON object" in refusal(text).allowed


def test_text_that_is_not_utf8_is_refused_with_its_line() -> None:
    error = refusal(b'{"tp": 1,\n"name": "\xff\xfe"}')
    assert error.field == "plan.json line 2"
    assert "UTF-8" in error.allowed


def test_completeness_is_about_syntax_only() -> None:
    assert is_complete(b'{"tp": NaN}')
    assert is_complete(b"[" * 100_000)
    assert not is_complete(b'{"tp": 1')
    assert not is_complete(b'{"tp": 1} {"tp": 2}')
