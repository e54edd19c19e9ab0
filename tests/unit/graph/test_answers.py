"""An answer is read from what surrounds it, nothing else passes for one, and endpoints take its schema."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.answers import (
    Answer,
    Confirmation,
    Explained,
    Explanation,
    Finding,
    Reading,
    SuggestedPlan,
    Suggestions,
    UnusableError,
    arguments_model,
    check_answer,
    read_answer,
    strict_schema,
)

FRAMES = ["{}", "```json\n{}\n```", "<think>a {{b}} c</think>{}", '{{"answer": {}}}']
FINDINGS = st.builds(Finding, references=st.lists(st.text(max_size=9), max_size=2))
WORDS = st.text(st.characters(exclude_characters="{<"), max_size=50)


@given(FINDINGS, WORDS, WORDS, st.sampled_from(FRAMES))
def test_an_answer_is_found_between_words(finding: Finding, before: str, after: str, frame: str) -> None:
    text = before + frame.format(finding.model_dump_json()) + after
    assert read_answer(text, Finding) == finding


@given(st.text(st.sampled_from('{}[]":,statements 01\\n`')))
def test_any_text_is_an_answer_or_unusable(text: str) -> None:
    with suppress(UnusableError):
        assert isinstance(read_answer(text, Reading), Reading)


def test_the_first_object_that_is_an_answer_counts() -> None:
    text = '{"plan": 1} then {"verdict": "yes"} and {"verdict": "no"}'
    assert read_answer(text, Confirmation).verdict == "yes"


def test_what_is_wrong_is_told_by_field_without_the_values() -> None:
    with pytest.raises(UnusableError) as raised:
        read_answer(json.dumps({"tp": "very wide", "extra": 1}), SuggestedPlan)
    says = str(raised.value)
    assert "tp: Input should be a valid integer" in says
    assert "extra: Extra inputs are not permitted" in says
    assert "very wide" not in says
    assert raised.value.is_json


@pytest.mark.parametrize(
    ("text", "is_json"),
    [
        ("", False),
        ("Sure!", False),
        ('{"step": "lea', True),
        ('```json\n{"step": "lea', True),
        ("{" * 9999, True),
    ],
)
def test_cut_off_json_is_told_apart_from_prose(text: str, is_json: bool) -> None:
    with pytest.raises(UnusableError) as raised:
        read_answer(text, Finding)
    assert raised.value.is_json is is_json


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_only_python_takes_for_json_is_refused(number: str) -> None:
    statement = f'{{"quote": "a", "operator": "=", "field": "memory_gib", "value": {number}}}'
    with pytest.raises(UnusableError):
        read_answer(f'{{"statements": [{statement}]}}', Reading)


@pytest.mark.parametrize("data", [None, 3, "text", [], [{"verdict": "yes"}], {"answer": [1]}])
def test_other_shapes_are_unusable(data: object) -> None:
    with pytest.raises(UnusableError):
        check_answer(data, Confirmation)


ANSWERS: list[type[Answer]] = [Reading, Confirmation, Finding, Suggestions, Explained, Explanation]


def parts(schema: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - JSON
    if isinstance(schema, dict):
        yield schema
        for part in schema.values():
            yield from parts(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from parts(part)


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_strict_schema_requires_every_field_and_holds_nothing_that_endpoints_refuse(
    answer: type[Answer],
) -> None:
    objects = [part for part in parts(strict_schema(answer)) if part.get("type") == "object"]
    assert objects
    for part in objects:
        assert part["required"] == list(part["properties"])
        assert part["additionalProperties"] is False
    text = json.dumps(strict_schema(answer))
    assert [word for word in ("$ref", "$defs", "title", "default", "maxLength") if f'"{word}"' in text] == []


def test_an_optional_field_may_be_null_and_may_have_the_name_of_a_keyword() -> None:
    def find(title: str, default: int = 3) -> None:
        """Find."""

    plan: Any = strict_schema(SuggestedPlan)
    arguments: Any = strict_schema(arguments_model("find", find))
    assert {"type": "null"} in plan["properties"]["tp"]["anyOf"]
    assert list(arguments["properties"]) == ["title", "default"]
