"""The language model as a reasoner: one LangChain agent per question, held to a typed answer.

A question is asked in the best way the endpoint offers, with a shorter payload if its context overflows. Any
failure becomes a ReasonerError with what was spent, and the expert rules answer instead. The HTTP client is
bounded in time, size and place, whatever the endpoint sends.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from pydantic import JsonValue

from graph.answers import OUR_FAULTS, A, Question, ReasonerError, Reply, UnexpectedError, arguments_model
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
    TooLongError,
    keep_call,
    make_chat,
    reply_watch,
)
from graph.prompts import SYSTEM, WITH_TOOLS, plain_json, schema_text, shrunk, task_text

if TYPE_CHECKING:
    import httpx2
    from langchain_openai import ChatOpenAI

    from graph.middleware import Conversation

MAX_PAYLOAD_CHARACTERS = 120_000
"""About 30,000 tokens: a longer payload is shortened before anybody pays for it."""
EXTRA_REPLIES = 4
"""Replies beyond one per tool call: the answer, one repair, and what the endpoint got wrong."""
MAX_REPLY_BYTES = 8_000_000
EVENT_BYTES_PER_TOKEN, BYTES_PER_TOKEN, ENVELOPE_BYTES = 512, 32, 16_384
"""What a reply within its `max_tokens` stays below: a streamed token comes in an envelope of some 300 bytes;
no tokenizer packs text denser than 24 characters (graph/model.py), most pack 4."""
_CUT_OFF = "asap_cut_off"
_GRACE_S = 0.25
"""The socket's own timeout has the clearer message, so it fires first."""


class LanguageModel:
    """One per endpoint, shared: it remembers what that offers and leaves it alone while it is down."""

    def __init__(self, endpoint: Endpoint, sleep: Callable[[float], None] = time.sleep) -> None:
        self.endpoint, self._sleep = endpoint, sleep
        self._abilities, self._breaker = Abilities(time.monotonic), Breaker(time.monotonic)
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
            # The imports of a fresh process take seconds: they are not taken from its first question's time.
            for module in ("langchain.agents", "graph.middleware"):
                import_module(module)
            self._chat  # noqa: B018 - made at its first use
            answer, trail = self._answer(question, spend, time.monotonic() + self.endpoint.deadline_s)
        except Fault as fault:
            self._breaker.note(fault)
            raise ReasonerError(fault.kind, str(fault), spend.tokens, spend.cost) from fault
        except OUR_FAULTS as error:
            raise UnexpectedError(error, question.name, spend.tokens, spend.cost) from error
        self._breaker.note(None)
        return Reply(answer, self.name, spend.tokens, spend.cost, trail)

    def close(self) -> None:
        if "_http" in self.__dict__:
            self._http.close()

    def _answer(self, question: Question[A], spend: Spend, deadline: float) -> tuple[A, str]:
        """With the whole payload, or a shorter one if that does not fit."""
        payload: JsonValue = dict(question.payload)
        if len(plain_json(payload)) <= MAX_PAYLOAD_CHARACTERS:
            try:
                return self._by_any_strategy(question, payload, spend, deadline)
            except Fault as fault:
                if fault.kind != OVERFLOW:
                    raise
        payload = shrunk(payload)
        if len(plain_json(payload)) > MAX_PAYLOAD_CHARACTERS:
            raise Fault(OVERFLOW, "the question is too long, even when shortened")
        return self._by_any_strategy(question, payload, spend, deadline)

    def _by_any_strategy(
        self, question: Question[A], payload: JsonValue, spend: Spend, deadline: float
    ) -> tuple[A, str]:
        from graph.middleware import Conversation

        refused: list[OutputStrategy] = []
        for strategy in self._abilities.strategies(with_tools=bool(question.tools)):
            conversation = Conversation(
                question, strategy, self.endpoint, self._abilities, spend, deadline, self._sleep
            )
            how = "" if strategy is OutputStrategy.SCHEMA else schema_text(question.answer)
            if strategy is OutputStrategy.TOOLS:
                how = WITH_TOOLS.format(name=conversation.answer_tool)
            try:
                answered = self._converse(conversation, task_text(question.name, payload, how))
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

    def _converse(self, conversation: "Conversation[A]", prompt: str) -> tuple[A, str]:
        """One agent: it thinks with tools, hands in a typed answer, and keeps no state.

        It runs outside of the session's own run: LangGraph would hand the durability of that one down, which
        an agent without checkpointer cannot have.
        """
        from langchain.agents import create_agent
        from langchain.agents.middleware import ModelCallLimitMiddleware, ToolErrorMiddleware
        from langchain.agents.middleware.model_call_limit import ModelCallLimitExceededError
        from langchain.agents.structured_output import ToolStrategy
        from langchain_core.runnables.config import set_config_context
        from langchain_core.tools import StructuredTool
        from langgraph.errors import GraphRecursionError

        from graph.middleware import Fence, Listener, Repair, Requests, tool_error, trail_of

        question, by_tools = conversation.question, conversation.strategy is OutputStrategy.TOOLS
        max_replies = question.max_calls + EXTRA_REPLIES
        middleware: list[Any] = [
            ModelCallLimitMiddleware(run_limit=max_replies, exit_behavior="error"),
            Requests(conversation),
            Repair(conversation),
            Fence(conversation),
            ToolErrorMiddleware(tool_error),
        ]
        tools = [
            StructuredTool.from_function(
                function,
                name=name,
                description=(function.__doc__ or name).strip(),
                args_schema=arguments_model(name, function),
            )
            for name, function in question.tools.items()
        ]
        handed_in = ToolStrategy(question.answer, handle_errors=conversation.mend) if by_tools else None
        agent: Any = create_agent(
            self._chat,
            tools=tools if by_tools else [],
            system_prompt=SYSTEM,
            response_format=cast("Any", handed_in),
            middleware=middleware,
        )
        listeners = [Listener(question.listen)] if question.listen else []
        settings = {"callbacks": listeners, "max_concurrency": 1, "recursion_limit": 10 * max_replies}
        keeping = keep_call.set(question.keep)
        try:
            with set_config_context({}) as alone:
                result = alone.run(agent.invoke, {"messages": [("user", prompt)]}, settings)
        except (ModelCallLimitExceededError, GraphRecursionError):
            raise Fault(TOOL_LOOP, f"the model did not answer in {max_replies} replies") from None
        finally:
            keep_call.reset(keeping)
        answer = result.get("structured_response")
        if answer is None:
            raise Fault(MALFORMED, "the model ended without an answer")
        return answer, trail_of(result["messages"], conversation.spend)

    @cached_property
    def _http(self) -> "httpx2.Client":
        return bounded_client(self.endpoint.max_tokens)

    @property
    def _chat(self) -> "ChatOpenAI":
        with self._lock:
            return self._made_chat

    @cached_property
    def _made_chat(self) -> "ChatOpenAI":
        return make_chat(self.endpoint, self._abilities, self._http)


def bounded_client(max_tokens: int) -> "httpx2.Client":
    """For `ChatOpenAI(http_client=...)`; the caller closes it.

    A connection per request, cut off at the request's timeout whatever trickles in, and once a reply is
    longer than `max_tokens` can be; no redirect, which would take prompts to another host; nothing
    compressed, which a few bytes could blow up.
    """
    import httpx2
    import openai

    class BoundedStream(httpx2.SyncByteStream):
        """The SDK's timeout only catches silence; a reply that trickles or never ends is given up here."""

        def __init__(self, response: httpx2.Response) -> None:
            self._inner, self._request = cast("httpx2.SyncByteStream", response.stream), response.request
            is_streamed = response.headers.get("content-type", "").startswith("text/event-stream")
            per_token = EVENT_BYTES_PER_TOKEN if is_streamed else BYTES_PER_TOKEN
            self._max_bytes = min(ENVELOPE_BYTES + per_token * max_tokens, MAX_REPLY_BYTES)

        def __iter__(self) -> Iterator[bytes]:
            received, give_up_at = 0, self._request.extensions[_CUT_OFF].at
            for chunk in self._inner:
                received += len(chunk)
                if time.monotonic() > give_up_at:
                    raise httpx2.ReadTimeout("the reply takes too long", request=self._request)
                if received > self._max_bytes:
                    raise TooLongError(f"the reply is longer than {max_tokens} tokens can be")
                yield chunk

        def close(self) -> None:
            self._inner.close()

    def start(request: httpx2.Request) -> None:
        cut_off = _CutOff(request.extensions["timeout"]["read"])
        request.headers["Accept-Encoding"] = "identity"
        request.extensions = {**request.extensions, _CUT_OFF: cut_off, "trace": cut_off.on_event}

    def bound(response: httpx2.Response) -> None:
        reply_watch.get().has_begun = True
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            response.request.extensions[_CUT_OFF].cancel()
            raise httpx2.DecodingError("the reply is compressed", request=response.request)
        response.stream = BoundedStream(response)

    hooks: dict[str, list[Callable[..., object]]] = {"request": [start], "response": [bound]}
    limits = httpx2.Limits(max_keepalive_connections=0)
    return openai.DefaultHttpxClient(event_hooks=hooks, follow_redirects=False, limits=limits)


class _CutOff:
    """Ends a request's connection in time: socket timeouts only catch silence, and headers can trickle."""

    def __init__(self, limit_s: float) -> None:
        self.at = time.monotonic() + limit_s
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(limit_s + _GRACE_S, self._end)
        self._timer.daemon = True
        self._timer.start()

    def on_event(self, name: str, info: Mapping[str, Any]) -> None:
        """The `trace` extension of httpcore."""
        if name in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")
        elif name.endswith((".response_closed.complete", ".failed")):
            self.cancel()

    def cancel(self) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # TLS's own would wait for its lock
