"""What a scripted endpoint can say. Each function makes a reply: from a request to what is sent."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
WHOLE_BODY = 1 << 30
CLAIMS: Mapping[str, Any] = {
    "verdict": [{"subject": "p1", "relation": "faster_than", "object": "today"}],
    "would_change": [],
    "rationales": [[{"subject": f"p{rank}", "relation": "fits"}] for rank in (1, 2, 3)],
}
"""A good answer to `explain`: claims that hold."""


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        return list(self.body["messages"])

    @property
    def prompt(self) -> str:
        """The user's first message: the task with its data."""
        return next(str(message["content"]) for message in self.messages if message["role"] == "user")

    @property
    def data(self) -> Any:  # noqa: ANN401 - JSON
        """What stands between the markers of the prompt."""
        return json.loads(self.prompt.partition("<data ")[2].partition(">\n")[2].rpartition("\n</data")[0])

    @property
    def question(self) -> str:
        """The name of the task that is asked."""
        found = re.match(r"Task: (\w+)", self.prompt)
        return found.group(1) if found else ""

    @property
    def wants(self) -> list[str]:
        """Which abilities of an endpoint the request uses: tools, json_schema, json_object, a parameter."""
        kind = self.body.get("response_format", {}).get("type")
        used = [name for name, value in self.body.items() if value is not False]
        return [*used, *([kind] if kind else [])]

    @property
    def tools(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.body.get("tools", [])]


@dataclass(frozen=True)
class Played:
    """What goes over the wire, and how."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    hang_s: float = 0.0
    drops: bool = False
    """Closes the connection without a word."""
    chunk_bytes: int = WHOLE_BODY
    chunk_pause_s: float = 0.0


Reply = Callable[[Seen], Played]


def answer(data: Mapping[str, Any]) -> Reply:
    """A good answer: by handing in where the request offers that (the last tool), else as JSON."""

    def reply(seen: Seen) -> Played:
        return (calls((seen.tools[-1], data)) if seen.tools else text(json.dumps(data)))(seen)

    return reply


def text(content: str | None, finish: str = "stop", usage: Mapping[str, int] | None = USAGE) -> Reply:
    return message({"role": "assistant", "content": content}, finish, usage)


def calls(*wanted: tuple[str, Mapping[str, Any] | str], usage: Mapping[str, int] = USAGE) -> Reply:
    """Tool calls; arguments given as text are sent as they are, broken ones too."""
    called = [
        {
            "id": f"call_{place}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
            },
        }
        for place, (name, arguments) in enumerate(wanted)
    ]
    return message({"role": "assistant", "content": None, "tool_calls": called}, "tool_calls", usage)


def refusal(words: str = "I cannot help with that.") -> Reply:
    return message({"role": "assistant", "content": None, "refusal": words}, "stop")


def filtered() -> Reply:
    return text("", "content_filter")


def truncated(content: str) -> Reply:
    return text(content, "length")


def message(content: Mapping[str, Any], finish: str, usage: Mapping[str, int] | None = USAGE) -> Reply:
    whole = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "message": content, "finish_reason": finish}],
        **({"usage": usage} if usage else {}),
    }
    return raw(json.dumps(whole).encode())


def streamed(played: Played) -> Played:
    """The same completion as server-sent events, a few characters at a time; a failure as it is."""
    if played.status != 200 or played.drops or b'"chat.completion"' not in played.body:
        return played
    whole = json.loads(played.body)
    (choice,) = whole["choices"]
    message, pieces = choice["message"], []
    for name in ("refusal", "content"):
        words = message.get(name) or ""
        pieces += [{name: words[at : at + 30]} for at in range(0, len(words), 30)]
    for place, call in enumerate(message.get("tool_calls") or []):
        words = call["function"]["arguments"]
        named = {**call, "function": {**call["function"], "arguments": ""}}
        pieces.append({"tool_calls": [{"index": place, **named}]})
        parts = [words[at : at + 30] for at in range(0, len(words), 30)]
        pieces += [{"tool_calls": [{"index": place, "function": {"arguments": part}}]} for part in parts]
    head = {**whole, "object": "chat.completion.chunk", "usage": None}
    # Some gateways begin with a chunk that holds nothing but the verdict of their filter.
    empty = {**head, "choices": [{"index": 0, "delta": None, "finish_reason": None}]}
    chunks: list[Mapping[str, Any]] = [
        empty,
        *(
            {
                **head,
                "choices": [{"index": 0, "delta": {"role": "assistant", **piece}, "finish_reason": None}],
            }
            for piece in pieces
        ),
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    if "usage" in whole:
        chunks.append({**head, "choices": [], "usage": whole["usage"]})
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return replace(
        played, body="".join([*lines, "data: [DONE]\n\n"]).encode(), content_type="text/event-stream"
    )


def raw(body: bytes, content_type: str = "application/json") -> Reply:
    return lambda seen: Played(body, content_type=content_type)


def failure(
    status: int, says: str = "", code: str | None = None, headers: Mapping[str, str] | None = None
) -> Reply:
    error = {"error": {"message": says, "type": "error", "param": None, "code": code}}
    return lambda seen: Played(json.dumps(error).encode(), status, headers or {})


def server_error(status: int = 500) -> Reply:
    return failure(status, "internal error")


def rate_limited(retry_after: str | None = None) -> Reply:
    return failure(
        429, "slow down", "rate_limit_exceeded", {"Retry-After": retry_after} if retry_after else {}
    )


def context_overflow() -> Reply:
    says = (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9031 tokens."
    )
    return failure(400, says, "context_length_exceeded")


def hang(seconds: float = 60.0) -> Reply:
    return lambda seen: Played(b"{}", hang_s=seconds)


def trickle(pause_s: float = 0.05, length: int = 4000, at_a_time: int = 1) -> Reply:
    """A byte at a time: never silent for long, never done."""
    return lambda seen: Played(b" " * length, chunk_bytes=at_a_time, chunk_pause_s=pause_s)


def dropped() -> Reply:
    return lambda seen: Played(b"", drops=True)


def endless_calls(
    name: str, arguments: Sequence[Mapping[str, Any]], usage: Mapping[str, int] = USAGE
) -> Reply:
    """For `then=`: always one more lookup."""
    turn = iter(range(10**9))
    return lambda seen: calls((name, arguments[next(turn) % len(arguments)]), usage=usage)(seen)
