"""Answers that are no answers: mended once, and counted either way."""

import json

import pytest

from graph import model as faults
from graph.answers import ReasonerError
from tests.integration.llm import replies
from tests.integration.llm.conftest import MakeModel
from tests.integration.llm.questions import GOOD, find_cause, question
from tests.integration.llm.replies import Reply
from tests.integration.llm.scripted_server import ScriptedServer

CAUSE = GOOD["find_cause"]
INCOMPLETE = replies.text('{"cause": "compute"}')


def test_an_invalid_answer_is_mended_with_the_reason(model_at: MakeModel) -> None:
    with ScriptedServer(INCOMPLETE, replies.answer(CAUSE)) as server:
        reply = model_at(server).ask(find_cause())
    last = server.seen[1].messages
    assert [message["role"] for message in last] == ["system", "user", "assistant", "user"]
    assert "references: Field required" in last[-1]["content"]
    assert reply.tokens == 240


@pytest.mark.parametrize(
    "reply",
    [
        replies.text("{broken"),
        replies.text('{"cause": NaN, "references": []}'),
        replies.text('{"cause": "compute", "references": [], "also": 1}'),
        replies.text(json.dumps({"cause": "compute", "references": ["x"] * 9})),
        replies.text('{"a":' * 5000),
    ],
)
def test_what_is_not_exactly_the_asked_shape_is_malformed(reply: Reply, model_at: MakeModel) -> None:
    with ScriptedServer(then=reply) as server, pytest.raises(ReasonerError) as raised:
        model_at(server).ask(find_cause())
    assert raised.value.kind == faults.MALFORMED
    assert "not valid, twice" in str(raised.value)
    assert server.asked == {"find_cause": 2}
    assert raised.value.tokens >= 240


def test_a_truncated_answer_is_asked_for_again_shorter(model_at: MakeModel) -> None:
    cut = replies.truncated('{"cause": "compute", "references": ["because')
    with ScriptedServer(cut, replies.answer(CAUSE)) as server:
        assert model_at(server).ask(find_cause()).answer.cause == "exposed_tp"
    assert "shorter" in server.seen[1].messages[-1]["content"]
    with ScriptedServer(then=cut) as server, pytest.raises(ReasonerError) as raised:
        model_at(server).ask(find_cause())
    assert raised.value.kind == faults.TRUNCATED
    assert len(server.seen) == 2


def test_an_overflowing_question_is_shortened_once(model_at: MakeModel) -> None:
    books = [{"id": f"book-{place}", "why": "long " * 400, "sources": ["x"]} for place in range(9)]
    with ScriptedServer(replies.context_overflow(), replies.answer(GOOD["explain"])) as server:
        model_at(server).ask(question("explain", playbooks=books))
    whole, short = (seen.prompt for seen in server.seen)
    assert len(short) < len(whole) / 3
    assert "speedup_low" in short
    assert "book-8" not in short
