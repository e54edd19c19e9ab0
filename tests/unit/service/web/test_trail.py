"""The trail groups events into runs of nodes."""

from typing import Any

from service.sessions.model import EventRow
from service.sessions.pages.session import submitted_plans
from service.sessions.pages.trail import PURPOSES, trail_of


def event(seq: int, key: str, kind: str, **content: Any) -> EventRow:  # noqa: ANN401 - any JSON
    node = key.split("/")[-2] if "/" in key and not key.startswith("state/") else "session"
    return EventRow(seq=seq, key=key, at=100.0 + seq, node=node, kind=kind, content=dict(content))


EVENTS = [
    event(1, "state/1", "state", state="queued"),
    event(2, "state/2", "state", state="running"),
    event(3, "1/1/coordinator/1", "started"),
    event(4, "1/1/coordinator/2", "routed", step="analyzer", reason="first things first"),
    event(5, "1/1/coordinator/3", "finished", seconds=0.5),
    event(6, "1/2/analyzer/1", "started"),
    event(7, "1/2/analyzer/2", "tool", tool="analyse_plan", arguments={}, result={}, seconds=0.25),
    event(8, "1/2/analyzer/3", "reasoned", question="weigh", by="small-model", tokens=120, seconds=1.5),
]


def test_a_trail_groups_events_by_the_run_of_a_node() -> None:
    trail = trail_of(EVENTS)
    assert [move.content["state"] for move in trail.moves] == ["queued", "running"]
    assert [run.node for run in trail.runs] == ["coordinator", "analyzer"]
    (analyzer,) = trail.nodes
    assert analyzer.reason == "first things first"
    assert [(step.event.title, step.seconds, step.tokens) for step in analyzer.steps] == [
        ("analyse plan", 0.25, 0),
        ("weigh", 1.5, 120),
    ]
    assert trail.current == "analyzer"
    assert trail.agents["analyzer"].cost == "1 call, 120 tokens"


def test_an_agent_says_what_it_changed_and_repeats_nothing() -> None:
    told = [("score_plan", "tp 4"), ("checked_references", "1 found")] * 4
    calls = [
        event(seq, f"1/1/proposal/{seq}", "tool", tool=tool, outcome=outcome, seconds=0.5)
        for seq, (tool, outcome) in enumerate(told, 2)
    ]
    ended = event(12, "1/1/proposal/12", "finished", seconds=4.5, changed=["search", "turns"])
    agent = trail_of([event(1, "1/1/proposal/1", "started"), *calls, ended]).agents["proposal"]
    (run,) = agent.runs
    assert [(steps[0].event.title, len(steps)) for steps in run.folded] == [
        ("score plan", 4),
        ("checked references", 4),
    ]
    assert run.changed == ["search", "turns"]
    assert (agent.cost, agent.outcome) == ("8 calls, 4.50 s", "checked references: 1 found")


def test_what_a_person_decided_is_not_folded() -> None:
    decided = [
        event(seq, f"1/1/approve/{seq}", "decided", action="edit", by="ana", proposal=seq) for seq in (1, 2)
    ]
    assert len(trail_of(decided).runs[0].folded) == 2


def test_the_drawing_has_every_node_of_the_graph() -> None:
    from graph.build import WORKERS

    assert {*PURPOSES} == {"coordinator", "report", *WORKERS}


def test_a_trial_and_the_wait_for_it_are_reported() -> None:
    told = [
        event(1, "1/1/trial/queued", "waiting", phase="queued", job="17"),
        event(2, "1/1/trial/running s1-0", "waiting", phase="running s1-0", job="s1-0", nodes=["n1", "n2"]),
        event(3, "1/1/trial/1", "trial", role="baseline", summary="tp 8", says="measured 2 s per step"),
    ]
    (run,) = trail_of(told).runs
    assert [(step.event.title, step.event.summary) for step in run.steps] == [
        ("queued", "job 17"),
        ("running", "job s1-0, nodes n1, n2"),
        ("baseline: tp 8", "measured 2 s per step"),
    ]


def test_a_session_that_has_ended_runs_no_node() -> None:
    assert trail_of([*EVENTS, event(9, "state/9", "state", state="failed")]).current is None


def test_time_in_which_nobody_works_takes_no_room_in_the_strip() -> None:
    decided = [
        event(3, "1/1/coordinator/1", "finished", seconds=1.0),
        event(4, "2/1/approve/1", "finished", seconds=3.0).model_copy(update={"at": 9000.0}),
        event(5, "2/2/report/1", "finished", seconds=0.0).model_copy(update={"at": 9001.0}),
    ]
    agents = trail_of(decided).agents.values()
    placed = [(stretch.x, stretch.width) for agent in agents for stretch in agent.stretches]
    assert placed == [(0.0, 25.0), (25.0, 75.0), (99.6, 0.4)]


def test_a_plan_that_a_person_submitted_is_shown_with_its_score() -> None:
    scored = {"summary": "tp 4", "accepted": True, "step_time_s": 2.0, "step_time_ratio": 1.25}
    refused = {"summary": "tp 3", "accepted": False, "why": "3 does not divide 8"}
    events = [
        event(1, "1/1/proposal/1", "tool", tool="score_plan", result=scored),  # the agents' own
        event(2, "2/1/approve/1", "decided", action="edit", by="ana", proposal=1),
        event(3, "2/2/proposal/1", "tool", tool="score_plan", result=scored),
        event(4, "state/4", "state", state="waiting_approval"),
        event(5, "3/1/approve/1", "decided", action="submit", by="", proposal=1),
        event(6, "3/2/proposal/1", "tool", tool="score_plan", result=refused),
        event(7, "4/1/approve/1", "decided", action="reject", by="ana", proposal=1),
        event(8, "4/2/proposal/1", "tool", tool="score_plan", result=scored),
    ]
    assert [(by, score.summary, score.result) for by, score in submitted_plans(events)] == [
        ("ana", "tp 4", "2.00 s per step, +25.0% against proposal 1"),
        ("unknown", "tp 3", "3 does not divide 8"),
    ]
