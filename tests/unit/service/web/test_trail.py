"""The trail groups events into runs of nodes; whatever a tool returned, it is shown in a few words."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.db.models import EventRow
from service.web.session import SubmittedPlan, submitted_plans
from service.web.trail import nodes_of, outcome, strip_of, trail_of


def event(seq: int, key: str, kind: str, **content: Any) -> EventRow:  # noqa: ANN401 - any JSON
    return EventRow(
        seq, key, 100.0 + seq, key.split("/")[-2] if "/" in key else "session", kind, dict(content)
    )


EVENTS = [
    EventRow(1, "state/1", 100.0, "session", "state", {"state": "queued"}),
    EventRow(2, "state/2", 101.0, "session", "state", {"state": "running"}),
    event(3, "1/1/coordinator/1", "started"),
    event(4, "1/1/coordinator/2", "routed", step="analyzer", reason="first things first"),
    event(5, "1/1/coordinator/3", "finished", seconds=0.5),
    event(6, "1/2/analyzer/1", "started"),
    event(7, "1/2/analyzer/2", "tool", tool="analyse_plan", arguments={}, result={}, seconds=0.25),
    event(8, "1/2/analyzer/3", "reasoned", question="weigh", by="small-model", tokens=120, seconds=1.5),
]


def test_a_trail_groups_events_by_the_run_of_a_node() -> None:
    trail = trail_of(EVENTS)
    assert [run.node for run in trail.runs] == ["session", "session", "coordinator", "analyzer"]
    analyzer = trail.runs[-1]
    assert analyzer.reason == "first things first"
    assert [(step.title, step.seconds, step.tokens) for step in analyzer.steps] == [
        ("analyse plan", "250 ms", 0),
        ("weigh", "1.50 s", 120),
    ]
    assert (trail.current, trail.tokens, trail.tool_calls) == ("analyzer", 120, 1)


def test_the_drawing_has_every_node_of_the_graph() -> None:
    from graph.build import WORKERS

    assert {node.name for node in nodes_of(trail_of([]))} == {"coordinator", "report", *WORKERS}


def test_a_trial_and_the_wait_for_it_are_reported() -> None:
    told = [
        event(1, "1/1/trial/queued", "waiting", phase="queued", job="17"),
        event(2, "1/1/trial/running s1-0", "waiting", phase="running s1-0", job="s1-0", nodes=["n1", "n2"]),
        event(3, "1/1/trial/1", "trial", role="baseline", summary="tp 8", says="measured 2 s per step"),
    ]
    (run,) = trail_of(told).runs
    assert [(step.title, step.says) for step in run.steps] == [
        ("queued", "job 17"),
        ("running", "job s1-0, nodes n1, n2"),
        ("baseline: tp 8", "measured 2 s per step"),
    ]


def test_the_current_node_is_lit_and_no_other() -> None:
    lit = [node.name for node in nodes_of(trail_of(EVENTS)) if node.is_current]
    assert lit == ["analyzer"]
    ended = [*EVENTS, EventRow(9, "state/9", 109.0, "session", "state", {"state": "failed"})]
    assert [node.name for node in nodes_of(trail_of(ended)) if node.is_current] == []


def test_stretches_stay_inside_the_strip() -> None:
    worked, stretches = strip_of(trail_of(EVENTS))
    assert worked == ["coordinator", "analyzer"]
    for stretch in stretches:
        assert stretch.x >= 0
        assert stretch.x + stretch.width <= 100.0001


def test_time_in_which_nobody_works_takes_no_room_in_the_strip() -> None:
    decided = [
        event(3, "1/1/coordinator/1", "finished", seconds=1.0),
        EventRow(4, "2/1/approve/1", 9000.0, "approve", "finished", {"seconds": 3.0}),
    ]
    _, (first, second) = strip_of(trail_of(decided))
    assert (first.x, first.width) == (0.0, 25.0)
    assert (second.x, second.width) == (25.0, 75.0)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"summary": "tp 8", "step_time_s": 2.5, "diagnosis": {}}, "tp 8: 2.50 s"),
        ({"searched": {"plans": 54729}, "proposals": []}, "54,729 legal plans searched"),
        ({"checked": 161, "faults": []}, "161 numbers, 0 differ"),
        ({"diagnosis": {"bottleneck": "compute"}}, "limited by compute"),
        ([1, 2, "and 5 more"], "7 found"),
        (["ours", "and what more"], "2 found"),
        (["and more"], "1 found"),
        ([], "nothing found"),
        ({}, ""),
        (None, ""),
    ],
)
def test_what_a_tool_answered_is_told_in_a_few_words(result: object, said: str) -> None:
    assert outcome(result) == said


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["summary", "step_time_s", "searched", "plans", "diagnosis"]), inner
        )
    ),
)


@given(JSON)
def test_no_answer_of_a_tool_breaks_the_trail(result: object) -> None:
    assert isinstance(outcome(result), str)


def test_a_trail_of_nothing_is_empty() -> None:
    trail = trail_of([])
    assert (trail.runs, trail.current, trail.last_seq) == ([], None, 0)
    assert strip_of(trail) == ([], [])


def test_a_plan_that_a_person_submitted_is_shown_with_its_score() -> None:
    scored = {"summary": "tp 4", "accepted": True, "step_time_s": 2.0, "step_time_ratio": 1.25}
    refused = {"summary": "tp 3", "accepted": False, "why": "3 does not divide 8"}
    events = [
        event(1, "1/1/proposal/1", "tool", tool="score_plan", result=scored),  # the agents' own
        event(2, "2/1/approve/1", "decided", action="edit", by="ana", proposal=1),
        event(3, "2/2/proposal/1", "tool", tool="score_plan", result=scored),
        EventRow(4, "state/4", 104.0, "session", "state", {"state": "waiting_approval"}),
        event(5, "3/1/approve/1", "decided", action="submit", by="", proposal=1),
        event(6, "3/2/proposal/1", "tool", tool="score_plan", result=refused),
        event(7, "4/1/approve/1", "decided", action="reject", by="ana", proposal=1),
        event(8, "4/2/proposal/1", "tool", tool="score_plan", result=scored),
    ]
    assert submitted_plans(events) == [
        SubmittedPlan("ana", "tp 4", "2.00 s per step, +25.0% against proposal 1"),
        SubmittedPlan("unknown", "tp 3", "3 does not divide 8"),
    ]
