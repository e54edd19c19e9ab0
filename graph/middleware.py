"""Middleware of the agents: requests within a budget, tools behind a fence, answers mended once."""

import json
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

import httpx2
import openai
from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse, hook_config
from langchain.agents.structured_output import StructuredOutputError
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.runtime import Runtime
from pydantic import ValidationError

from graph.answers import (
    A,
    Question,
    UnexpectedError,
    UnusableError,
    describe_errors,
    read_answer,
    strict_schema,
)
from graph.context import brief
from graph.model import (
    BAD_REQUEST,
    LIMIT,
    MALFORMED,
    OLD_LIMIT,
    REFUSAL,
    STREAM,
    TIMEOUT,
    TOOL_LOOP,
    TRUNCATED,
    Abilities,
    Endpoint,
    Fault,
    OutputStrategy,
    Spend,
    UnreadableReplyError,
    fault_of,
)
from graph.prompts import fenced, rounded, schema_text
from tools.errors import DataError, InfeasibleError, InputError
from tools.kb import KnowledgeError

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command

FIRST_WAIT_S = 0.5
MAX_BACKOFF_S = 8.0
MIN_TIME_S = 0.05
MAX_RESULT_CHARACTERS = 8000
MAX_REPEATED_CHARACTERS = 4000
"""Of an unusable reply, when the model is asked to mend it."""
MAX_CALLS_PER_REPLY = 32
ENOUGH = "No more lookups. Call {name} now, with what you know."
_SURROGATES = re.compile("[\ud800-\udfff]")
CUT_OFF, FILTERED = "length", "content_filter"
SHORTER = "That was cut off at the limit of its length. Answer again, much shorter."
TOOL_FAILURES = (InputError, InfeasibleError, DataError, KnowledgeError, UnexpectedError)
"""Not every AsapError: what stops the whole session must pass."""


@dataclass
class Run(Generic[A]):
    """One question, asked with one strategy; what its middleware shares."""

    question: Question[A]
    strategy: OutputStrategy
    endpoint: Endpoint
    abilities: Abilities
    spend: Spend
    deadline: float
    sleep: Callable[[float], None]
    calls: int = 0
    repairs: int = 0
    is_closing: bool = False
    """Whether the model may only submit its answer now."""

    @property
    def answer_tool(self) -> str:
        return self.question.answer.__name__

    def mend(self, error: Exception) -> str:
        """What was wrong with an answer that LangChain could not parse; raises Fault the second time."""
        source = (
            error.source if isinstance(error, StructuredOutputError) and hasattr(error, "source") else error
        )
        cause = source.__cause__ if isinstance(source.__cause__, ValidationError) else source
        return self.correct(
            describe_errors(cause) if isinstance(cause, ValidationError) else str(cause)[:300]
        )

    def correct(self, says: str, is_cut_off: bool = False) -> str:
        self.repairs += 1
        if self.repairs > 1 and is_cut_off:
            raise Fault(TRUNCATED, "the model's answer was cut off at the limit of its length, twice")
        if self.repairs > 1:
            raise Fault(MALFORMED, f"the model's answer was not valid, twice: {says[:300]}")
        if is_cut_off:
            return SHORTER
        # The model may never have seen the schema that the endpoint holds it to.
        schema = f"\n{schema_text(strict_schema(self.question.answer))}"
        return f"That is not a valid answer: {says}. Answer again." + (
            schema if self.strategy is OutputStrategy.SCHEMA else ""
        )


class Requests(AgentMiddleware[AgentState[Any], None, Any]):
    """Keeps every request within the time and tokens of its question; counts and retries it."""

    def __init__(self, run: Run[Any]) -> None:
        super().__init__()
        self._run = run

    def wrap_model_call(
        self, request: ModelRequest[None], handler: Callable[[ModelRequest[None]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        run = self._run
        is_spent = run.spend.tokens >= run.endpoint.max_question_tokens
        if request.tools and (run.calls >= run.question.max_calls or (run.calls and is_spent)):
            enough = HumanMessage(ENOUGH.format(name=run.answer_tool))
            request = request.override(tools=[], messages=[*request.messages, enough])
            run.is_closing = True
        response = self._with_retries(request, handler)
        reply = response.result[0]
        if isinstance(reply, AIMessage):
            self._count(request.messages, reply)
            self._check(reply)
        return response

    def _with_retries(
        self, request: ModelRequest[None], handler: Callable[[ModelRequest[None]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Raises Fault once a retry is of no use or would miss the deadline."""
        run, failures = self._run, 0
        while True:
            settings = self._settings()
            try:
                return handler(request.override(model_settings=settings))
            except UnreadableReplyError as error:
                run.spend.estimate(_text_of(request.messages), "")  # it answered something
                if STREAM in settings and isinstance(error.__cause__, ValueError):
                    run.abilities.unsupported.add(STREAM)  # it answered, but not in a stream
                    continue
                fault = fault_of(error, run.endpoint.key)
            except (openai.OpenAIError, httpx2.HTTPError) as error:
                fault = fault_of(error, run.endpoint.key)
            if fault.kind == BAD_REQUEST and run.abilities.drop_named(fault.said):
                continue
            wait_s = backoff_s(failures) if fault.wait_s is None else fault.wait_s
            failures += 1
            is_late = time.monotonic() + wait_s >= run.deadline
            if not fault.repeat or failures > run.endpoint.retries or is_late:
                raise fault
            run.sleep(wait_s)

    def _settings(self) -> dict[str, object]:
        """`response_format` goes around ChatOpenAI, which would parse the reply and lose what it cost."""
        run = self._run
        left_s = min(run.endpoint.timeout_s, run.deadline - time.monotonic())
        if left_s < MIN_TIME_S:
            raise Fault(TIMEOUT, f"the {run.endpoint.deadline_s:g} s for one question are over")
        settings = run.abilities.parameters(run.endpoint, left_s, streams=run.question.listen is not None)
        body: dict[str, object] = {}
        if run.strategy is OutputStrategy.OBJECT:
            body["response_format"] = {"type": "json_object"}
        if run.strategy is OutputStrategy.SCHEMA:
            schema = {"name": run.question.name, "strict": True, "schema": strict_schema(run.question.answer)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if LIMIT in run.abilities.unsupported:
            body[OLD_LIMIT] = run.endpoint.max_tokens
        return {**settings, "extra_body": body} if body else settings

    def _count(self, asked: list[AnyMessage], reply: AIMessage) -> None:
        usage = reply.usage_metadata
        answered = str(reply.text) + "".join(str(call["args"]) for call in reply.tool_calls)
        input_tokens, output_tokens = (
            (usage["input_tokens"], usage["output_tokens"]) if usage else (None, None)
        )
        self._run.spend.report(input_tokens, output_tokens, _text_of(asked), answered)

    def _check(self, reply: AIMessage) -> None:
        if reply.additional_kwargs.get("refusal") or _finish(reply) == FILTERED:
            raise Fault(REFUSAL, "the model refuses to answer")
        calls = (*reply.tool_calls, *reply.invalid_tool_calls)
        if _SURROGATES.search(f"{reply.content}{calls}"):  # the next request could not repeat it
            raise Fault(MALFORMED, "the endpoint's reply is not valid Unicode")
        names = [call["name"] for call in calls]
        if len(names) > MAX_CALLS_PER_REPLY:
            raise Fault(TOOL_LOOP, f"the model calls {len(names)} tools at once")
        if self._run.is_closing and names and self._run.answer_tool not in names:
            raise Fault(TOOL_LOOP, f"the model went on calling tools after {self._run.calls} calls")


class Repair(AgentMiddleware[AgentState[Any], None, Any]):
    """Reads answers that come as text, and has an invalid one mended once.

    A tool call with broken JSON would end LangChain's loop silently, and cut-off JSON must not be completed.
    """

    def __init__(self, run: Run[Any]) -> None:
        super().__init__()
        self._run = run

    @hook_config(can_jump_to=["model", "end"])
    def after_model(self, state: AgentState[Any], runtime: Runtime[None]) -> dict[str, Any] | None:
        run, reply = self._run, _last_reply(state)
        if state.get("structured_response") is not None:
            return None
        if reply.tool_calls and not reply.invalid_tool_calls:
            return {"messages": self._refused(state)}
        is_cut_off = _finish(reply) == CUT_OFF
        if reply.invalid_tool_calls:
            return {"messages": self._returned(reply, is_cut_off), "jump_to": "model"}
        text = str(reply.text)
        try:
            if is_cut_off:
                raise UnusableError("cut off", is_json=True)
            return {"structured_response": read_answer(text, run.question.answer), "jump_to": "end"}
        except UnusableError as error:
            if run.strategy is OutputStrategy.TOOLS and not run.calls and not run.repairs:
                raise Fault(BAD_REQUEST, "the endpoint calls no tools") from None
            if run.strategy is OutputStrategy.SCHEMA and not error.is_json:
                raise Fault(BAD_REQUEST, "the endpoint ignores the JSON schema") from None
            says = run.correct(str(error), is_cut_off)
        by_tool = run.strategy is OutputStrategy.TOOLS
        hint = f"\nHand it in by calling {run.answer_tool}." if by_tool else ""
        short = reply.model_copy(update={"content": text[:MAX_REPEATED_CHARACTERS]})
        return {"messages": [short, HumanMessage(says + hint)], "jump_to": "model"}

    def _refused(self, state: AgentState[Any]) -> list[AnyMessage]:
        """An invalid answer, marked as one: LangChain takes any other for the end if a tool is called too."""
        return [
            message.model_copy(update={"status": "error"})
            for message in state["messages"]
            if isinstance(message, ToolMessage) and message.name == self._run.answer_tool
        ]

    def _returned(self, reply: AIMessage, is_cut_off: bool) -> list[ToolMessage]:
        """Every call must be answered before the conversation can go on."""
        run = self._run
        broken = "the arguments are not a JSON object"
        returned = [ToolMessage("not run", tool_call_id=str(call["id"])) for call in reply.tool_calls]
        for call in reply.invalid_tool_calls:
            is_answer = call.get("name") == run.answer_tool
            run.calls += not is_answer
            says = run.correct(broken, is_cut_off) if is_answer else json.dumps({"error": broken})
            returned.append(ToolMessage(says, tool_call_id=str(call["id"]), status="error"))
        return returned


class Fence(AgentMiddleware[AgentState[Any], None, Any]):
    """What a tool returns is data between markers, and short; a call beyond the limit is not run."""

    def __init__(self, run: Run[Any]) -> None:
        super().__init__()
        self._run = run

    def wrap_tool_call(
        self, request: "ToolCallRequest", handler: Callable[["ToolCallRequest"], "ToolMessage | Command[Any]"]
    ) -> "ToolMessage | Command[Any]":
        run = self._run
        if run.calls >= run.question.max_calls:
            says = f"not run: {run.question.max_calls} calls are allowed"
            return ToolMessage(says, tool_call_id=str(request.tool_call["id"]), status="error")
        run.calls += 1
        result = handler(request)
        if not isinstance(result, ToolMessage):
            return result
        return result.model_copy(update={"content": fenced(_bounded(_data(result)))})


def tool_error(error: Exception, request: "ToolCallRequest") -> str | None:
    """A wrong input is reported to the model; what must stop the session is raised."""
    if isinstance(error, TOOL_FAILURES):
        return json.dumps({"error": f"{type(error).__name__}: {str(error)[:300]}"})
    return None


def _data(message: ToolMessage) -> object:
    text = str(message.content)
    try:
        return json.loads(text)
    except ValueError:
        return {"error": text[:1000]} if message.status == "error" else text


def _bounded(result: object) -> object:
    """The result, shortened if it is long."""
    short = brief(rounded(result))
    text = json.dumps(short, default=str)
    return short if len(text) <= MAX_RESULT_CHARACTERS else {"cut_off": text[:MAX_RESULT_CHARACTERS]}


def _text_of(messages: list[AnyMessage]) -> str:
    return "".join(str(message.content) for message in messages)


def _last_reply(state: Mapping[str, Any]) -> AIMessage:
    return next(message for message in reversed(state["messages"]) if isinstance(message, AIMessage))


def _finish(reply: AIMessage) -> str:
    return str(reply.response_metadata.get("finish_reason") or "")


def backoff_s(failures: int) -> float:
    """Exponential with jitter, so that many sessions do not come back at once."""
    return min(MAX_BACKOFF_S, FIRST_WAIT_S * 2.0**failures) * random.uniform(0.5, 1.0)


MAX_TRAIL_CHARACTERS = 20_000


def trail_of(messages: list[AnyMessage], spend: Spend) -> str:
    """The conversation as text, its middle left out if it is long."""
    text = "\n\n".join([*(_format_message(message) for message in messages), f"[{spend}]"])
    if len(text) <= MAX_TRAIL_CHARACTERS:
        return text
    half = MAX_TRAIL_CHARACTERS // 2 - 50
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _format_message(message: AnyMessage) -> str:
    calls = [f"{call['name']}({json.dumps(call['args'])})" for call in getattr(message, "tool_calls", [])]
    text = str(message.text)
    return "\n".join([f"[{message.type}]", *([text] if text else []), *calls])
