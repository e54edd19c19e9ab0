"""An answer is found in what surrounds it, and nothing else passes for one."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.reasoner.answers import Choice, Reading, SuggestedPlan
from graph.reasoner.structured import UnusableError, check_answer, read_answer

CHOICES = st.builds(Choice, step=st.text(max_size=40), reason=st.text(max_size=200))
WORDS = st.text(st.characters(exclude_characters="{<"), max_size=50)


@given(CHOICES, WORDS, WORDS, st.sampled_from(["{}", "```json\n{}\n```", "<think>a {{b}} c</think>{}"]))
def test_an_answer_is_found_between_words(choice: Choice, before: str, after: str, frame: str) -> None:
    text = before + frame.format(choice.model_dump_json()) + after
    assert read_answer(text, Choice) == choice


@given(st.text(st.sampled_from('{}[]":,statements 01\\n`')))
def test_any_text_is_an_answer_or_unusable(text: str) -> None:
    with suppress(UnusableError):
        assert isinstance(read_answer(text, Reading), Reading)


def test_the_first_object_that_is_an_answer_counts() -> None:
    text = '{"plan": 1} then {"step": "a", "reason": "b"} and {"step": "c", "reason": "d"}'
    assert read_answer(text, Choice).step == "a"


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
def test_cut_off_json_is_told_from_words(text: str, is_json: bool) -> None:
    with pytest.raises(UnusableError) as raised:
        read_answer(text, Choice)
    assert raised.value.is_json is is_json


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_only_python_takes_for_json_is_refused(number: str) -> None:
    statement = f'{{"quote": "a", "kind": "override", "field": "memory_gib", "value": {number}}}'
    with pytest.raises(UnusableError):
        read_answer(f'{{"statements": [{statement}]}}', Reading)


@pytest.mark.parametrize("data", [None, 3, "text", [], [{"step": "a", "reason": "b"}], {"answer": [1]}])
def test_other_shapes_are_unusable(data: object) -> None:
    with pytest.raises(UnusableError):
        check_answer(data, Choice)
