"""The language model as a reasoner: any OpenAI-compatible endpoint, held to typed answers.

A question is asked by the best way the endpoint offers, with a shorter payload where its context overflows.
Whatever goes wrong becomes a ReasonerError with what was spent; the services lets the rules answer then.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from graph.reasoner.answers import A, Question, ReasonerError, Reply
from graph.reasoner.client import Client, Endpoint, Spend
from graph.reasoner.faults import (
    BAD_REQUEST,
    MALFORMED,
    OVERFLOW,
    REFUSAL,
    TOOL_LOOP,
    TRUNCATED,
    Breaker,
    Fault,
    OutputStrategy,
    StrategyMemory,
)
from graph.reasoner.prompts import SYSTEM, WITH_TOOLS, plain_json, schema_text, shrunk, task_text
from graph.reasoner.structured import Conversation, answer_as_json, strict_schema, trail_of
from graph.reasoner.tool_loop import SUBMIT, answer_with_tools

MAX_PAYLOAD_CHARACTERS = 120_000
"""About 30,000 tokens: what is longer is shortened before anybody pays for it."""
OF_THE_ANSWER = frozenset({MALFORMED, TRUNCATED, REFUSAL, TOOL_LOOP})
"""The endpoint took the request, so the way is open."""
Payload = Mapping[str, Any]


class LanguageModel:
    """Make one for an endpoint and share it: it remembers what that offers, and rests it when down."""

    def __init__(
        self,
        endpoint: Endpoint,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint, self._clock = endpoint, clock
        self._client = Client(endpoint, sleep, clock)
        self._ways, self._breaker = StrategyMemory(clock), Breaker(clock)

    @property
    def name(self) -> str:
        return self.endpoint.model

    def ask(self, question: Question[A]) -> Reply[A]:
        spend = Spend(self.endpoint)
        try:
            self._breaker.check()
        except Fault as fault:
            raise ReasonerError(fault.kind, str(fault)) from None
        try:
            answer, trail = self._answer(question, spend)
        except Fault as fault:
            self._breaker.note(fault)
            raise ReasonerError(fault.kind, str(fault), spend.tokens, spend.cost) from fault
        self._breaker.note(None)
        return Reply(answer, self.name, spend.tokens, spend.cost, trail)

    def close(self) -> None:
        self._client.close()

    def _answer(self, question: Question[A], spend: Spend) -> tuple[A, str]:
        """With the whole payload, or a shorter one where that does not fit."""
        deadline = self._clock() + self.endpoint.deadline_s
        if len(plain_json(question.payload)) <= MAX_PAYLOAD_CHARACTERS:
            try:
                return self._by_open_ways(question, question.payload, spend, deadline)
            except Fault as fault:
                if fault.kind != OVERFLOW:
                    raise
        payload = shrunk(question.payload)
        if len(plain_json(payload)) > MAX_PAYLOAD_CHARACTERS:
            raise Fault(OVERFLOW, "the question is too long, shortened too")
        return self._by_open_ways(question, payload, spend, deadline)

    def _by_open_ways(
        self, question: Question[A], payload: Payload, spend: Spend, deadline: float
    ) -> tuple[A, str]:
        refused: list[OutputStrategy] = []
        for way in self._ways.open(with_tools=bool(question.tools)):
            talk = Conversation(self._client, _opening(question, payload, way), spend, deadline)
            try:
                answer = self._by(way, talk, question)
            except Fault as fault:
                if fault.kind == BAD_REQUEST and way is not OutputStrategy.TEXT:
                    refused.append(way)
                    continue
                if fault.kind in OF_THE_ANSWER:
                    self._ways.learn(way, refused)
                raise
            self._ways.learn(way, refused)
            return answer, trail_of(talk.messages, spend)
        raise AssertionError("the last way is always open")

    def _by(self, way: OutputStrategy, talk: Conversation, question: Question[A]) -> A:
        if way is OutputStrategy.TOOLS:
            return answer_with_tools(talk, question)
        return answer_as_json(talk, question, way)


def _opening(question: Question[A], payload: Payload, way: OutputStrategy) -> list[dict[str, Any]]:
    how = {
        OutputStrategy.TOOLS: WITH_TOOLS.format(name=SUBMIT),
        OutputStrategy.SCHEMA: "",
        OutputStrategy.OBJECT: schema_text(strict_schema(question.answer)),
        OutputStrategy.TEXT: schema_text(strict_schema(question.answer)),
    }[way]
    content = task_text(question.name, payload, how)
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
