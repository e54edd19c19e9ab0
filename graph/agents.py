"""The language model as a reasoner: an agent of LangChain for each question, held to a typed answer.

A question is asked by the best way the endpoint offers, with a shorter payload where its context overflows.
Whatever goes wrong becomes a ReasonerError with what was spent; the expert rules answer then.
"""

import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from graph.answers import A, Question, ReasonerError, Reply, arguments_model, strict_schema
from graph.model import (
    BAD_REQUEST,
    MALFORMED,
    OF_THE_ANSWER,
    OVERFLOW,
    TOOL_LOOP,
    Abilities,
    Breaker,
    Endpoint,
    Fault,
    OutputStrategy,
    Spend,
    make_chat,
)
from graph.prompts import SYSTEM, WITH_TOOLS, plain_json, schema_text, shrunk, task_text
from graph.transport import bounded_client

if TYPE_CHECKING:
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.tools import BaseTool
    from langchain_openai import ChatOpenAI

    from graph.middleware import Run

MAX_PAYLOAD_CHARACTERS = 120_000
"""About 30,000 tokens: what is longer is shortened before anybody pays for it."""
EXTRA_REPLIES = 4
"""Of an agent, beyond one for each tool call: the answer, one repair, and what the endpoint got wrong."""
Payload = Mapping[str, Any]


class LanguageModel:
    """Make one for an endpoint and share it: it remembers what that offers, and rests it when down."""

    def __init__(
        self,
        endpoint: Endpoint,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint, self._clock, self._sleep = endpoint, clock, sleep
        self._abilities, self._breaker = Abilities(clock), Breaker(clock)
        self._lock = threading.Lock()

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
        if "_http" in self.__dict__:
            self._http.close()

    def _answer(self, question: Question[A], spend: Spend) -> tuple[A, str]:
        """With the whole payload, or a shorter one where that does not fit."""
        deadline = self._clock() + self.endpoint.deadline_s
        if len(plain_json(question.payload)) <= MAX_PAYLOAD_CHARACTERS:
            try:
                return self._by_any_strategy(question, question.payload, spend, deadline)
            except Fault as fault:
                if fault.kind != OVERFLOW:
                    raise
        payload = shrunk(question.payload)
        if len(plain_json(payload)) > MAX_PAYLOAD_CHARACTERS:
            raise Fault(OVERFLOW, "the question is too long, shortened too")
        return self._by_any_strategy(question, payload, spend, deadline)

    def _by_any_strategy(
        self, question: Question[A], payload: Payload, spend: Spend, deadline: float
    ) -> tuple[A, str]:
        from graph.middleware import Run

        refused: list[OutputStrategy] = []
        for strategy in self._abilities.strategies(with_tools=bool(question.tools)):
            run = Run(
                question, strategy, self.endpoint, self._abilities, spend, deadline, self._clock, self._sleep
            )
            try:
                answered = self._run(run, _prompt(question, payload, strategy))
            except Fault as fault:
                if fault.kind == BAD_REQUEST and strategy is not OutputStrategy.TEXT:
                    refused.append(strategy)
                    continue
                if fault.kind in OF_THE_ANSWER:
                    self._abilities.learn(strategy, refused)
                raise
            self._abilities.learn(strategy, refused)
            return answered
        raise AssertionError("the last strategy is always open")

    def _run(self, run: "Run[A]", prompt: str) -> tuple[A, str]:
        """One agent: it thinks with tools, hands in a typed answer, and keeps no state."""
        from langchain.agents import create_agent
        from langchain.agents.middleware import ModelCallLimitMiddleware, ToolErrorMiddleware
        from langchain.agents.middleware.model_call_limit import ModelCallLimitExceededError
        from langchain.agents.structured_output import ToolStrategy

        from graph.middleware import UNREADABLE, Fence, Repair, Requests, tool_error, trail_of

        question, by_tools = run.question, run.strategy is OutputStrategy.TOOLS
        max_replies = question.max_calls + EXTRA_REPLIES
        middleware: list[Any] = [
            ModelCallLimitMiddleware(run_limit=max_replies, exit_behavior="error"),
            Requests(run),
            Repair(run),
            Fence(run),
            ToolErrorMiddleware(tool_error),
        ]
        # None would inherit the session's checkpointer: an agent keeps no state of its own.
        agent: Any = create_agent(
            self._chat,
            tools=_tools(question) if by_tools else [],
            system_prompt=SYSTEM,
            response_format=cast("Any", ToolStrategy(question.answer, handle_errors=run.mend))
            if by_tools
            else None,
            middleware=middleware,
            checkpointer=False,
        )
        listeners = [_listener(question.listen)] if question.listen else []
        settings = {"callbacks": listeners, "max_concurrency": 1, "recursion_limit": 10 * max_replies}
        try:
            result = agent.invoke({"messages": [("user", prompt)]}, settings)
            return result["structured_response"], trail_of(result["messages"], run.spend)
        except ModelCallLimitExceededError:
            raise Fault(TOOL_LOOP, f"the model did not answer in {max_replies} replies") from None
        except UNREADABLE as error:
            kind = type(error).__name__
            raise Fault(MALFORMED, f"the endpoint's replies cannot be worked with ({kind})") from error

    @cached_property
    def _http(self) -> Any:  # noqa: ANN401 - of the library that the OpenAI client uses
        return bounded_client()

    @property
    def _chat(self) -> "ChatOpenAI":
        with self._lock:
            return self._made_chat

    @cached_property
    def _made_chat(self) -> "ChatOpenAI":
        return make_chat(self.endpoint, self._abilities, self._http)


def _prompt(question: Question[A], payload: Payload, strategy: OutputStrategy) -> str:
    how = {
        OutputStrategy.TOOLS: WITH_TOOLS.format(name=question.answer.__name__),
        OutputStrategy.SCHEMA: "",
    }.get(strategy, schema_text(strict_schema(question.answer)))
    return task_text(question.name, payload, how)


def _tools(question: Question[A]) -> "list[BaseTool]":
    from langchain_core.tools import StructuredTool

    return [
        StructuredTool.from_function(
            function,
            name=name,
            description=(function.__doc__ or name).strip(),
            args_schema=arguments_model(name, function),
        )
        for name, function in question.tools.items()
    ]


def _listener(listen: Callable[[str], None]) -> "BaseCallbackHandler":
    """Hears the words of a reply, and the arguments of its tool calls, as they stream."""
    from langchain_core.callbacks import BaseCallbackHandler

    class Listener(BaseCallbackHandler):
        def on_llm_new_token(self, token: Any, *, chunk: Any = None, **_rest: Any) -> None:  # noqa: ANN401
            calls = getattr(getattr(chunk, "message", None), "tool_call_chunks", [])
            text = str(token) + "".join(str(call.get("args") or "") for call in calls)
            if text:
                listen(text)

    return Listener()
