"""Hostile meanings in six languages, in every place of an answer that takes text: none reaches a person."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from graph.ask import ask
from graph.context import Context
from graph.request import parse_request
from tests.integration.llm import replies
from tests.integration.llm.conftest import MakeModel
from tests.integration.llm.hostile import HOSTILE, is_shown
from tests.integration.llm.replies import Played, Seen
from tests.integration.llm.scripted_server import ScriptedServer
from tests.unit.graph.cases import report_of, run, small
from tools.kb import open_seed

PLACES = ("subject", "object")
NOTES = "The team likes the present schedule."
"""They state nothing."""


def hostile_claim(place: str, text: str) -> dict[str, Any]:
    """In the place of what a claim is about, or what it says of it; and as its evidence and remark."""
    whole = {"subject": "p1", "relation": "backed_by", "object": "breakdown_s", "evidence": [text]}
    return {**whole, place: text}


@cache
def rules() -> dict[str, Any]:
    return report_of(small())


def answers(place: str, text: str) -> Mapping[str, Mapping[str, Any]]:
    claims = [hostile_claim(place, text)]
    person = {"task": "ask_person", "topic": "may_change", "field": text[:40]}
    search = {"task": "search", "constraints": {text: text, "tp": [text]}, "purpose": "no_proposal_has_it"}
    stated = {"quote": NOTES, "field": "schedule", "operator": "=", "value": text, "unit": text[:40]}
    unsaid = {"quote": text, "field": text[:60], "operator": "not", "value": [text], "unit": None}
    return {
        "read_notes": {"statements": [stated, unsaid]},
        "confirm_reading": {"verdict": "yes"},
        "revise_worklist": {"items": [{**person, "purpose": "only_a_person_knows"}, search]},
        "propose_plans": {"suggestions": [{"plan": {"tp": 4}, "references": [text], "claims": claims}]},
        "explain": {"verdict": claims, "would_change": claims, "rationales": [claims] * 3, "remark": text},
        "answer_question": {"claims": claims, "remark": text},
        "find_cause": {"cause": rules()["hypotheses"][0]["cause"], "references": [text]},
    }


@pytest.mark.parametrize(("number", "text"), [*enumerate(HOSTILE)])
def test_no_hostile_meaning_reaches_a_person(model_at: MakeModel, number: int, text: str) -> None:
    given = answers(PLACES[number % len(PLACES)], text)

    def reply(seen: Seen) -> Played:
        if seen.question == "confirm_reading" and "must not be" in seen.data["statement"]:
            return replies.answer({"verdict": "no"})(seen)
        return replies.answer(given[seen.question])(seen)

    raw = {**small(), "notes": NOTES}
    scenario = parse_request(raw).scenario
    with ScriptedServer(then=reply) as server:
        context = Context(open_seed(), reasoner=model_at(server))
        outcome = run(raw, context)[0]
        assert outcome.report is not None
        answered = ask("what should we do first?", outcome.report, scenario, context)
    assert set(server.asked) >= {*given} - {"confirm_reading"}
    assert outcome.report.usage.fell_back == 0, "the hostile answers had the shape that was asked for"
    shown = json.dumps(
        [outcome.report.model_dump(mode="json"), answered.model_dump(mode="json")], ensure_ascii=False
    )
    assert not is_shown(text, shown)
    assert outcome.report.verdict == rules()["verdict"]
