"""What templates are given: lists, trails, comparisons and answers, checked as data."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.db.models import EventRow
from service.render.text import age, ago, bytes_of, format_value, humanize
from service.web.accuracy import (
    EXPERTS,
    find_trust,
    median_error,
    published,
    published_pairs,
    sections_of,
    trials_of,
)
from service.web.hardware import device_lines, facts_of
from service.web.new_session import EXAMPLE
from service.web.session import SubmittedPlan, submitted_plans
from service.web.sessions import session_list
from service.web.trail import nodes_of, outcome, strip_of, trail_of
from service.web.what_if import ask, controls_of
from tools.hardware import device_names, get_device
from tools.kb import open_seed
from tools.scenario import parse_scenario


@pytest.mark.parametrize(
    ("passed_s", "said"),
    [
        (0, "just now"),
        (42, "42 s"),
        (61, "1 min"),
        (7200, "2 h"),
        (3 * 86_400, "3 d"),
        (400 * 86_400, "1968-11-27"),
    ],
)
def test_ages_are_told_in_one_unit(passed_s: float, said: str) -> None:
    assert age(0 if passed_s < 90 * 86_400 else -passed_s, passed_s if passed_s < 90 * 86_400 else 0) == said


@pytest.mark.parametrize(
    ("passed_s", "said"),
    [(0, "just now"), (42, "42 s ago"), (3 * 86_400, "3 d ago"), (400 * 86_400, "1970-01-01")],
)
def test_an_age_in_a_sentence_is_ago_unless_it_is_a_date(passed_s: float, said: str) -> None:
    assert ago(0, passed_s) == said


def test_fields_are_told_as_people_write_them() -> None:
    assert [format_value(one) for one in (True, False, None, 8, 0.123456, "full")] == [
        "yes",
        "no",
        "",
        "8",
        "0.1235",
        "full",
    ]


@given(st.floats(0, 1e18))
def test_bytes_have_at_most_four_digits(value: float) -> None:
    number, unit = bytes_of(value).split()
    assert unit in ("B", "kB", "MB", "GB", "TB")
    assert float(number) < 1000 or unit == "TB"


def test_names_of_the_code_become_words() -> None:
    assert humanize("waiting_approval") == "waiting for approval"
    assert humanize("dp_shard") == "dp shard"


def test_filters_stay_in_the_addresses_of_a_list() -> None:
    view = session_list([], {"completed": 3, "failed": 1}, {"q": "70b x", "state": "failed"}, None, "next")
    assert view.next_address == "/?state=failed&q=70b+x&cursor=next"
    assert [(tab.name, tab.address, tab.is_chosen) for tab in view.tabs] == [
        ("all", "/?q=70b+x", False),
        ("completed", "/?state=completed&q=70b+x", False),
        ("failed", "/?state=failed&q=70b+x", True),
    ]


def event(seq: int, key: str, kind: str, **content: object) -> EventRow:
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


def test_a_trial_and_the_wait_for_it_are_told() -> None:
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
    for one in stretches:
        assert one.x >= 0
        assert one.x + one.width <= 100.0001


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
        ({"texts": {}, "struck": ["one"]}, "1 sentences struck"),
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


def asked(**given: str) -> Any:  # noqa: ANN401 - an Answer
    return ask(parse_scenario(EXAMPLE), given)


def test_what_if_nothing_changes_nothing_changes() -> None:
    answer = asked()
    assert answer.ratio == 1.0
    assert answer.variant.prediction == answer.start.prediction


def test_faster_links_make_the_step_shorter_and_less_memory_may_not_fit() -> None:
    assert asked(intra="4", inter="4").ratio > 1.0
    assert not asked(memory="0.25").variant.prediction.fits


def test_data_parallelism_follows_the_other_degrees_and_the_devices() -> None:
    assert "dp 8" in asked(tp="4", pp="2", num_devices="64").variant.summary
    assert "dp 4" in asked(num_devices="128").variant.summary


def test_the_example_fits() -> None:
    assert asked().start.prediction.fits


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tp": "3"}, "plan"),
        ({"tp": "x"}, "tp"),
        ({"tp": "16", "pp": "16"}, "plan"),
        ({"inter": "-1"}, "inter"),
        ({"inter": "nan"}, "inter"),
        ({"num_devices": "0"}, "num_devices"),
        ({"recompute": "some"}, "plan.recompute"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(given: dict[str, str], field: str) -> None:
    answer = asked(**given)
    assert answer.variant is None
    assert answer.refusal.field.startswith(field)


@given(
    st.dictionaries(
        st.sampled_from(["tp", "pp", "cp", "vpp", "inter", "num_devices", "zero_stage"]), st.text(max_size=6)
    )
)
def test_whatever_the_address_says_is_answered(given: dict[str, str]) -> None:
    answer = ask(parse_scenario(EXAMPLE), given)
    assert (answer.variant is None) == (answer.refusal is not None)


def test_every_control_stands_on_one_of_its_own_values() -> None:
    groups = controls_of(parse_scenario(EXAMPLE), {"tp": "2", "pp": "nonsense"})
    for control in (one for group in groups.values() for one in group):
        assert control.chosen in [value for value, _ in control.options], control.name
    chosen = {one.name: one.chosen for one in groups["Plan"]}
    assert (chosen["tp"], chosen["pp"]) == ("2", "4")


def test_every_device_and_every_figure_has_its_source() -> None:
    assert [line.device.name for line in device_lines()] == list(device_names())
    for name in device_names():
        assert all(fact.source for fact in facts_of(get_device(name))), name


def test_published_runs_come_with_the_package() -> None:
    validation = published()
    assert validation
    pairs = published_pairs(validation)
    assert len(pairs) > 500
    assert {pair.group for pair in pairs} == {"dense", "mixture of experts", "very small models"}
    first = sections_of(validation)[0]
    assert (first.title, first.scores[0].name) == ("Groups left out in turn", "all")
    assert not sections_of(None)
    assert not published_pairs(None)


def test_trust_is_that_of_runs_of_the_same_kind_of_model() -> None:
    trust, experts = find_trust(), find_trust(EXPERTS)
    assert trust
    assert experts
    assert trust.score.rows > 400
    assert experts.score.median > trust.score.median
    assert find_trust("nothing") is None
    assert trust.devices >= {"h100-sxm-80gb", "tpu-v5p"}
    assert "cpu" not in trust.devices


def test_only_cases_with_both_figures_are_trials() -> None:
    from dataclasses import replace

    entries = open_seed().entries("case")
    assert trials_of(entries) == []
    own = replace(
        entries[0],
        body=entries[0].body.model_copy(
            update={"predicted": {"step_time_s": 2.0}, "measured": {"step_time_s": 2.5}}
        ),
    )
    (trial,) = trials_of([own, entries[1]])
    assert trial.error_ratio == pytest.approx(-0.2)
    assert median_error([trial]) == pytest.approx(0.2)
    assert median_error([]) is None
