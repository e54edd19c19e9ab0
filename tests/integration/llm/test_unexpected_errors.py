"""An error of our own in a question is never blamed on the endpoint: it is told with its class and place."""

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph.answers import UnexpectedError
from graph.context import Context
from graph.events import IncidentReported
from graph.middleware import Requests
from graph.session import check_model
from graph.state import state_serializer
from graph.tools import Toolbox
from tests.integration.llm import replies
from tests.integration.llm.conftest import MakeModel
from tests.integration.llm.questions import find_cause
from tests.integration.llm.replies import Played, Seen
from tests.integration.llm.scripted_server import ScriptedServer
from tests.integration.llm.test_sessions import playing
from tests.unit.graph.cases import data_of, run, small


def raising(error: type[Exception]) -> Callable[..., Any]:
    def raise_(*_: object, **__: object) -> Any:  # noqa: ANN401 - whatever it stands for
        raise error("our own mistake")

    return raise_


@pytest.mark.parametrize(
    "error", [AttributeError, TypeError, AssertionError, KeyError, ValueError, RuntimeError]
)
def test_an_error_before_the_endpoint_has_answered_is_our_own(
    model_at: MakeModel, monkeypatch: pytest.MonkeyPatch, unexpected_errors: list[str], error: type[Exception]
) -> None:
    monkeypatch.setattr(Requests, "_settings", raising(error))
    with ScriptedServer() as server, pytest.raises(UnexpectedError) as caught:
        model_at(server).ask(find_cause())
    assert server.seen == []
    assert (caught.value.kind, caught.value.error) == ("unexpected error", error.__name__)
    assert str(caught.value.place).startswith("graph.middleware:")
    assert len(unexpected_errors) == 1
    unexpected_errors.clear()


def test_an_error_while_a_reply_is_parsed_is_the_endpoints(model_at: MakeModel) -> None:
    with ScriptedServer(then=replies.raw(b'{"choices": [{"message": 7}]}')) as server:
        report = data_of(run(small(), Context(reasoner=model_at(server, retries=0)))[0])
    assert server.asked["explain"] > 0
    assert {incident["kind"] for incident in report["incidents"]} == {"malformed"}
    assert [incident["error"] for incident in report["incidents"]] == [None]


def test_a_session_goes_on_with_the_rules_and_tells_class_and_place(
    model_at: MakeModel, monkeypatch: pytest.MonkeyPatch, unexpected_errors: list[str]
) -> None:
    monkeypatch.setattr(Requests, "_settings", raising(AttributeError))
    with ScriptedServer(then=playing()) as server:
        saver = InMemorySaver(serde=state_serializer())
        outcome, events = run(small(), Context(reasoner=model_at(server)), saver)
        checked = check_model(Context(reasoner=model_at(server)))
    told = [event for event in events if isinstance(event, IncidentReported)]
    assert {(event.incident, event.error) for event in told} == {("unexpected error", "AttributeError")}
    (incident,) = data_of(outcome)["incidents"]
    assert incident["place"].startswith("graph.middleware:")
    assert "endpoint" not in incident["message"]
    assert [incident.error for incident in checked] == ["AttributeError"]
    assert len(unexpected_errors) == len(told) + 1
    unexpected_errors.clear()


def test_a_tool_that_breaks_is_told_to_the_model_and_reported(
    model_at: MakeModel, monkeypatch: pytest.MonkeyPatch, unexpected_errors: list[str]
) -> None:
    monkeypatch.setattr(Toolbox, "neighbours", raising(TypeError))

    def reply(seen: Seen) -> Played:
        is_first = seen.question == "propose_plans" and len(seen.messages) == 2
        return (replies.calls(("neighbours", {})) if is_first else playing())(seen)

    with ScriptedServer(then=reply) as server:
        report = data_of(run(small(), Context(reasoner=model_at(server)))[0])
    returned = [
        str(note["content"]) for seen in server.seen for note in seen.messages if note["role"] == "tool"
    ]
    assert len(returned) == 1
    assert "TypeError" in returned[0]
    assert [incident["error"] for incident in report["incidents"]] == ["TypeError"]
    assert report["usage"]["fell_back"] == 0
    assert len(unexpected_errors) == 1
    unexpected_errors.clear()
