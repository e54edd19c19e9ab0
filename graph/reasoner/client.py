"""One request to the endpoint through ChatOpenAI, repeated where that helps, within a deadline.

What the endpoint does not take (a temperature, the newer name of the token limit) is left away and
remembered. Not here: what is asked.
"""

import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from graph.reasoner.endpoint import Endpoint
from graph.reasoner.faults import BAD_REQUEST, TIMEOUT, Fault, from_exception
from graph.reasoner.transport import bounded_client

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage
    from langchain_openai import ChatOpenAI

Message = dict[str, Any]
FIRST_WAIT_S = 0.5
LONGEST_BACKOFF_S = 8.0
LEAST_TIME_S = 0.05
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
        self._untaken: set[str] = set()
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
                if fault.kind == BAD_REQUEST and self._leaves_away(fault.said):
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
        if left_s < LEAST_TIME_S:
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
        if self.endpoint.temperature is not None and "temperature" not in self._untaken:
            given["temperature"] = self.endpoint.temperature
        if LIMIT in self._untaken:
            body[OLD_LIMIT] = self.endpoint.max_tokens
        else:
            given[LIMIT] = self.endpoint.max_tokens
        return {**given, "extra_body": body} if body else given

    def _leaves_away(self, said: str) -> bool:
        """Whether the refusal names a parameter that can be done without."""
        named = {name for name in ("temperature", LIMIT) if name in said} - self._untaken
        self._untaken |= named
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
    return min(LONGEST_BACKOFF_S, FIRST_WAIT_S * 2.0**failures) * random.uniform(0.5, 1.0)


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
