"""What an endpoint can do wrong, what it cannot do, and when to stop asking it."""

import re
import time
from collections.abc import Callable, Collection, Mapping
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

REOPEN_S = 3600.0
"""An endpoint gets better software, and a model that answered in words may have had a bad moment."""


class OutputStrategy(StrEnum):
    TOOLS = "tools"
    """The model calls tools while it thinks, and one more to hand in its answer."""
    SCHEMA = "json_schema"
    """The endpoint holds the reply to a JSON schema."""
    OBJECT = "json_object"
    """The endpoint holds the reply to JSON; the schema stands in the prompt."""
    TEXT = "text"
    """Every endpoint can do this one; the schema stands in the prompt."""


class StrategyMemory:
    """What one endpoint offers, learnt from what it refused or ignored and what worked instead."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._closed_until: dict[OutputStrategy, float] = {}
        self._proven: frozenset[OutputStrategy] = frozenset()

    def open(self, with_tools: bool) -> list[OutputStrategy]:
        now = self._clock()
        possible = [way for way in OutputStrategy if with_tools or way is not OutputStrategy.TOOLS]
        return [way for way in possible if self._closed_until.get(way, now) <= now]

    def learn(self, works: OutputStrategy, refused: Collection[OutputStrategy]) -> None:
        """A way that has worked before stays open: its failure was a slip of the model."""
        self._proven |= {works}
        until = self._clock() + REOPEN_S
        self._closed_until.update(dict.fromkeys(set(refused) - self._proven, until))


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

MAX_WAIT_S = 60.0
MAX_QUOTED = 200
_TRANSIENT = (408, 409, 425, 500, 502, 503, 504, 529)
_OVERFLOW = re.compile(
    r"context_length_exceeded|context[ _-]?(length|size|window)|prompt is too long|input is too long"
    r"|too many (input )?tokens|input tokens exceed",
    re.I,
)
_SHAPE = re.compile(r"\btools?\b|tool_choice|response_format|json_schema|json_object|grammar|--jinja", re.I)


class Fault(Exception):
    """There is no usable reply. The message holds neither the key nor the prompt."""

    def __init__(
        self, kind: str, says: str, *, repeat: bool = False, wait_s: float | None = None, said: str = ""
    ) -> None:
        self.kind, self.repeat, self.wait_s = kind, repeat, wait_s
        self.said = said
        """The server's own words, to look parameters up in; they are never shown whole."""
        super().__init__(says)


def from_exception(error: Exception, key: str) -> Fault:
    """What an exception of the OpenAI client means."""
    import openai

    if isinstance(error, openai.APITimeoutError):
        return Fault(TIMEOUT, "the endpoint did not answer in time", repeat=True)
    if isinstance(error, openai.APIStatusError):
        return from_status(error.status_code, error.body, error.response.headers, key)
    if isinstance(error, openai.APIResponseValidationError):
        return Fault(MALFORMED, "the endpoint's reply is not a chat completion")
    if isinstance(error, openai.APIConnectionError):
        cause = type(error.__cause__).__name__ if error.__cause__ else "no connection"
        return Fault(UNREACHABLE, f"the endpoint cannot be reached ({cause})", repeat=True)
    return Fault(MALFORMED, f"the endpoint's reply is not a chat completion ({type(error).__name__})")


def from_status(status: int, body: object, headers: Mapping[str, str], key: str) -> Fault:
    said, code = _words(body), _code(body)
    if status in (401, 403):
        return Fault(DENIED, f"the endpoint refuses the key ({status})")
    if "content_filter" in (code, said):
        return Fault(REFUSAL, "the endpoint's content filter refused the question")
    if status == 413 or (status < 500 and (code == "context_length_exceeded" or _OVERFLOW.search(said))):
        return Fault(OVERFLOW, "the question is longer than the model's context", said=said)
    if status == 429:
        return _too_many(code, headers)
    if status == 404 and "model_not_found" in (code, said):
        return Fault(NOT_FOUND, f"the endpoint has no such model (404){_quoted(said, key)}")
    if status in _TRANSIENT and not (status == 500 and _SHAPE.search(said)):
        wait_s = requested_wait_s(headers, time.time())
        return Fault(SERVER, f"the endpoint failed ({status})", repeat=_is_bearable(wait_s), wait_s=wait_s)
    return Fault(BAD_REQUEST, f"the endpoint refuses the request ({status}){_quoted(said, key)}", said=said)


def requested_wait_s(headers: Mapping[str, str], now: float) -> float | None:
    """How long the server asks to wait: milliseconds, seconds or a date (RFC 9110, 10.2.3)."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        given = headers.get("retry-after", "")
        if re.fullmatch(r"\d+(\.\d+)?", given.strip()):
            return float(given)
        return max(0.0, parsedate_to_datetime(given).timestamp() - now) if given else None
    except ValueError:
        return None


def _too_many(code: str, headers: Mapping[str, str]) -> Fault:
    if code == "insufficient_quota":
        return Fault(QUOTA, "the account's quota at the endpoint is spent (429)")
    wait_s = requested_wait_s(headers, time.time())
    asked = f", for {wait_s:.3g} s" if wait_s is not None else ""
    says = f"the endpoint takes no more requests for now (429){asked}"
    return Fault(RATE_LIMIT, says, repeat=_is_bearable(wait_s), wait_s=wait_s)


def _is_bearable(wait_s: float | None) -> bool:
    """Asking earlier than the server allows is no use, and neither is waiting for minutes."""
    return wait_s is None or wait_s <= MAX_WAIT_S


def _words(body: object) -> str:
    if isinstance(body, Mapping):
        fields: Mapping[Any, Any] = body
        return " ".join(
            str(fields[name]) for name in ("message", "type", "code", "detail") if fields.get(name)
        )
    return str(body) if body else ""


def _code(body: object) -> str:
    return str(body.get("code") or "") if isinstance(body, Mapping) else ""


def _quoted(said: str, key: str) -> str:
    """The beginning of what the server says, without the key that some servers quote back."""
    plain = " ".join(said.replace(key, "[key]").split())
    return f": {plain[:MAX_QUOTED]}" if plain else ""


OF_THE_ENDPOINT = frozenset({TIMEOUT, UNREACHABLE, SERVER, RATE_LIMIT, QUOTA, DENIED})
"""The next question will meet the same; other faults depend on what was asked."""


class Breaker:
    def __init__(self, clock: Callable[[], float], most_failures: int = 2, rest_s: float = 60.0) -> None:
        self._clock, self._most, self._rest_s = clock, most_failures, rest_s
        self._failures = 0
        self._until = 0.0
        self._last: Fault | None = None

    def check(self) -> None:
        """Raises the fault that the endpoint last had, while it rests."""
        left_s = self._until - self._clock()
        if self._last is not None and self._failures >= self._most and left_s > 0:
            says = f"{self._last}, {self._failures} questions in a row: not asked again for {left_s:.0f} s"
            raise Fault(self._last.kind, says)

    def note(self, fault: Fault | None) -> None:
        """How the last question ended."""
        if fault is None or fault.kind not in OF_THE_ENDPOINT:
            self._failures, self._last = 0, None
            return
        self._failures, self._last = self._failures + 1, fault
        self._until = self._clock() + self._rest_s
