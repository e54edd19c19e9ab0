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

from graph.answers import (
    OUR_FAULTS,
    A,
    Payload,
    Question,
    ReasonerError,
    Reply,
    UnexpectedError,
    arguments_model,
    strict_schema,
)
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
    reply_watch,
)
from graph.prompts import SYSTEM, WITH_TOOLS, plain_json, schema_text, shrunk, task_text

if TYPE_CHECKING:
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.tools import BaseTool
    from langchain_openai import ChatOpenAI

    from graph.middleware import Run


MAX_PAYLOAD_CHARACTERS = 120_000
"""About 30,000 tokens: a longer payload is shortened before anybody pays for it."""
EXTRA_REPLIES = 4
"""Replies beyond one per tool call: the answer, one repair, and what the endpoint got wrong."""


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
            answer, trail = self._answer(question, spend)
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

    def _answer(self, question: Question[A], spend: Spend) -> tuple[A, str]:
        """With the whole payload, or a shorter one if that does not fit."""
        self._prepare()
        deadline = time.monotonic() + self.endpoint.deadline_s
        if len(plain_json(question.payload)) <= MAX_PAYLOAD_CHARACTERS:
            try:
                return self._by_any_strategy(question, question.payload, spend, deadline)
            except Fault as fault:
                if fault.kind != OVERFLOW:
                    raise
        payload = shrunk(question.payload)
        if len(plain_json(payload)) > MAX_PAYLOAD_CHARACTERS:
            raise Fault(OVERFLOW, "the question is too long, even when shortened")
        return self._by_any_strategy(question, payload, spend, deadline)

    def _prepare(self) -> None:
        """The imports of a fresh process take seconds: they are not taken from its first question's time."""
        import_module("langchain.agents")
        import_module("graph.middleware")
        self._chat  # noqa: B018 - made at its first use

    def _by_any_strategy(
        self, question: Question[A], payload: Payload, spend: Spend, deadline: float
    ) -> tuple[A, str]:
        from graph.middleware import Run

        refused: list[OutputStrategy] = []
        for strategy in self._abilities.strategies(with_tools=bool(question.tools)):
            run = Run(question, strategy, self.endpoint, self._abilities, spend, deadline, self._sleep)
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
        """One agent: it thinks with tools, hands in a typed answer, and keeps no state.

        It runs outside of the session's own run: LangGraph would hand the durability of that one down, which
        an agent without checkpointer cannot have.
        """
        from langchain.agents import create_agent
        from langchain.agents.middleware import ModelCallLimitMiddleware, ToolErrorMiddleware
        from langchain.agents.middleware.model_call_limit import ModelCallLimitExceededError
        from langchain.agents.structured_output import ToolStrategy
        from langchain_core.runnables.config import set_config_context
        from langgraph.errors import GraphRecursionError

        from graph.middleware import Fence, Repair, Requests, tool_error, trail_of

        question, by_tools = run.question, run.strategy is OutputStrategy.TOOLS
        max_replies = question.max_calls + EXTRA_REPLIES
        middleware: list[Any] = [
            ModelCallLimitMiddleware(run_limit=max_replies, exit_behavior="error"),
            Requests(run),
            Repair(run),
            Fence(run),
            ToolErrorMiddleware(tool_error),
        ]
        agent: Any = create_agent(
            self._chat,
            tools=_tools(question) if by_tools else [],
            system_prompt=SYSTEM,
            response_format=cast("Any", ToolStrategy(question.answer, handle_errors=run.mend))
            if by_tools
            else None,
            middleware=middleware,
        )
        listeners = [_listener(question.listen)] if question.listen else []
        settings = {"callbacks": listeners, "max_concurrency": 1, "recursion_limit": 10 * max_replies}
        try:
            with set_config_context({}) as alone:
                result = alone.run(agent.invoke, {"messages": [("user", prompt)]}, settings)
        except (ModelCallLimitExceededError, GraphRecursionError):
            raise Fault(TOOL_LOOP, f"the model did not answer in {max_replies} replies") from None
        answer = result.get("structured_response")
        if answer is None:
            raise Fault(MALFORMED, "the model ended without an answer")
        return answer, trail_of(result["messages"], run.spend)

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
    """Receives the text of a reply, and the arguments of its tool calls, as they stream."""
    from langchain_core.callbacks import BaseCallbackHandler

    class Listener(BaseCallbackHandler):
        def on_llm_new_token(self, token: Any, *, chunk: Any = None, **_rest: Any) -> None:  # noqa: ANN401
            calls = getattr(getattr(chunk, "message", None), "tool_call_chunks", [])
            text = str(token) + "".join(str(call.get("args") or "") for call in calls)
            if text:
                listen(text)

    return Listener()


MAX_REPLY_BYTES = 8_000_000
_CUT_OFF = "asap_cut_off"
_GRACE_S = 0.25
"""The socket's own timeout has the clearer message, so it fires first."""


def bounded_client() -> Any:  # noqa: ANN401 - of httpx or httpx2
    """For `ChatOpenAI(http_client=...)`; the caller closes it.

    A connection per request, cut off at the request's timeout whatever trickles in; no redirect, which would
    take prompts to another host; nothing compressed, which a few bytes could blow up.
    """
    import httpx2
    import openai

    def start(request: Any) -> None:  # noqa: ANN401
        cut_off = _CutOff(request.extensions["timeout"]["read"])
        request.headers["Accept-Encoding"] = "identity"
        request.extensions = {**request.extensions, _CUT_OFF: cut_off, "trace": cut_off.on_event}

    def bound(response: Any) -> None:  # noqa: ANN401
        reply_watch.get().has_begun = True
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            response.request.extensions[_CUT_OFF].cancel()
            raise httpx2.DecodingError("the reply is compressed", request=response.request)
        response.stream = _bounded(response)

    hooks: dict[str, list[Callable[..., Any]]] = {"request": [start], "response": [bound]}
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


def _bounded(response: Any) -> Any:  # noqa: ANN401
    """The SDK's timeout only catches silence; a reply that trickles or never ends is given up here."""
    import httpx2

    inner, give_up_at = response.stream, response.request.extensions[_CUT_OFF].at

    class BoundedStream(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            received = 0
            for chunk in inner:
                received += len(chunk)
                if time.monotonic() > give_up_at:
                    raise httpx2.ReadTimeout("the reply takes too long", request=response.request)
                if received > MAX_REPLY_BYTES:
                    raise httpx2.ReadError("the reply is too long", request=response.request)
                yield chunk

        def close(self) -> None:
            inner.close()

    return BoundedStream()
