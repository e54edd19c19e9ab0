"""The client of an OpenAI-compatible endpoint: bounded replies, usage, prices."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from graph.reasoner.faults import BAD_REQUEST, TIMEOUT, Fault, from_exception
from tools.errors import InputError
from tools.names import parse_address

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage
    from langchain_openai import ChatOpenAI


LOCAL_KEY = "none"
"""Sent where no key is configured: the protocol wants one, and a key meant for another host must not leak."""


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible chat endpoint; prices are of a million tokens, in the currency of the budget."""

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0
    """For one request, from the first byte sent to the last received."""
    deadline_s: float = 180.0
    """For one question with all its requests, repetitions and pauses."""
    max_tokens: int = 4096
    """Of one reply; the thoughts of a reasoning model count."""
    most_question_tokens: int = 60_000
    """Once a question has cost so many, its tool loop is told to end."""
    retries: int = 2
    temperature: float | None = 0.0
    price_per_million_input: float = 0.0
    price_per_million_output: float = 0.0

    def __post_init__(self) -> None:
        parse_address("base_url", self.base_url)
        if not self.model:
            raise InputError("model", self.model, "must name the model")
        for name in ("timeout_s", "deadline_s", "max_tokens", "most_question_tokens"):
            if not getattr(self, name) > 0:
                raise InputError(name, getattr(self, name), "must be above 0")
        for name in ("retries", "price_per_million_input", "price_per_million_output"):
            if not getattr(self, name) >= 0:
                raise InputError(name, getattr(self, name), "must not be below 0")

    @property
    def key(self) -> str:
        return self.api_key or LOCAL_KEY


CHARACTERS_PER_TOKEN = 4
"""OpenAI's rule of thumb for English text; used only where the endpoint reports nothing."""
MILLION = 1_000_000


@dataclass
class Spend:
    """Grows with every reply to one question, the unusable ones too."""

    endpoint: Endpoint
    input_tokens: int = 0
    output_tokens: int = 0
    is_estimated: bool = False

    def add(self, input_tokens: int, output_tokens: int) -> None:
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens

    def estimate(self, asked: str, answered: str) -> None:
        """For a reply that came without its token counts."""
        self.add(tokens_of(asked), tokens_of(answered))
        self.is_estimated = True

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def is_much(self) -> bool:
        return self.tokens >= self.endpoint.most_question_tokens

    @property
    def cost(self) -> float:
        priced_input = self.input_tokens * self.endpoint.price_per_million_input
        return (priced_input + self.output_tokens * self.endpoint.price_per_million_output) / MILLION

    def __str__(self) -> str:
        mark = ", estimated from the length: the endpoint reports none" if self.is_estimated else ""
        return f"{self.input_tokens} tokens in, {self.output_tokens} out{mark}"


def tokens_of(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)


MAX_REPLY_BYTES = 8_000_000
_STARTED = "asap_started"


def bounded_client(clock: Callable[[], float] = time.monotonic) -> Any:  # noqa: ANN401 - of httpx or httpx2
    """For `ChatOpenAI(http_client=...)`; whoever makes it closes it."""
    import openai

    def start(request: Any) -> None:  # noqa: ANN401
        request.extensions = {**request.extensions, _STARTED: clock()}

    def bound(response: Any) -> None:  # noqa: ANN401
        response.stream = _bounded(response, clock)

    return openai.DefaultHttpxClient(event_hooks={"request": [start], "response": [bound]})


def _bounded(response: Any, clock: Callable[[], float]) -> Any:  # noqa: ANN401
    import httpx2

    inner, limits = response.stream, response.request.extensions
    give_up_at = limits[_STARTED] + limits["timeout"]["read"]

    class BoundedStream(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            received = 0
            for chunk in inner:
                received += len(chunk)
                if clock() > give_up_at:
                    raise httpx2.ReadTimeout("the reply takes too long", request=response.request)
                if received > MAX_REPLY_BYTES:
                    raise httpx2.ReadError("the reply is too long", request=response.request)
                yield chunk

        def close(self) -> None:
            inner.close()

    return BoundedStream()


Message = dict[str, Any]
FIRST_WAIT_S = 0.5
MAX_BACKOFF_S = 8.0
MIN_TIME_S = 0.05
LIMIT, OLD_LIMIT = "max_completion_tokens", "max_tokens"
_UNREADABLE = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)
"""What ChatOpenAI raises for a reply that is not a chat completion."""


@dataclass(frozen=True)
class Call:
    """A tool call; `arguments` is None where they are not a JSON object."""

    id: str
    name: str
    arguments: Mapping[str, Any] | None


@dataclass(frozen=True)
class Completion:
    text: str
    calls: tuple[Call, ...]
    finish: str
    refusal: str
    tokens: tuple[int, int] | None
    """In and out, where the endpoint counts them."""


class Client:
    """Safe to share between threads: what is learnt about the endpoint only grows."""

    def __init__(
        self, endpoint: Endpoint, sleep: Callable[[float], None], clock: Callable[[], float]
    ) -> None:
        self.endpoint, self.clock, self._sleep = endpoint, clock, sleep
        self._unsupported: set[str] = set()
        self._made = threading.Lock()

    def complete(
        self, messages: Sequence[Message], options: Mapping[str, Any], deadline: float
    ) -> Completion:
        """Raises Fault once repeating is of no use or the deadline would pass."""
        failures = 0
        while True:
            try:
                return self._request(messages, options, deadline)
            except Fault as fault:
                if fault.kind == BAD_REQUEST and self._drop_unsupported(fault.said):
                    continue
                wait_s = backoff_s(failures) if fault.wait_s is None else fault.wait_s
                failures += 1
                if not fault.repeat or failures > self.endpoint.retries or self.clock() + wait_s >= deadline:
                    raise
                self._sleep(wait_s)

    def close(self) -> None:
        if "_http" in self.__dict__:
            self._http.close()

    def _request(
        self, messages: Sequence[Message], options: Mapping[str, Any], deadline: float
    ) -> Completion:
        import openai

        left_s = min(self.endpoint.timeout_s, deadline - self.clock())
        if left_s < MIN_TIME_S:
            raise Fault(TIMEOUT, f"the {self.endpoint.deadline_s:g} s for one question are over")
        try:
            reply = self._chat.invoke(list(messages), timeout=left_s, **self._parameters(options))
        except (openai.OpenAIError, *_UNREADABLE) as error:
            raise from_exception(error, self.endpoint.key) from error
        return completion_of(reply)

    def _parameters(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """`response_format` goes around ChatOpenAI, which would parse the reply and lose what it cost."""
        body = {name: value for name, value in options.items() if name == "response_format"}
        given = {name: value for name, value in options.items() if name not in body}
        if self.endpoint.temperature is not None and "temperature" not in self._unsupported:
            given["temperature"] = self.endpoint.temperature
        if LIMIT in self._unsupported:
            body[OLD_LIMIT] = self.endpoint.max_tokens
        else:
            given[LIMIT] = self.endpoint.max_tokens
        return {**given, "extra_body": body} if body else given

    def _drop_unsupported(self, said: str) -> bool:
        """Whether the refusal names a parameter that can be done without."""
        named = {name for name in ("temperature", LIMIT) if name in said} - self._unsupported
        self._unsupported |= named
        return bool(named)

    @cached_property
    def _http(self) -> Any:  # noqa: ANN401 - of the library that the OpenAI client uses
        return bounded_client()

    @property
    def _chat(self) -> "ChatOpenAI":
        with self._made:
            return self._made_chat

    @cached_property
    def _made_chat(self) -> "ChatOpenAI":
        """Made when first needed: the import takes two seconds. Nothing is left to the environment."""
        from langchain_openai import ChatOpenAI
        from pydantic import SecretStr

        return ChatOpenAI(
            model=self.endpoint.model,
            base_url=self.endpoint.base_url,
            api_key=SecretStr(self.endpoint.key),
            openai_proxy="",
            http_client=self._http,
            max_retries=0,
            use_responses_api=False,
            disable_streaming=True,
            cache=False,
        )


def backoff_s(failures: int) -> float:
    """Doubling, with a random share, so that many sessions do not come back at once."""
    return min(MAX_BACKOFF_S, FIRST_WAIT_S * 2.0**failures) * random.uniform(0.5, 1.0)


def completion_of(message: "AIMessage") -> Completion:
    """What ASAP needs of LangChain's message."""
    usage = message.usage_metadata
    counted = (usage["input_tokens"], usage["output_tokens"]) if usage and usage["total_tokens"] else None
    good = [(one.get("id"), one["name"], one["args"]) for one in message.tool_calls]
    broken = [(one.get("id"), one.get("name") or "", None) for one in message.invalid_tool_calls]
    calls = tuple(
        Call(id or f"call_{place}", name, arguments if isinstance(arguments, dict) else None)
        for place, (id, name, arguments) in enumerate([*good, *broken])
    )
    return Completion(
        text=str(message.text),
        calls=calls,
        finish=str(message.response_metadata.get("finish_reason") or ""),
        refusal=str(message.additional_kwargs.get("refusal") or ""),
        tokens=counted,
    )


def spoken(completion: Completion, most_characters: int) -> Message:
    """The reply as a message of the conversation that goes on."""
    message: Message = {"role": "assistant", "content": completion.text[:most_characters]}
    if completion.calls:
        message["tool_calls"] = [
            {
                "id": one.id,
                "type": "function",
                "function": {"name": one.name, "arguments": json.dumps(one.arguments or {})},
            }
            for one in completion.calls
        ]
    return message
