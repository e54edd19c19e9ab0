"""Whole sessions with a language model: what it adds, and that nothing it says makes the answer worse."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from graph.context import Context
from graph.events import Reasoned, ReplyStreamed, SessionEvent, ToolCalled
from graph.request import parse_request
from graph.session import Session
from tests.integration.llm import replies
from tests.integration.llm.conftest import MakeModel
from tests.integration.llm.replies import CLAIMS, Played, Reply, Seen
from tests.integration.llm.scripted_server import ScriptedServer
from tests.unit.graph.cases import report_of, run, small
from tools.errors import AsapError
from tools.kb import open_seed

QUIET: Mapping[str, Mapping[str, Any]] = {
    "read_notes": {"statements": []},
    "confirm_reading": {"verdict": "no"},
    "revise_worklist": {"items": []},
    "propose_plans": {"suggestions": []},
    "explain": CLAIMS,
}


def playing(**answers: Mapping[str, Any]) -> Reply:
    """Answers each question of a session; a cause is the first of those that are offered."""

    def reply(seen: Seen) -> Played:
        if seen.question == "find_cause" and "find_cause" not in answers:
            data = seen.data["competing"][0]
            refs = [item["ref"] for item in data["evidence"]]
            return replies.answer({"cause": data["cause"], "references": refs})(seen)
        return replies.answer({**QUIET, **answers}[seen.question])(seen)

    return reply


def told(model_at: MakeModel, raw: Mapping[str, Any], **answers: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a session that asked its model all this, and whose answers had their shape."""
    with ScriptedServer(then=playing(**answers)) as server:
        report = report_of(raw, Context(open_seed(), reasoner=model_at(server)))
    assert {"find_cause", "propose_plans", "explain", "revise_worklist", *answers} <= set(server.asked)
    assert report["usage"]["fell_back"] == 0
    return report


@cache
def rules() -> dict[str, Any]:
    """The report without a model; read, never changed."""
    return report_of(small())


def plans(report: Mapping[str, Any]) -> list[Any]:
    return [proposal["plan"] for proposal in report["proposals"]]


def test_a_good_model_is_named_and_its_words_are_in_the_report_with_figures_by_code(
    model_at: MakeModel,
) -> None:
    report = told(model_at, small())
    first = report["proposals"][0]
    assert report["reasoner"] == "scripted"
    assert f"{first['speedup']:.2f}x as fast as today's plan" in report["explanation"]
    assert f"{first['prediction']['peak_memory_gib']:.1f} GiB" in first["rationale"]
    authors = {name for name, author in report["authors"].items() if author == "scripted"}
    assert authors == {"explanation", "rationale 1", "rationale 2", "rationale 3"}
    assert report["usage"]["answered"] >= 4
    assert report["usage"]["fell_back"] == 0
    assert report["usage"]["tokens"] > 0
    assert plans(report) == plans(rules())


@pytest.mark.parametrize(
    "claim",
    [
        {"subject": "p1", "relation": "slower_than", "object": "today"},
        {"subject": "p1", "relation": "faster_than", "object": "Run curl now."},
        {"subject": "p7", "relation": "fits"},
        {"subject": "p1", "relation": "measured"},
        {"subject": "p1", "relation": "backed_by", "object": "NVIDIA certified it"},
        {"subject": "p1", "relation": "fits", "evidence": ["case:none"]},
        {"subject": "p1", "relation": "risks", "object": "9"},
        {"subject": "p1", "relation": "grows", "object": "host_and_other"},
        {"subject": "today", "relation": "limited_by", "object": "slow_link"},
        {"subject": "if9", "relation": "alters_the_answer"},
        {"subject": "t1.step_time_s", "relation": "figure"},
    ],
)
def test_a_claim_that_does_not_hold_is_handed_back_once_and_then_left_out(
    model_at: MakeModel, claim: Mapping[str, Any]
) -> None:
    holds = CLAIMS["verdict"][0]
    with ScriptedServer(then=playing(explain={**CLAIMS, "verdict": [holds, claim]})) as server:
        report = report_of(small(), Context(open_seed(), reasoner=model_at(server)))
    assert server.asked["explain"] == 2
    handed_back = [seen for seen in server.seen if seen.question == "explain"][1].messages[-1]["content"]
    assert f"verdict: claim 2 ({claim['relation']})" in handed_back
    assert (report["verdict"], report["explanation"]) == (rules()["verdict"], "")
    assert (report["authors"]["verdict"], report["authors"]["rationale 1"]) == ("expert-rules", "scripted")
    assert report["verification"]["texts_refused"]
    assert "claim refused" in [incident["kind"] for incident in report["incidents"]]


def test_a_remark_is_shown_only_where_the_installation_says_so_and_never_with_a_figure(
    model_at: MakeModel,
) -> None:
    remark = "The host looks busy to me."
    for shows, words in ((False, remark), (True, remark), (True, "It takes 9 s."), (True, "Run curl now.")):
        with ScriptedServer(then=playing(explain={**CLAIMS, "remark": words})) as server:
            context = Context(open_seed(), reasoner=model_at(server), remarks=shows)
            report = report_of(small(), context)
        marked = f'scripted remarks, unchecked: "{remark}"'
        assert (marked in report["explanation"]) == (shows and words == remark)
        assert (words in json.dumps(report)) == (shows and words == remark)


@pytest.mark.parametrize(
    "finding",
    [
        {"cause": "late_host", "references": ["x"]},
        {"cause": "exposed_tp", "references": ["invented"]},
    ],
)
def test_a_cause_that_the_evidence_does_not_show_is_not_taken(
    model_at: MakeModel, finding: Mapping[str, Any]
) -> None:
    report = told(model_at, small(), find_cause=finding)
    assert report["diagnosis"] == rules()["diagnosis"]
    assert report["hypotheses"] == rules()["hypotheses"]
    assert "impossible diagnosis" in {incident["kind"] for incident in report["incidents"]}


def test_the_worklist_is_revised_a_bounded_number_of_times_and_impossible_items_are_named(
    model_at: MakeModel,
) -> None:
    items = [
        {"task": "search", "constraints": {"tp": 2}, "purpose": "no_proposal_has_it"},
        {"task": "search", "constraints": {"speed": 9}, "purpose": "no_proposal_has_it"},
        {"task": "measure", "purpose": "a_run_would_settle_it"},
    ]
    report = told(model_at, small(), revise_worklist={"items": items})
    assert [visit["step"] for visit in report["route"]].count("proposal") == 2
    assert [
        candidate["plan"]["tp"] for candidate in report["considered"] if candidate["origin"] == "scripted"
    ] == [2]
    assert [incident["kind"] for incident in report["incidents"]].count("impossible step") >= 2
    assert plans(report) == plans(rules())


def test_a_bad_plan_is_refused_and_one_without_a_valid_reference_changes_nothing(model_at: MakeModel) -> None:
    suggestions = [
        {"plan": {"ep": 7}, "references": []},
        {"plan": {"tp": 4}, "references": ["case:none", "playbook:none", "profile:bubble"]},
    ]
    report = told(model_at, small(), propose_plans={"suggestions": suggestions})
    own = [candidate for candidate in report["considered"] if candidate["origin"] == "scripted"]
    assert [candidate["accepted"] for candidate in own] == [False, True]
    assert own[1]["support"] == []
    assert plans(report) == plans(rules())


def test_a_run_that_a_model_reads_in_the_notes_is_known_with_its_plan(model_at: MakeModel) -> None:
    notes = "Back then 2 by 2 cards (tensor by stages) came to 0.9 seconds, on these very machines."
    plan = json.dumps({"tp": 2, "pp": 2, "step_time_s": 0.9})
    stated = {"quote": notes[:-1], "field": "run", "operator": "=", "value": plan, "unit": None}

    def reply(seen: Seen) -> Played:
        if seen.question == "confirm_reading":
            holds = "must not be" not in seen.data["statement"]
            return replies.answer({"verdict": "yes" if holds else "no"})(seen)
        return playing(read_notes={"statements": [stated]})(seen)

    with ScriptedServer(then=reply) as server:
        report = report_of({**small(), "notes": notes}, Context(open_seed(), reasoner=model_at(server)))
    assert server.asked["confirm_reading"] == 2
    told = {fact["name"]: fact["value"] for fact in report["facts"] if fact["source"] == "notes"}
    assert told == {"run": [json.loads(plan)]}


def test_a_model_sees_the_families_that_the_prediction_cannot_tell_apart(model_at: MakeModel) -> None:
    with ScriptedServer(then=playing()) as server:
        report = report_of(small(), Context(open_seed(), reasoner=model_at(server)))
    (asked,) = [seen for seen in server.seen if seen.question == "propose_plans"]
    near = asked.data["near"]
    assert near[0]["behind"] == pytest.approx(0, abs=1e-9)
    assert [plan["step_time_s"] for plan in near] == sorted(plan["step_time_s"] for plan in near)
    fastest = min(proposal["prediction"]["step_time_s"] for proposal in report["proposals"])
    assert near[0]["step_time_s"] == pytest.approx(fastest, rel=1e-3)
    assert all(move["step_time_s"] > 0 for book in asked.data["playbooks"] for move in book["moves"])
    assert len(asked.prompt) + len(json.dumps(asked.body["tools"])) < 12_000 * 4


@pytest.mark.parametrize(("streams", "without"), [(True, ()), (False, ()), (True, ("stream",))])
def test_what_a_model_says_is_told_while_it_says_it_if_the_endpoint_streams(
    model_at: MakeModel, streams: bool, without: tuple[str, ...]
) -> None:
    with ScriptedServer(then=playing(), streams=streams, without=without) as server:
        outcome, events = run(small(), Context(open_seed(), reasoner=model_at(server)))
    heard = "".join(event.text for event in events if isinstance(event, ReplyStreamed))
    assert ("faster_than" in heard) == (streams and not without)
    asked = [event for event in events if isinstance(event, Reasoned) and event.by == "scripted"]
    assert {event.question for event in asked} == set(server.asked)
    assert all(event.tokens > 0 and event.prompt for event in asked)
    assert outcome.report is not None
    assert (outcome.report.usage.fell_back, outcome.report.authors["explanation"]) == (0, "scripted")


class StoppedError(AsapError):
    """What a worker raises whose session was cancelled or taken over."""


def test_a_session_that_must_stop_stops_at_a_lookup_of_the_model(model_at: MakeModel) -> None:
    lookup = replies.calls(("find_knowledge", {"query": "tp"}))

    def reply(seen: Seen) -> Played:
        return (lookup if seen.question == "propose_plans" else playing())(seen)

    def stop(event: SessionEvent) -> None:
        if isinstance(event, ToolCalled) and "'query': 'tp'" in str(event.arguments):
            raise StoppedError

    with ScriptedServer(then=reply) as server:
        session = Session("s1", Context(open_seed(), reasoner=model_at(server)))
        with pytest.raises(StoppedError):
            session.run(parse_request(small()), stop)
    assert [seen.question for seen in server.seen].count("propose_plans") == 1
