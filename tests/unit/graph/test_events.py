"""Stored events are read back by their kind, those of version 0.2 too, whatever a tool returned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from graph.events import OtherEvent, SessionEvent, parse_event
from tests.unit.graph.cases import run, small

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["summary", "step_time_s", "searched", "plans", "diagnosis", "outcome"]), inner
        )
    ),
)


def test_every_event_of_a_session_is_read_back_as_it_was_emitted() -> None:
    _, events = run(small())
    assert len({event.kind for event in events}) >= 5
    for event in events:
        assert parse_event(event.kind, event.content, event.key, event.at, event.node) == event


@pytest.mark.parametrize(
    ("kind", "stored", "line"),
    [
        ("tool", {"tool": "score_plan", "result": {"summary": "tp 8", "step_time_s": 2.5}},
         "score plan: tp 8: 2.50 s"),
        ("tool", {"tool": "search_plans", "result": {"searched": {"plans": 54729}, "proposals": []}},
         "search plans: 54,729 legal plans searched"),
        ("tool", {"tool": "verify_numbers", "result": {"checked": 161, "faults": []}},
         "verify numbers: 161 numbers, 0 differ"),
        ("tool", {"tool": "analyse_plan", "result": {"diagnosis": {"bottleneck": "compute"}}},
         "analyse plan: limited by compute"),
        ("tool", {"tool": "t", "result": [1, 2, "and 5 more"]}, "t: 7 found"),
        ("tool", {"tool": "t", "result": ["ours", "and what more"]}, "t: 2 found"),
        ("tool", {"tool": "t", "result": []}, "t: nothing found"),
        ("tool", {"tool": "t", "result": {}}, "t"),
        ("waiting", {"phase": "running s1-0", "job": "s1-0", "nodes": ["n1", "n2"]},
         "running: job s1-0, nodes n1, n2"),
        ("trial", {"role": "baseline", "summary": "tp 8", "says": "measured 2 s per step"},
         "baseline: tp 8: measured 2 s per step"),
        ("incident", {"incident": "timeout", "says": "explain: no answer; the expert rules answered instead"},
         "timeout: explain: no answer; the expert rules answered instead"),
        ("of_tomorrow", {"some_figure": 3}, "of tomorrow: some figure 3"),
    ],
)  # fmt: skip
def test_an_event_of_0_2_or_of_tomorrow_reads_in_one_line(
    kind: str, stored: dict[str, JsonValue], line: str
) -> None:
    assert parse_event(kind, stored).line == line


@given(st.sampled_from(["tool", "waiting", "trial", "incident", "state"]), JSON)
def test_no_stored_content_breaks_the_reader(kind: str, part: JsonValue) -> None:
    event = parse_event(kind, {"result": part, "outcome": part, "nodes": part, "error": part})
    assert isinstance(event, SessionEvent)
    assert isinstance(event.line, str)
    assert event.kind == kind or isinstance(event, OtherEvent)
