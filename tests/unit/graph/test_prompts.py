"""Data stays between its markers, shortened or not; what a model is told covers its task."""

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from graph.answers import SuggestedPlan
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
from graph.rules import ANSWERS
from tests.integration.llm.questions import PAYLOADS
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


def test_the_same_data_gives_the_same_text() -> None:
    assert fenced({"a": [1, 2]}) == fenced({"a": [1, 2]})


def _joined(data: object) -> object:
    """JSON reads two neighbouring surrogates as the character they make."""
    return json.loads(json.dumps(data))


def test_every_question_has_a_task() -> None:
    assert set(TASKS) == set(ANSWERS)


def test_the_vocabulary_names_every_field_of_a_plan() -> None:
    for name in {*SuggestedPlan.model_fields, *SEARCHED_FIELDS}:
        assert f"{name} " in SYSTEM or f"{name};" in SYSTEM, name


def test_the_vocabulary_names_every_cause() -> None:
    assert [cause for cause in CAUSES if cause not in SYSTEM] == []


def test_the_reader_of_notes_is_told_every_field_that_notes_may_set() -> None:
    told = SYSTEM + TASKS["read_notes"]
    assert [name for name in NOTE_FIELDS if name not in told] == []


def test_every_part_of_a_payload_that_a_task_names_is_there() -> None:
    for name, payload in PAYLOADS.items():
        text = task_text(name, payload)
        assert text.startswith(f"Task: {name}\n\n{TASKS[name]}")
        assert text.index(TASKS[name]) < text.index("<data ") < text.index("The data ends here")


def test_the_start_of_the_prompt_is_the_same_for_any_data() -> None:
    one, other = (task_text("read_notes", {"notes": notes}) for notes in ("a", "b"))
    assert one.partition("<data ")[0] == other.partition("<data ")[0]


NAMES = st.sampled_from(["notes", "options", "evidence", "plan", "hits", "why", "tp"])
DATA = st.recursive(
    st.integers() | st.text(max_size=600),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(NAMES, DATA, max_size=5))
def test_it_is_never_longer_and_cutting_again_changes_nothing(payload: dict[str, Any]) -> None:
    short = shrunk(payload)
    assert (
        len(json.dumps(short)) <= len(json.dumps(payload)) + 10 * len(json.dumps(payload)) // MAX_CHARACTERS
    )
    assert shrunk(short).keys() == short.keys()
    assert not LEFT_OUT & set(short)


def test_the_rules_can_still_answer_from_it() -> None:
    short = shrunk(PAYLOADS["propose_plans"])
    assert short["playbooks"][0]["resolved_moves"] == [{"tp": 4}]
    assert short["proposals"][0]["speedup_low"] == 1.21
    assert short["diagnosis"] == {"bottleneck": "communication", "lever": None}


def test_notes_keep_more_than_other_texts() -> None:
    short = shrunk({"notes": "n" * 9000, "why": "w" * 9000})
    assert len(short["notes"]) == 4001
    assert len(short["why"]) == 301


def test_the_options_are_all_kept() -> None:
    options = [{"step": str(place)} for place in range(9)]
    assert shrunk({"options": options, "sensitivity": options}) == {
        "options": options,
        "sensitivity": options[:3],
    }


@given(st.floats(-1e300, 1e300))
def test_a_rounded_figure_has_five_digits_and_stands_for_the_figure(figure: float) -> None:
    short: Any = rounded({"a": [figure, True, 7, "text"]})
    assert short["a"][1:] == [True, 7, "text"]
    assert short["a"][0] == float(f"{short['a'][0]:.5g}")
    assert abs(short["a"][0] - figure) <= 5e-5 * abs(figure) + 1e-300
