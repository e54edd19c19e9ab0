"""A shortened payload keeps what the answer rests on."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from graph.reasoner.prompts import LEFT_OUT, MAX_CHARACTERS, shrunk
from tests.integration.llm.questions import PAYLOADS

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
    short = shrunk(PAYLOADS["suggest_plans"])
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
