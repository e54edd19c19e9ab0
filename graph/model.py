"""The language model: any OpenAI-compatible endpoint, what it costs and offers, what it can do wrong.

The errors are those of the `openai` client; a `Fault` says which of them a retry may help with.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

from graph.answers import KeptCall
from tools.errors import InputError
from tools.names import parse_address

if TYPE_CHECKING:
    import httpx2
    from langchain_core.messages import AIMessage
    from langchain_openai import ChatOpenAI

LOCAL_KEY = "none"
"""Sent if no key is configured: the protocol wants one, and a key meant for another host must not leak."""
MILLION = 1_000_000
CHARACTERS_PER_TOKEN = 4
"""OpenAI's rule of thumb for English text; used only if the endpoint reports nothing."""
MAX_CHARACTERS_PER_TOKEN = 24
"""No tokenizer packs text denser than this: an endpoint that counts fewer tokens is not believed."""
MAX_COUNT = 10**9
REOPEN_S = 3600.0
"""An endpoint gets better software, and a model that answered in words may have had a bad moment."""
LIMIT, OLD_LIMIT = "max_completion_tokens", "max_tokens"
STREAM = "stream"
OPTIONAL = ("temperature", LIMIT, "tool_choice", STREAM)
"""Parameters that a request can do without."""
PARSE_ERRORS = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError,
)  # fmt: skip
"""What the OpenAI client and LangChain raise for a reply that is not a chat completion."""

TIMEOUT = "timeout"
UNREACHABLE = "unreachable"
RATE_LIMIT = "rate limit"
QUOTA = "quota"
SERVER = "server error"
DENIED = "not allowed"
NOT_FOUND = "not found"
REFUSAL = "refusal"
TOOL_LOOP = "tool loop"
OVERFLOW = "context overflow"
TRUNCATED = "truncated"
MALFORMED = "malformed"
BAD_REQUEST = "bad request"

OF_THE_ENDPOINT = frozenset({TIMEOUT, UNREACHABLE, SERVER, RATE_LIMIT, QUOTA, DENIED})
"""The next question will meet the same; other faults depend on what was asked."""
OF_THE_ANSWER = frozenset({MALFORMED, TRUNCATED, REFUSAL, TOOL_LOOP})
"""The endpoint accepted the request, so the strategy works."""
MAX_WAIT_S = 60.0
MAX_QUOTED = 200
ERROR_FIELDS = ("message", "type", "code", "detail")
_TRANSIENT = (408, 409, 425, 500, 502, 503, 504, 529)
_OVERFLOW = re.compile(
    r"context_length_exceeded|context[ _-]?(length|size|window)|prompt is too long|input is too long"
    r"|too many (input )?tokens|input tokens exceed",
    re.I,
)
_SHAPE = re.compile(r"\btools?\b|tool_choice|response_format|json_schema|json_object|grammar|--jinja", re.I)


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible chat endpoint; prices are per million tokens, in the currency of the budget."""

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0
    """For one request, from the first byte sent to the last received."""
    deadline_s: float = 180.0
    """For one question with all its requests, repetitions and pauses."""
    max_tokens: int = 4096
    """Limit for one reply; the thoughts of a reasoning model count."""
    max_question_tokens: int = 60_000
    """Limit for one question; beyond it the model may only submit its answer."""
    retries: int = 2
    temperature: float | None = 0.0
    price_per_million_input: float = 0.0
    price_per_million_output: float = 0.0

    def __post_init__(self) -> None:
        parse_address("base_url", self.base_url)
        if not self.model:
            raise InputError("model", self.model, "must name the model")
        for name in ("timeout_s", "deadline_s", "max_tokens", "max_question_tokens"):
            if not getattr(self, name) > 0:
                raise InputError(name, getattr(self, name), "must be above 0")
        for name in ("retries", "price_per_million_input", "price_per_million_output"):
            if not getattr(self, name) >= 0:
                raise InputError(name, getattr(self, name), "must be 0 or more")

    @property
    def key(self) -> str:
        return self.api_key or LOCAL_KEY


@dataclass
class Spend:
    """Grows with every reply to one question, the unusable ones too."""

    endpoint: Endpoint
    input_tokens: int = 0
    output_tokens: int = 0
    is_estimated: bool = False

    def add(self, asked: str, answered: str, counted: tuple[int, int] | None = None) -> None:
        """By what the endpoint counted if that is plausible, else by the length of the texts.

        An endpoint must not understate what the budget pays for.
        """
        least = (len(asked) + len(answered)) // MAX_CHARACTERS_PER_TOKEN
        believed: list[object] = [*(counted or ())]  # whatever an endpoint has sent
        counts = [count for count in believed if isinstance(count, int) and 0 <= count <= MAX_COUNT]
        if counted is None or len(counts) < len(counted) or sum(counts) <= least:
            counted = -(-len(asked) // CHARACTERS_PER_TOKEN), -(-len(answered) // CHARACTERS_PER_TOKEN)
            self.is_estimated = True
        self.input_tokens += counted[0]
        self.output_tokens += counted[1]

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def cost(self) -> float:
        priced_input = self.input_tokens * self.endpoint.price_per_million_input
        return (priced_input + self.output_tokens * self.endpoint.price_per_million_output) / MILLION

    def __str__(self) -> str:
        mark = ", estimated from the length: the endpoint reports none" if self.is_estimated else ""
        return f"{self.input_tokens} tokens in, {self.output_tokens} out{mark}"


class Fault(Exception):
    """There is no usable reply. The message holds no key, and of a server's own words the beginning."""

    def __init__(
        self, kind: str, message: str, *, repeat: bool = False, wait_s: float | None = None, said: str = ""
    ) -> None:
        self.kind, self.repeat, self.wait_s = kind, repeat, wait_s
        self.said = said
        """The server's own words, to look parameters up in; they are never shown whole."""
        super().__init__(message)


def fault_of(error: Exception, key: str) -> Fault:
    """What an exception of the OpenAI client means."""
    import httpx2
    import openai

    # the client reads the body of an error outside of its own handling
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        return Fault(TIMEOUT, "the endpoint did not answer in time", repeat=True)
    too_long = error if isinstance(error, TooLongError) else error.__cause__
    if isinstance(too_long, TooLongError):
        return Fault(TRUNCATED, str(too_long))
    if isinstance(error, openai.APIStatusError):
        return fault_of_status(error.status_code, error.body, error.response.headers, key)
    if isinstance(error, openai.APIConnectionError):
        cause = type(error.__cause__).__name__ if error.__cause__ else "no connection"
        return Fault(UNREACHABLE, f"the endpoint cannot be reached ({cause})", repeat=True)
    if isinstance(error, httpx2.HTTPError):
        return Fault(UNREACHABLE, f"the endpoint cannot be reached ({type(error).__name__})", repeat=True)
    return Fault(MALFORMED, f"the endpoint's reply is not a chat completion ({error})")


def fault_of_status(status: int, body: object, headers: Mapping[str, str], key: str) -> Fault:
    """What a status means. Of the server's own words the beginning is shown, without the key it may quote."""
    parts = {name: str(body.get(name) or "") for name in ERROR_FIELDS} if isinstance(body, Mapping) else {}
    code = parts.get("code", "")
    said = " ".join(filter(None, parts.values())) if parts else str(body or "")
    quoted = " ".join(said.replace(key, "[key]").split())[:MAX_QUOTED]
    quoted = f": {quoted}" if quoted else ""
    wait_s = requested_wait_s(headers, time.time())
    # Asking earlier than the server allows is no use, and neither is waiting for minutes.
    is_short = wait_s is None or wait_s <= MAX_WAIT_S
    if status in (401, 403):
        return Fault(DENIED, f"the endpoint refuses the key ({status})")
    if "content_filter" in (code, said):
        return Fault(REFUSAL, "the endpoint's content filter refused the question")
    if status == 413 or (status < 500 and (code == "context_length_exceeded" or _OVERFLOW.search(said))):
        return Fault(OVERFLOW, "the question is longer than the model's context", said=said)
    if status == 429 and code == "insufficient_quota":
        return Fault(QUOTA, "the account's quota at the endpoint is spent (429)")
    if status == 429:
        asked = f", for {wait_s:.3g} s" if wait_s is not None else ""
        message = f"the endpoint takes no more requests for now (429){asked}"
        return Fault(RATE_LIMIT, message, repeat=is_short, wait_s=wait_s)
    if status == 404 and "model_not_found" in (code, said):
        return Fault(NOT_FOUND, f"the endpoint has no such model (404){quoted}")
    if status in _TRANSIENT and not (status == 500 and _SHAPE.search(said)):
        return Fault(SERVER, f"the endpoint failed ({status})", repeat=is_short, wait_s=wait_s)
    return Fault(BAD_REQUEST, f"the endpoint refuses the request ({status}){quoted}", said=said)


def requested_wait_s(headers: Mapping[str, str], now: float) -> float | None:
    """How long the server asks to wait: milliseconds, seconds or a date (RFC 9110, 10.2.3)."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        stated = headers.get("retry-after", "")
        if re.fullmatch(r"\d+(\.\d+)?", stated.strip()):
            return float(stated)
        return max(0.0, parsedate_to_datetime(stated).timestamp() - now) if stated else None
    except ValueError:
        return None


class Breaker:
    """A circuit breaker: an endpoint that failed several questions in a row is left alone for a while."""

    def __init__(self, clock: Callable[[], float], max_failures: int = 2, rest_s: float = 60.0) -> None:
        self._clock, self._max_failures, self._rest_s = clock, max_failures, rest_s
        self._failures = 0
        self._until = 0.0
        self._last: Fault | None = None

    def check(self) -> None:
        """Raises the fault that the endpoint last had, while it rests."""
        left_s = self._until - self._clock()
        if self._last is not None and self._failures >= self._max_failures and left_s > 0:
            row = f"{self._failures} questions in a row: not asked again for {left_s:.0f} s"
            raise Fault(self._last.kind, f"{self._last}, {row}")

    def note(self, fault: Fault | None) -> None:
        """How the last question ended."""
        if fault is None or fault.kind not in OF_THE_ENDPOINT:
            self._failures, self._last = 0, None
            return
        self._failures, self._last = self._failures + 1, fault
        self._until = self._clock() + self._rest_s


class OutputStrategy(StrEnum):
    """How an answer is obtained, the best first."""

    TOOLS = "tools"
    """The model calls tools while it thinks, and one more to hand in its answer."""
    SCHEMA = "json_schema"
    """The endpoint holds the reply to a JSON schema."""
    OBJECT = "json_object"
    """The endpoint holds the reply to JSON; the schema stands in the prompt."""
    TEXT = "text"
    """Every endpoint can do this one; the schema stands in the prompt."""


class Abilities:
    """What one endpoint offers, learnt from what it refused or ignored and what worked instead.

    Safe to share between threads: what is learnt only grows.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._closed_until: dict[OutputStrategy, float] = {}
        self._proven: frozenset[OutputStrategy] = frozenset()
        self.unsupported: set[str] = set()

    def strategies(self, with_tools: bool) -> list[OutputStrategy]:
        now = self._clock()
        return [
            strategy
            for strategy in OutputStrategy
            if self._closed_until.get(strategy, now) <= now
            and (with_tools or strategy is not OutputStrategy.TOOLS)
        ]

    def learn(self, works: OutputStrategy, refused: Collection[OutputStrategy]) -> None:
        """A strategy that has worked before stays open: its failure was a slip of the model."""
        self._proven |= {works}
        until = self._clock() + REOPEN_S
        self._closed_until.update(dict.fromkeys(set(refused) - self._proven, until))

    def drop_named(self, said: str) -> bool:
        """Whether a refusal names a parameter that can be done without; from now on it is."""
        named = {name for name in OPTIONAL if name in said} - self.unsupported
        self.unsupported |= named
        return bool(named)


class TooLongError(Exception):
    """The endpoint ignores the limit of a reply's length: what it sends on is neither read nor paid for."""


class UnreadableReplyError(Exception):
    """The endpoint sent something that is not a chat completion; the cause is what its parser raised."""


@dataclass
class ReplyWatch:
    """Whether the endpoint has begun to answer the request that is being made."""

    has_begun: bool = False


reply_watch: ContextVar[ReplyWatch] = ContextVar("reply_watch")


keep_call: ContextVar[Callable[[Callable[[], KeptCall]], KeptCall]] = ContextVar("keep_call")
"""As `Question.keep`, for the conversation that goes on."""


def _taken_over(kept: KeptCall) -> "AIMessage":
    """The reply to a request that another process has sent."""
    import httpx2
    from langchain_core.messages import AIMessage

    if kept.reply is None:
        raise httpx2.ConnectError("it failed before this process took over")
    try:
        return AIMessage.model_validate(json.loads(kept.reply))
    except ValueError as error:
        raise UnreadableReplyError(type(error).__name__) from error


def make_chat(endpoint: Endpoint, abilities: Abilities, http: "httpx2.Client") -> "ChatOpenAI":
    """Nothing is left to the environment; the import takes two seconds."""
    from langchain_core.language_models import LanguageModelInput
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.outputs import ChatGenerationChunk
    from langchain_core.runnables import RunnableConfig
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    class Chat(ChatOpenAI):
        def invoke(
            self,
            input: LanguageModelInput,
            config: RunnableConfig | None = None,
            **settings: Any,  # noqa: ANN401 - LangChain's
        ) -> AIMessage:
            """LangChain's, asked once for each reply: one that was kept is not paid for again.

            A request that failed is kept as one without a reply, and fails again; the next one is its retry.
            """
            texts = [(m.type, m.text) for m in cast("list[BaseMessage]", input) if m.type != "tool"]
            asked = hashlib.sha256(repr(texts).encode("utf-8", "replace")).hexdigest()
            failed: list[Exception] = []
            made: list[AIMessage] = []

            def ask() -> AIMessage:
                """An error before the endpoint has answered is ours, one after it is the reply's."""
                watch = ReplyWatch()
                before = reply_watch.set(watch)
                try:
                    return super(Chat, self).invoke(input, config, **settings)
                except PARSE_ERRORS as error:
                    if not watch.has_begun:
                        raise
                    raise UnreadableReplyError(type(error).__name__) from error
                finally:
                    reply_watch.reset(before)

            def ask_now() -> KeptCall:
                try:
                    made.append(ask())
                    # An endpoint's usage may be no number: that is judged where it is counted.
                    reply = json.dumps(made[0].model_dump(mode="json", warnings=False))
                    return KeptCall(asked=asked, reply=reply)
                except Exception as error:  # noqa: BLE001 - raised below
                    failed.append(error)
                    return KeptCall(asked=asked, reply=None)

            keep = keep_call.get(None)
            kept = keep(ask_now) if keep else ask_now()
            if failed:
                raise failed[0]
            if made:
                return made[0]
            if kept.asked != asked:  # the conversation took another turn than before the crash
                return ask()
            return _taken_over(kept)

        def _convert_chunk_to_generation_chunk(
            self,
            chunk: dict[str, Any],
            default_chunk_class: type,
            base_generation_info: dict[str, Any] | None,
        ) -> ChatGenerationChunk | None:
            """LangChain's, which loses a refusal that is streamed."""
            made = super()._convert_chunk_to_generation_chunk(
                chunk, default_chunk_class, base_generation_info
            )
            if made is None:  # a chunk without a delta, which has no refusal either
                return None
            refusal = "".join(choice["delta"].get("refusal") or "" for choice in chunk.get("choices") or [])
            if refusal:
                made.message.additional_kwargs["refusal"] = refusal
            return made

        def bind_tools(self, tools: Any, *, tool_choice: Any = None, **settings: Any) -> Any:  # noqa: ANN401
            """LangChain's, for endpoints too that do not know `tool_choice`."""
            wanted = None if "tool_choice" in abilities.unsupported else tool_choice
            return super().bind_tools(tools, tool_choice=wanted, **settings)

    return Chat(
        model=endpoint.model,
        base_url=endpoint.base_url,
        api_key=SecretStr(endpoint.key),
        openai_proxy="",
        http_client=http,
        max_retries=0,
        use_responses_api=False,
        cache=False,
    )
