"""Data stays between its markers, shortened or not; what a model is told covers its task."""

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from graph import questions
from graph.answers import Asked, SuggestedPlan
from graph.prompts import (
    LEFT_OUT,
    MAX_CHARACTERS,
    SYSTEM,
    TASKS,
    fenced,
    plain_json,
    rounded,
    shrunk,
    task_text,
)
from tools.recommend.hypotheses import CAUSES
from tools.recommend.notes import KINDS as NOTE_FIELDS
from tools.scenario import SEARCHED_FIELDS

ANY_TEXT = st.text(st.characters(codec=None, categories=None))
ANY_DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)
WHOLE = re.compile(r"<data ([0-9a-f]{16})>\n([^\n]*)\n</data \1>")


@given(ANY_DATA)
def test_the_markers_occur_once_and_the_data_means_the_same_and_can_be_sent(data: object) -> None:
    text = fenced(data)
    text.encode("utf-8")
    found = WHOLE.fullmatch(text)
    assert found is not None
    code, inside = found.groups()
    assert text.count(code) == 2
    assert "<" not in inside
    assert _joined(json.loads(inside)) == _joined(data)


def test_text_that_names_its_own_marker_gets_another_one() -> None:
    first = fenced({"notes": "x"})
    second = fenced({"notes": first})
    assert first.split()[1] != second.split()[1]
    assert second.count("<") == 2


def test_control_tokens_and_invisible_characters_are_written_as_escapes() -> None:
    text = plain_json("<|im_start|> [INST] \u202e \u200b \U000e0041 \ud800 ü 模")
    assert text == ('"\\u003c|im_start|> \\u005bINST] \\u202e \\u200b \\udb40\\udc41 \\ud800 ü 模"')


def _joined(data: object) -> object:
    """JSON reads two neighbouring surrogates as the character they make."""
    return json.loads(json.dumps(data))


def test_every_question_has_a_task() -> None:
    kinds = [kind for kind in vars(questions).values() if isinstance(kind, type) and issubclass(kind, Asked)]
    assert set(TASKS) == {kind.name for kind in kinds if kind is not Asked}


def test_the_vocabulary_names_every_field_of_a_plan() -> None:
    for name in {*SuggestedPlan.model_fields, *SEARCHED_FIELDS}:
        assert f"{name} " in SYSTEM or f"{name};" in SYSTEM, name


def test_the_vocabulary_names_every_cause() -> None:
    assert [cause for cause in CAUSES if cause not in SYSTEM] == []


def test_the_reader_of_notes_is_told_every_field_that_notes_may_set() -> None:
    told = SYSTEM + TASKS["read_notes"]
    assert [name for name in NOTE_FIELDS if name not in told] == []


def test_a_prompt_has_its_task_first_and_the_data_last_and_begins_the_same_for_any_data() -> None:
    for name in TASKS:
        one, other = (task_text(name, {"notes": notes}) for notes in ("a", "b"))
        assert one.startswith(f"Task: {name}\n\n{TASKS[name]}")
        assert one.index(TASKS[name]) < one.index("<data ") < one.index("The data ends here")
        assert one.partition("<data ")[0] == other.partition("<data ")[0]


NAMES = st.sampled_from(["notes", "options", "evidence", "plan", "hits", "why", "tp"])
DATA = st.recursive(
    st.integers() | st.text(max_size=600),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(NAMES, DATA, max_size=5))
def test_a_shortened_payload_is_never_longer_and_cutting_again_changes_nothing(payload: Any) -> None:  # noqa: ANN401
    short: Any = shrunk(payload)
    whole = len(json.dumps(payload))
    assert len(json.dumps(short)) <= whole + 10 * whole // MAX_CHARACTERS
    assert shrunk(short) == short or any(len(text) > MAX_CHARACTERS for text in texts(short))
    assert not LEFT_OUT & set(short)


def texts(data: Any) -> list[str]:  # noqa: ANN401 - JSON
    if isinstance(data, dict | list):
        parts = data.values() if isinstance(data, dict) else data
        return [text for part in parts for text in texts(part)]
    return [data] if isinstance(data, str) else []


def test_notes_and_options_keep_more_than_other_texts_and_lists() -> None:
    options: Any = [{"step": str(place)} for place in range(9)]
    short: Any = shrunk({"notes": "n" * 9000, "why": "w" * 9000, "options": options, "sensitivity": options})
    assert (len(short["notes"]), len(short["why"])) == (4001, 301)
    assert (short["options"], short["sensitivity"]) == (options, options[:3])


@given(st.floats(-1e300, 1e300))
def test_a_rounded_figure_has_five_digits_and_stands_for_the_figure(figure: float) -> None:
    short: Any = rounded({"a": [figure, True, 7, "text"]})
    assert short["a"][1:] == [True, 7, "text"]
    assert short["a"][0] == float(f"{short['a'][0]:.5g}")
    assert abs(short["a"][0] - figure) <= 5e-5 * abs(figure) + 1e-300
