"""A sound endpoint: typed answers, the ways to get them, what is remembered and what is reported."""

import pytest

from graph.answers import ReasonerError
from graph.model import BAD_REQUEST
from tests.integration.llm import replies
from tests.integration.llm.conftest import MakeModel
from tests.integration.llm.questions import GOOD, TOOLS, find_cause, propose_plans
from tests.integration.llm.scripted_server import ScriptedServer, by_question

KEY = "sk-very-secret"


def test_the_key_goes_into_the_header_and_the_limits_into_the_request(model_at: MakeModel) -> None:
    with ScriptedServer(then=by_question(GOOD)) as server:
        model_at(server, api_key=KEY, max_tokens=77, temperature=0.5).ask(find_cause())
    seen = server.seen[0]
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert (seen.body["max_completion_tokens"], seen.body["temperature"]) == (77, 0.5)
    assert KEY not in str(seen.body)


def test_no_key_of_the_environment_is_sent_to_the_endpoint(
    model_at: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_PROXY", "http://127.0.0.1:9")
    with ScriptedServer(then=by_question(GOOD)) as server:
        model_at(server).ask(find_cause())
    assert KEY not in str(server.seen[0].headers)


def test_tokens_are_estimated_and_marked_where_the_endpoint_reports_none(model_at: MakeModel) -> None:
    uncounted = replies.text('{"cause": "compute", "references": []}', usage=None)
    with ScriptedServer(uncounted) as server:
        reply = model_at(server).ask(find_cause())
    assert reply.tokens > len(server.seen[0].prompt) / 4
    assert "estimated" in reply.prompt


def test_the_trail_holds_what_was_asked_and_stays_bounded(model_at: MakeModel) -> None:
    with ScriptedServer(then=by_question(GOOD)) as server:
        model = model_at(server)
        short = model.ask(find_cause()).prompt
        long = model.ask(find_cause(facts={"text": "x" * 60_000})).prompt
    assert server.seen[0].prompt in short
    assert len(long) <= 20_000
    assert "characters left out" in long


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        ({"tools"}, ["tools", "json_schema"]),
        ({"tools", "json_schema"}, ["tools", "json_schema", "json_object"]),
        ({"tools", "response_format"}, ["tools", "json_schema", "json_object", "text"]),
    ],
)
def test_what_the_endpoint_lacks_is_done_without_and_not_tried_again(
    without: set[str], expected: list[str], model_at: MakeModel
) -> None:
    with ScriptedServer(then=by_question(GOOD), without=without) as server:
        model = model_at(server)
        first = model.ask(propose_plans(TOOLS))
        tried = len(server.seen)
        second = model.ask(propose_plans(TOOLS))
    assert first.answer == second.answer
    assert tried == len(expected)
    assert len(server.seen) == tried + 1
    assert [_way(seen) for seen in server.seen] == [*expected, expected[-1]]


def _way(seen: replies.Seen) -> str:
    if "tools" in seen.body:
        return "tools"
    return str(seen.body.get("response_format", {"type": "text"})["type"])


def test_an_endpoint_that_ignores_tools_and_schema_is_asked_in_plain_words_from_then_on(
    model_at: MakeModel,
) -> None:
    def reply(seen: replies.Seen) -> replies.Played:
        knows_shape = "JSON schema" in seen.prompt
        return replies.answer(GOOD[seen.question])(seen) if knows_shape else replies.text("Sure!")(seen)

    with ScriptedServer(then=reply) as server:
        model = model_at(server)
        model.ask(propose_plans(TOOLS))
        model.ask(propose_plans(TOOLS))
    assert [_way(seen) for seen in server.seen] == ["tools", "json_schema", "json_object", "json_object"]


def test_a_request_that_is_refused_in_every_form_is_given_up_and_nothing_is_learnt(
    model_at: MakeModel,
) -> None:
    with ScriptedServer(then=replies.failure(400, "invalid model")) as server:
        model = model_at(server)
        for _ in range(2):
            with pytest.raises(ReasonerError, match="invalid model") as raised:
                model.ask(propose_plans(TOOLS))
    assert raised.value.kind == BAD_REQUEST
    assert len(server.seen) == 8


@pytest.mark.parametrize("parameter", ["temperature", "max_completion_tokens"])
def test_a_parameter_that_the_endpoint_does_not_take_is_left_out_for_good(
    parameter: str, model_at: MakeModel
) -> None:
    with ScriptedServer(then=by_question(GOOD), without={parameter}) as server:
        model = model_at(server, max_tokens=55)
        model.ask(find_cause())
        model.ask(find_cause())
    assert len(server.seen) == 3
    assert parameter not in server.seen[2].body
    assert 55 in (server.seen[2].body.get("max_tokens"), server.seen[2].body.get("max_completion_tokens"))
