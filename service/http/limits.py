"""Limits: requests per minute, bytes and patience of a body, how many searches run at a time and how long,
how many people wait for a model."""

import asyncio
import math
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from threading import BoundedSemaphore, Lock, Thread
from typing import TypeVar

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.problems import ApiError

T = TypeVar("T")
Progress = Callable[[float], None]

MAX_CALLERS = 10_000
BURST_S = 4.0
"""A burst: the requests that may arrive at once, in seconds of the allowed rate."""
CLOSE = {"Connection": "close"}
UPLOAD = re.compile(r"/v1/traces/[^/]+/files/[^/]+")
"""Streamed to disk, so it may be as long as a folder of traces."""
MIN_BYTES_PER_S = 10_000
"""The slowest rate allowed for a whole body, after the time for its first piece."""
SEARCHES_AT_A_TIME = 2
"""Plan searches outside sessions that one process runs; others get 503 with Retry-After."""
QUESTIONS_AT_A_TIME = 16
"""People who wait for a language model, which computes elsewhere; a thread of its own waits for each."""
TENANT_QUESTIONS = 4
"""Those of one tenant: others find a place."""
RETRY_AFTER_S = 5
INSTEAD = "submit a session, which takes its time"


class RateLimit:
    """A token bucket for each caller."""

    def __init__(
        self, per_minute: float, burst_s: float = BURST_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.per_minute = per_minute
        self._per_s = per_minute / 60
        self._burst = max(1.0, self._per_s * burst_s)
        self._clock, self._lock = clock, Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str, cost: float = 1.0, owes: bool = False) -> int:
        """Counts a request: 0 if it is allowed, else the seconds until it will be, rounded up. Whoever owes
        the cost pays it in any case."""
        now = self._clock()
        with self._lock:
            left, before = self._buckets.pop(caller, (self._burst, now))
            left = min(self._burst, left + (now - before) * self._per_s)
            allowed = owes or left >= cost
            self._buckets[caller] = (left - cost * allowed, now)
            if len(self._buckets) > MAX_CALLERS:
                self._buckets.popitem(last=False)
        return 0 if allowed else math.ceil((cost - left) / self._per_s)


def check_rate_limit(rates: RateLimit, caller: str) -> None:
    """Counts a request of this caller; raises if it is one too many."""
    wait_s = rates.wait_s(caller)
    if wait_s:
        detail = f"more than {rates.per_minute} requests per minute; retry in {wait_s} s"
        raise ApiError("too-many-requests", detail, headers={"Retry-After": str(wait_s)})


class BodyLimits:
    """Counts what comes, since Content-Length may be absent; what comes slowly ends with a refusal."""

    def __init__(self, app: ASGIApp, max_bytes: int, max_upload_bytes: int, patience_s: float) -> None:
        self._app, self._max_bytes, self._max_upload_bytes = app, max_bytes, max_upload_bytes
        self._patience_s = patience_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_upload = scope["method"] == "PUT" and UPLOAD.fullmatch(scope["path"])
        limit = self._max_upload_bytes if is_upload else self._max_bytes
        # 0 if it is absent; the server itself refuses what is not a number.
        length = Headers(scope=scope).get("content-length", "0")
        declared = int(length) if length.isdecimal() else 0
        await self._app(scope, _CountedBody(receive, limit, declared, self._patience_s), send)


class _CountedBody:
    """A `receive` that gives up when the body does not keep to the limits."""

    def __init__(self, receive: Receive, max_bytes: int, declared: int, patience_s: float) -> None:
        self._receive, self._max_bytes, self._patience_s = receive, max_bytes, patience_s
        self._declared, self._count, self._done = declared, 0, False
        self._began_at = anyio.current_time()

    async def __call__(self) -> Message:
        if self._done:  # what follows is the wait for the caller to hang up
            return await self._receive()
        self._check(self._declared)
        now = anyio.current_time()
        whole_s = self._patience_s + self._count / MIN_BYTES_PER_S
        left_s = self._began_at + whole_s - now
        try:
            with anyio.fail_after(min(self._patience_s, left_s)):
                message = await self._receive()
        except TimeoutError:
            rule = f"at least {MIN_BYTES_PER_S:,} bytes/s after the first {self._patience_s:g} s"
            took_s = anyio.current_time() - self._began_at
            slow = (
                f"{self._count:,} bytes of the body arrived in {took_s:.0f} s; {rule}, without a longer pause"
            )
            raise ApiError("timeout", slow, field="body", allowed=rule, headers=CLOSE) from None
        if message["type"] == "http.request":
            self._count += len(message.get("body", b""))
            self._done = not message.get("more_body", False)
        self._check(self._count)
        return message

    def _check(self, length: int) -> None:
        if length > self._max_bytes:
            allowed = f"at most {self._max_bytes:,} bytes"
            detail = f"the body has more than {self._max_bytes:,} bytes"
            raise ApiError("too-large", detail, field="body", allowed=allowed, headers=CLOSE)


def run_in_turn(turns: BoundedSemaphore, max_s: float, work: Callable[[Progress], T]) -> T:
    """The result of `work`, which is handed a progress function that stops it when its time is over.

    What does not report progress cannot be stopped: then the answer goes out in time all the same, and the
    work keeps its turn until it ends, so that no more than a few ever run.
    """
    if not turns.acquire(timeout=RETRY_AFTER_S):
        raise _busy("unavailable", "as many as may run at a time do")
    try:
        return _begin(max_s, work, turns.release).result(max_s)
    except TimeoutError:
        raise _too_late(max_s) from None


class Questions:
    """Those who wait for a language model. Nobody waits for a place, nor in a thread that others need."""

    def __init__(self, most: int = QUESTIONS_AT_A_TIME, most_of_one: int = TENANT_QUESTIONS) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._waiting: Counter[str] = Counter()
        self._lock = Lock()

    async def answer(self, tenant: str, max_s: float, work: Callable[[Progress], T]) -> T:
        """As `run_in_turn`. Raises ApiError: 429 if the tenant asks enough already, 503 if all do."""
        with self._lock:
            if self._waiting[tenant] >= self._most_of_one:
                raise _busy("quota", f"{self._most_of_one} questions of this tenant wait for the model")
            if self._waiting.total() >= self._most:
                raise _busy("unavailable", "as many questions as may wait for the model do")
            self._waiting[tenant] += 1

        def leave() -> None:
            with self._lock:
                self._waiting[tenant] -= 1

        try:
            return await asyncio.wait_for(asyncio.wrap_future(_begin(max_s, work, leave)), max_s)
        except TimeoutError:
            raise _too_late(max_s) from None


def _begin(max_s: float, work: Callable[[Progress], T], leave: Callable[[], object]) -> Future[T]:
    """In a thread of its own, at whose end `leave` is called, whoever still waits for it."""
    ends_at = time.monotonic() + max_s
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # who stops waiting does not cancel it

    def stop_in_time(_done: float) -> None:
        if time.monotonic() > ends_at:
            raise TimeoutError

    def run() -> None:
        try:
            future.set_result(work(stop_in_time))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            future.set_exception(error)
        finally:
            leave()

    Thread(target=run, name="search", daemon=True).start()
    return future


def _busy(kind: str, why: str) -> ApiError:
    retry = {"Retry-After": str(RETRY_AFTER_S)}
    return ApiError(kind, f"{why}; ask again in {RETRY_AFTER_S} s, or {INSTEAD}", headers=retry)


def _too_late(max_s: float) -> ApiError:
    return ApiError("out-of-time", f"not done after {max_s:g} s; {INSTEAD}")
