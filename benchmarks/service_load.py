"""Requests at a fixed rate from many connections, and how long their answers took.

A request that could not be sent at its time counts from then on: a server that stalls is not spared that.
"""

import http.client
import itertools
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

CONNECTIONS = 24


@dataclass(frozen=True)
class Latencies:
    seconds: list[float]
    failures: int
    took_s: float

    @property
    def per_s(self) -> float:
        return len(self.seconds) / self.took_s

    def percentile_ms(self, percent: float) -> float:
        ordered = sorted(self.seconds)
        return 1e3 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class Caller:
    """One connection that stays open."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)

    def get(self, path: str) -> tuple[int, bytes]:
        """Once more where the server had closed the connection, which was idle for long."""
        try:
            return self._get(path)
        except http.client.RemoteDisconnected:
            self._connection.close()
            return self._get(path)

    def _get(self, path: str) -> tuple[int, bytes]:
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def post(self, path: str, body: object) -> dict[str, Any]:
        self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content: dict[str, Any] = json.loads(answer.read())
        if answer.status >= 300:
            raise RuntimeError(f"{answer.status}: {content}")
        return content

    def close(self) -> None:
        self._connection.close()


def read_at_rate(address: str, paths: Sequence[str], per_s: float | None, for_s: float) -> Latencies:
    """Without a rate each connection asks again as soon as it is answered."""
    begun = time.perf_counter() + 0.2
    numbers = itertools.count()
    seconds: list[float] = []
    failures = itertools.count()
    lock = threading.Lock()

    def ask() -> None:
        caller = Caller(address)
        while True:
            with lock:
                number = next(numbers)
            due = begun + number / per_s if per_s else max(begun, time.perf_counter())
            if due > begun + for_s:
                break
            time.sleep(max(0.0, due - time.perf_counter()))
            try:
                status, _ = caller.get(paths[number % len(paths)])
            except (OSError, http.client.HTTPException):
                status = 0  # a thread that died of it would leave a good figure of few requests
                caller.close()
            took = time.perf_counter() - due
            with lock:
                seconds.append(took)
                if status != 200:
                    next(failures)
        caller.close()

    threads = [threading.Thread(target=ask) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Latencies(seconds, next(failures), time.perf_counter() - begun)
