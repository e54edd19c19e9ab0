"""Every fault of an endpoint becomes a ReasonerError with its kind, after what help there is was tried."""

import time

import pytest

from graph import model as faults
from graph.agents import MAX_REPLY_BYTES
from graph.answers import ReasonerError
from tests.integration.llm import replies
from tests.integration.llm.conftest import MakeModel
from tests.integration.llm.questions import GOOD, find_cause
from tests.integration.llm.replies import Reply
from tests.integration.llm.scripted_server import ScriptedServer

KEY = "sk-very-secret"
CAUSE = replies.answer(GOOD["find_cause"])
LATER = replies.failure(429, "slow down", headers={"Retry-After": "3600"})


def kind_of(model_at: MakeModel, server: ScriptedServer, **settings: object) -> str:
    with pytest.raises(ReasonerError) as raised:
        model_at(server, **settings).ask(find_cause())
    return raised.value.kind


@pytest.mark.parametrize(
    ("reply", "kind", "requests"),
    [
        (replies.server_error(500), faults.SERVER, 3),
        (replies.context_overflow(), faults.OVERFLOW, 2),
        (replies.failure(500, "tools param requires --jinja flag"), faults.BAD_REQUEST, 3),
        (replies.dropped(), faults.UNREACHABLE, 3),
        (replies.rate_limited(), faults.RATE_LIMIT, 3),
        (LATER, faults.RATE_LIMIT, 1),
        (replies.failure(429, "pay first", "insufficient_quota"), faults.QUOTA, 1),
        (replies.failure(401, f"incorrect API key {KEY}"), faults.DENIED, 1),
        (replies.failure(403, "forbidden"), faults.DENIED, 1),
        (replies.failure(404, "no such model", "model_not_found"), faults.NOT_FOUND, 1),
        (replies.refusal(), faults.REFUSAL, 1),
        (replies.filtered(), faults.REFUSAL, 1),
        (replies.failure(400, "filtered", "content_filter"), faults.REFUSAL, 1),
        (replies.raw(b"<html>Welcome</html>", "text/html"), faults.MALFORMED, 1),
        (replies.raw(b"{}"), faults.MALFORMED, 1),
        (replies.raw(b'{"choices": []}'), faults.MALFORMED, 1),
        (replies.raw(b"{broken"), faults.MALFORMED, 1),
    ],
)
def test_each_fault_has_its_kind_and_is_repeated_only_where_that_helps(
    reply: Reply, kind: str, requests: int, model_at: MakeModel
) -> None:
    with ScriptedServer(then=reply) as server:
        assert kind_of(model_at, server, api_key=KEY) == kind
    assert server.asked == {"find_cause": requests}


@pytest.mark.parametrize(("reply", "is_sending"), [(replies.hang(), False), (replies.trickle(), True)])
def test_silence_and_trickling_end_with_the_timeout(
    reply: Reply, is_sending: bool, model_at: MakeModel
) -> None:
    with ScriptedServer(then=reply) as server:
        start = time.monotonic()
        assert kind_of(model_at, server, timeout_s=0.3, retries=1) == faults.TIMEOUT
        assert time.monotonic() - start < 30  # a trickle would take 200 s, a hang 120
        trickled = server.sent
    assert server.asked == {"find_cause": 2}
    assert bool(trickled) == is_sending


def test_a_reply_that_never_ends_is_given_up(model_at: MakeModel) -> None:
    with ScriptedServer(then=replies.trickle(0.0, length=9 * MAX_REPLY_BYTES, at_a_time=65536)) as server:
        assert kind_of(model_at, server, retries=0) == faults.TRUNCATED
        sent = server.sent
    assert server.asked == {"find_cause": 1}
    assert 0 < sent < MAX_REPLY_BYTES


def test_the_deadline_bounds_all_repetitions_together(model_at: MakeModel) -> None:
    with ScriptedServer(then=replies.hang()) as server:
        assert kind_of(model_at, server, timeout_s=0.4, deadline_s=0.6, retries=50) == faults.TIMEOUT
    assert 1 <= server.asked["find_cause"] <= 2


@pytest.mark.parametrize(("header", "expected"), [("0", 0.0), ("2.5", 2.5)])
def test_the_pause_is_the_one_the_endpoint_asks_for(
    header: str, expected: float, model_at: MakeModel, pauses: list[float]
) -> None:
    with ScriptedServer(replies.rate_limited(header), CAUSE) as server:
        model_at(server).ask(find_cause())
    assert pauses == [expected]


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_no_message_holds_the_key_or_the_prompt(status: int, model_at: MakeModel) -> None:
    def echo(seen: replies.Seen) -> replies.Played:
        return replies.failure(status, f"key {KEY} said {seen.prompt}")(seen)

    with ScriptedServer(then=echo) as server, pytest.raises(ReasonerError) as raised:
        model_at(server, api_key=KEY).ask(find_cause(facts={"text": "word " * 500}))
    assert server.asked["find_cause"] >= 1
    assert all(KEY in seen.headers["authorization"] and "word word" in seen.prompt for seen in server.seen)
    assert ("[key]" in str(raised.value)) == (status in (400, 500))  # they are quoted
    assert KEY not in str(raised.value)
    assert len(str(raised.value)) < 300


def test_a_dead_endpoint_is_left_alone_after_two_questions(model_at: MakeModel) -> None:
    with ScriptedServer(then=replies.server_error()) as server:
        model = model_at(server, retries=0)
        kinds = []
        for _ in range(4):
            with pytest.raises(ReasonerError) as raised:
                model.ask(find_cause())
            kinds.append(raised.value.kind)
    assert len(server.seen) == 2
    assert kinds == [faults.SERVER] * 4
    assert "not asked again" in str(raised.value)
