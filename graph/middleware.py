"""Middleware of the agents: requests within a budget, tools behind a fence, answers mended once."""

import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, cast

import httpx2
import openai
from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse, hook_config
from langchain.agents.structured_output import StructuredOutputError
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.runtime import Runtime
from pydantic import JsonValue, ValidationError

from graph import model as faults
from graph.answers import (
    A,
    Answer,
    Question,
    UnexpectedError,
    UnusableError,
    describe_errors,
    read_answer,
    strict_schema,
)
from graph.events import brief
from graph.model import (
    CHARACTERS_PER_TOKEN,
    LIMIT,
    OLD_LIMIT,
    STREAM,
    Abilities,
    Endpoint,
    Fault,
    OutputStrategy,
    Spend,
    TooLongError,
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
"""How much of an unusable reply is repeated when the model is asked to mend it."""
MAX_CALLS_PER_REPLY = 32
DO_NOT_HOLD = "Code could not verify this; mend it or leave it out, and answer again:"
ENOUGH = "No more lookups. Call {name} now, with what you know."
_SURROGATES = re.compile("[\ud800-\udfff]")
REDACTED = "[redacted]"
CUT_OFF, FILTERED = "length", "content_filter"
SHORTER = "That was cut off at the limit of its length. Answer again, much shorter."
TOOL_FAILURES = (InputError, InfeasibleError, DataError, KnowledgeError, UnexpectedError)
"""Not every AsapError: what stops the whole session must pass."""
MAX_TRAIL_CHARACTERS = 20_000
CallModel = Callable[[ModelRequest[None]], ModelResponse[Answer]]


@dataclass
class Conversation(Generic[A]):
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

    def unverified(self, answer: Answer) -> list[HumanMessage]:
        """What to tell the model of claims that do not hold, once; what is left then is dropped."""
        check = self.question.check
        wrong = check(cast("A", answer)) if check and not self.repairs else []
        self.repairs += bool(wrong)
        told = "\n".join([DO_NOT_HOLD, *wrong])[:MAX_REPEATED_CHARACTERS]
        return [HumanMessage(told)] if wrong else []

    def correct(self, wrong: str, is_cut_off: bool = False) -> str:
        self.repairs += 1
        if self.repairs > 1 and is_cut_off:
            raise Fault(faults.TRUNCATED, "the model's answer was cut off at the limit of its length, twice")
        if self.repairs > 1:
            raise Fault(faults.MALFORMED, f"the model's answer was not valid, twice: {wrong[:300]}")
        if is_cut_off:
            return SHORTER
        again = f"That is not a valid answer: {wrong}. Answer again."
        # The model may never have seen the schema that the endpoint holds it to.
        is_hidden = self.strategy is OutputStrategy.SCHEMA
        return f"{again}\n{schema_text(self.question.answer)}" if is_hidden else again


class Middleware(AgentMiddleware[AgentState[Answer], None, Answer]):
    def __init__(self, conversation: Conversation[A]) -> None:
        super().__init__()
        self._talk = conversation


class Requests(Middleware):
    """Keeps every request within the time and tokens of its question; counts and retries it."""

    def wrap_model_call(self, request: ModelRequest[None], handler: CallModel) -> ModelResponse[Answer]:
        talk = self._talk
        is_spent = talk.spend.tokens >= talk.endpoint.max_question_tokens
        if request.tools and (talk.calls >= talk.question.max_calls or (talk.calls and is_spent)):
            enough = HumanMessage(ENOUGH.format(name=talk.answer_tool))
            request = request.override(tools=[], messages=[*request.messages, enough])
            talk.is_closing = True
        if talk.question.hidden:
            request = request.override(
                messages=[_redacted(m, talk.question.hidden) for m in request.messages]
            )
        response = self._with_retries(request, handler)
        reply = response.result[0]
        if isinstance(reply, AIMessage):
            usage = reply.usage_metadata
            answered = str(reply.text) + "".join(str(call["args"]) for call in reply.tool_calls)
            counted = (usage["input_tokens"], usage["output_tokens"]) if usage else None
            talk.spend.add(_text_of(request.messages), answered, counted)
            self._check(reply)
        return response

    def _with_retries(self, request: ModelRequest[None], handler: CallModel) -> ModelResponse[Answer]:
        """Raises Fault once a retry is of no use or would miss the deadline."""
        talk, failures = self._talk, 0
        while True:
            settings = self._settings()
            try:
                return handler(request.override(model_settings=settings))
            except UnreadableReplyError as error:
                talk.spend.add(_text_of(request.messages), "")  # it answered something
                if STREAM in settings and isinstance(error.__cause__, ValueError):
                    talk.abilities.unsupported.add(STREAM)  # it answered, but not in a stream
                    continue
                fault = fault_of(error, talk.endpoint.key)
            except (openai.OpenAIError, httpx2.HTTPError, TooLongError) as error:
                fault = fault_of(error, talk.endpoint.key)
                if fault.kind == faults.TRUNCATED:
                    asked = _text_of(request.messages)
                    talk.spend.add(asked, "", (len(asked) // CHARACTERS_PER_TOKEN, talk.endpoint.max_tokens))
            if fault.kind == faults.BAD_REQUEST and talk.abilities.drop_named(fault.said):
                continue
            wait_s = backoff_s(failures) if fault.wait_s is None else fault.wait_s
            failures += 1
            is_late = time.monotonic() + wait_s >= talk.deadline
            if not fault.repeat or failures > talk.endpoint.retries or is_late:
                raise fault
            talk.sleep(wait_s)

    def _settings(self) -> dict[str, Any]:
        """The parameters of one request, as `ChatOpenAI` takes them.

        `response_format` goes around it: it would parse the reply and lose what that cost.
        """
        talk, endpoint, unsupported = self._talk, self._talk.endpoint, self._talk.abilities.unsupported
        left_s = min(endpoint.timeout_s, talk.deadline - time.monotonic())
        if left_s < MIN_TIME_S:
            raise Fault(faults.TIMEOUT, f"the {endpoint.deadline_s:g} s for one question are over")
        settings: dict[str, object] = {"timeout": left_s}
        body: dict[str, object] = {}
        if endpoint.temperature is not None and "temperature" not in unsupported:
            settings["temperature"] = endpoint.temperature
        if LIMIT in unsupported:
            body[OLD_LIMIT] = endpoint.max_tokens
        else:
            settings[LIMIT] = endpoint.max_tokens
        if talk.question.listen is not None and STREAM not in unsupported:
            settings |= {STREAM: True, "stream_usage": True}
        if talk.strategy is OutputStrategy.OBJECT:
            body["response_format"] = {"type": "json_object"}
        if talk.strategy is OutputStrategy.SCHEMA:
            named = {
                "name": talk.question.name,
                "strict": True,
                "schema": strict_schema(talk.question.answer),
            }
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        return {**settings, "extra_body": body} if body else settings

    def _check(self, reply: AIMessage) -> None:
        if reply.additional_kwargs.get("refusal") or _finish(reply) == FILTERED:
            raise Fault(faults.REFUSAL, "the model refuses to answer")
        calls = (*reply.tool_calls, *reply.invalid_tool_calls)
        if _SURROGATES.search(f"{reply.content}{calls}"):  # the next request could not repeat it
            raise Fault(faults.MALFORMED, "the endpoint's reply is not valid Unicode")
        names = [call["name"] for call in calls]
        if len(names) > MAX_CALLS_PER_REPLY:
            raise Fault(faults.TOOL_LOOP, f"the model calls {len(names)} tools at once")
        if self._talk.is_closing and names and self._talk.answer_tool not in names:
            raise Fault(faults.TOOL_LOOP, f"the model went on calling tools after {self._talk.calls} calls")


class Repair(Middleware):
    """Reads answers that come as text, and has an invalid one mended once.

    A tool call with broken JSON would end LangChain's loop silently, and cut-off JSON must not be completed.
    """

    @hook_config(can_jump_to=["model", "end"])
    def after_model(self, state: AgentState[Answer], runtime: Runtime[None]) -> dict[str, Any] | None:
        talk = self._talk
        reply = next(message for message in reversed(state["messages"]) if isinstance(message, AIMessage))
        if (answer := state.get("structured_response")) is not None:
            told = talk.unverified(answer)
            return {"structured_response": None, "messages": told, "jump_to": "model"} if told else None
        if reply.tool_calls and not reply.invalid_tool_calls:
            # An invalid answer, marked as one: LangChain takes any other for the end if a tool is called too.
            answers = [
                message.model_copy(update={"status": "error"})
                for message in state["messages"]
                if isinstance(message, ToolMessage) and message.name == talk.answer_tool
            ]
            return {"messages": answers}
        is_cut_off = _finish(reply) == CUT_OFF
        if reply.invalid_tool_calls:
            return {"messages": self._returned(reply, is_cut_off), "jump_to": "model"}
        text = str(reply.text)
        try:
            if is_cut_off:
                raise UnusableError("cut off", is_json=True)
            answer = read_answer(text, talk.question.answer)
            if told := talk.unverified(answer):
                return {"messages": told, "jump_to": "model"}
            return {"structured_response": answer, "jump_to": "end"}
        except UnusableError as error:
            if talk.strategy is OutputStrategy.TOOLS and not talk.calls and not talk.repairs:
                raise Fault(faults.BAD_REQUEST, "the endpoint calls no tools") from None
            if talk.strategy is OutputStrategy.SCHEMA and not error.is_json:
                raise Fault(faults.BAD_REQUEST, "the endpoint ignores the JSON schema") from None
            again = talk.correct(str(error), is_cut_off)
        if talk.strategy is OutputStrategy.TOOLS:
            again += f"\nHand it in by calling {talk.answer_tool}."
        short = reply.model_copy(update={"content": text[:MAX_REPEATED_CHARACTERS]})
        return {"messages": [short, HumanMessage(again)], "jump_to": "model"}

    def _returned(self, reply: AIMessage, is_cut_off: bool) -> list[ToolMessage]:
        """Every call must be answered before the conversation can go on."""
        talk, broken = self._talk, "the arguments are not a JSON object"
        returned = [ToolMessage("not run", tool_call_id=str(call["id"])) for call in reply.tool_calls]
        for call in reply.invalid_tool_calls:
            is_answer = call.get("name") == talk.answer_tool
            talk.calls += not is_answer
            told = talk.correct(broken, is_cut_off) if is_answer else json.dumps({"error": broken})
            returned.append(ToolMessage(told, tool_call_id=str(call["id"]), status="error"))
        return returned


class Fence(Middleware):
    """What a tool returns is data between markers, and short; a call beyond the limit is not run."""

    def wrap_tool_call(
        self, request: "ToolCallRequest", handler: Callable[["ToolCallRequest"], "ToolMessage | Command[str]"]
    ) -> "ToolMessage | Command[str]":
        talk = self._talk
        if talk.calls >= talk.question.max_calls:
            told = f"not run: {talk.question.max_calls} calls are allowed"
            return ToolMessage(told, tool_call_id=str(request.tool_call["id"]), status="error")
        talk.calls += 1
        result = handler(request)
        if not isinstance(result, ToolMessage):
            return result
        text = str(result.content)
        try:
            data = json.loads(text)
        except ValueError:
            data = {"error": text[:1000]} if result.status == "error" else text
        short = brief(cast("JsonValue", rounded(data)))
        text = json.dumps(short, default=str)
        is_short = len(text) <= MAX_RESULT_CHARACTERS
        shown = short if is_short else {"cut_off": text[:MAX_RESULT_CHARACTERS]}
        return result.model_copy(update={"content": fenced(shown)})


class Listener(BaseCallbackHandler):
    """Receives the text of a reply, and the arguments of its tool calls, as they stream."""

    def __init__(self, listen: Callable[[str], None]) -> None:
        self._listen = listen

    def on_llm_new_token(self, token: object, *, chunk: object = None, **_rest: object) -> None:
        calls = getattr(getattr(chunk, "message", None), "tool_call_chunks", [])
        text = str(token) + "".join(str(call.get("args") or "") for call in calls)
        if text:
            self._listen(text)


def tool_error(error: Exception, request: "ToolCallRequest") -> str | None:
    """A wrong input is reported to the model; what must stop the session is raised."""
    if isinstance(error, TOOL_FAILURES):
        return json.dumps({"error": f"{type(error).__name__}: {str(error)[:300]}"})
    return None


def _redacted(message: AnyMessage, hidden: re.Pattern[str]) -> AnyMessage:
    """All that is sent is text: the task with its data, results of tools, earlier replies."""
    return message.model_copy(update={"content": hidden.sub(REDACTED, str(message.content))})


def _text_of(messages: list[AnyMessage]) -> str:
    return "".join(str(message.content) for message in messages)


def _finish(reply: AIMessage) -> str:
    return str(reply.response_metadata.get("finish_reason") or "")


def backoff_s(failures: int) -> float:
    """Exponential with jitter, so that many sessions do not come back at once."""
    return min(MAX_BACKOFF_S, FIRST_WAIT_S * 2.0**failures) * random.uniform(0.5, 1.0)


def trail_of(messages: list[AnyMessage], spend: Spend) -> str:
    """The conversation as text, its middle left out if it is long."""
    parts = []
    for message in messages:
        calls = [f"{call['name']}({json.dumps(call['args'])})" for call in getattr(message, "tool_calls", [])]
        parts.append("\n".join(filter(None, [f"[{message.type}]", str(message.text), *calls])))
    text = "\n\n".join([*parts, f"[{spend}]"])
    if len(text) <= MAX_TRAIL_CHARACTERS:
        return text
    half = MAX_TRAIL_CHARACTERS // 2 - 50
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
