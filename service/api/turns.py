"""Work that is waited for, a few at a time and not for ever: plan searches outside sessions."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

from service.api.parts import Parts
from service.api.problems import ApiError

T = TypeVar("T")
Progress = Callable[[float], None]
ASK_AGAIN_S = 5
INSTEAD = "submit a session, which takes its time"


def in_turn(parts: Parts, work: Callable[[Progress], T]) -> T:
    """The result of `work`, which is handed a progress function that stops it when its time is over.

    What does not report progress cannot be stopped: then the answer goes out in time all the same, and the
    work keeps its turn until it ends, so that no more than a few ever run.
    """
    if not parts.searches.acquire(timeout=ASK_AGAIN_S):
        busy = f"other searches are running; ask again in {ASK_AGAIN_S} s, or {INSTEAD}"
        raise ApiError("unavailable", busy, headers={"Retry-After": str(ASK_AGAIN_S)})
    most_s = parts.settings.request_s
    ends_at = time.monotonic() + most_s

    def stop_in_time(done: float) -> None:
        if time.monotonic() > ends_at:
            raise TimeoutError

    future: Future[T] = Future()
    Thread(target=_run, args=(parts, future, work, stop_in_time), name="search", daemon=True).start()
    try:
        return future.result(most_s)
    except TimeoutError:
        raise ApiError("out-of-time", f"not done after {most_s:g} s; {INSTEAD}") from None


def _run(parts: Parts, future: Future[T], work: Callable[[Progress], T], progress: Progress) -> None:
    try:
        future.set_result(work(progress))
    except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
        future.set_exception(error)
    finally:
        parts.searches.release()
