"""Strict parsing of one JSON object: what is accepted is what was meant, what is refused names its line."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.strict_json import MAX_DEPTH, parse_object
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
    assert error.path == "plan.json line 3"
    assert error.given == number
    assert "finite" in error.rule


@pytest.mark.parametrize(
    ("text", "field", "given", "allowed"),
    [
        pytest.param('{\n "tp": 4\n "pp": 2\n}', " line 3", '"pp": 2', "column 2", id="syntax"),
        pytest.param('{"plan": {"tp": 4, "pp": 1, "tp": 8}}', " line 1", "tp", "", id="repeated key"),
        pytest.param('{\n"tp": ' + "9" * 5000 + "}", " line 2", None, "", id="too long for Python"),
        pytest.param(b'{"tp": 1,\n"name": "\xff\xfe"}', " line 2", None, "UTF-8", id="not UTF-8"),
        *(
            pytest.param(text, "", None, "JSON object", id=text)
            for text in ("[]", "3", '"a"', "null", "true")
        ),
        *(
            pytest.param(nested(depth), "", None, str(MAX_DEPTH), id=f"depth {depth}")
            for depth in (MAX_DEPTH + 1, 900, 200_000)
        ),
    ],
)
def test_what_is_refused_names_its_line_and_what_is_allowed(
    text: str | bytes, field: str, given: str | None, allowed: str
) -> None:
    error = refusal(text)
    assert error.path.startswith(f"plan.json{field}")
    assert given in (None, error.given)
    assert allowed in error.rule
