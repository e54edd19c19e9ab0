"""One tenant at everything its limits allow: how long do another tenant's reads take?

    python -m benchmarks.fairness [--kind KIND] [--seconds 15]

A real `asap serve` with its default limits. Forty-five connections of one tenant ask as fast as they are
answered, one kind of request after the other; another tenant meanwhile reads its sessions, a report and
/healthz. What the first is told (200, 429 with Retry-After, ...) is counted.
"""

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.connections import DEFAULTS, make_key, read, show
from benchmarks.service_load import Latencies
from benchmarks.service_processes import REPO, Site, server

PARALLEL = 45
BAR = 2.0
"""The other tenant's p99 over that of a quiet server."""
FLOOR_MS = 20.0
"""A p99 below this is quiet, whatever multiple of the quiet server's it is."""
SCENARIO: dict[str, Any] = json.loads((REPO / "examples/llama-3.1-70b-64xh100.json").read_text())
CLUSTERS = 80
Ask = tuple[str, str, bytes | None]
"""Method, path and body."""


def run_of(cluster: int, number: int) -> dict[str, Any]:
    scenario = json.loads(json.dumps(SCENARIO))
    scenario["cluster"]["name"] = f"cluster{cluster}"
    return {"scenario": scenario, "measured": {"step_time_s": 9 + 0.01 * number}}


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


KINDS: dict[str, Ask] = {
    "predict a batch of 1,000": ("POST", "/v1/predict/batch", as_json([SCENARIO] * 1000)),
    "search plans": ("POST", "/v1/plans/search", as_json(SCENARIO)),
    "measurements of 80 clusters": ("GET", "/v1/measurements", None),
    "what if": ("GET", "/what-if?tp=4&inter=0.5", None),
    "a body of 2 MB": ("POST", "/v1/sessions", as_json({"model": {"name": "x" * 100}, "a": [[1]] * 300_000})),
    "a page": ("GET", "/", None),
    "hardware": ("GET", "/v1/hardware", None),
    "what is not there": ("GET", "/nothing", None),
}


class Tenant:
    """Forty-five connections of one key."""

    def __init__(self, address: str, key: str) -> None:
        parts = urlsplit(address)
        self._host, self._port = str(parts.hostname), parts.port
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def ask(self, connection: http.client.HTTPConnection, ask: Ask) -> tuple[int, str | None]:
        method, path, body = ask
        connection.request(method, path, body, self._headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.getheader("Retry-After")

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._host, self._port, timeout=60, source_address=("127.0.0.1", 0))

    @contextmanager
    def asking(self, ask: Ask) -> Iterator[Counter[str]]:
        """Counts the answers until the block ends."""
        told: Counter[str] = Counter()
        stop = threading.Event()

        def repeat() -> None:
            connection = self.connect()
            while not stop.is_set():
                try:
                    status, after = self.ask(connection, ask)
                    told[str(status) + (f" after {after} s" if after and status != 429 else "")] += 1
                except (OSError, http.client.HTTPException) as error:
                    told[type(error).__name__] += 1
                    connection.close()
                    status = 0
                if status in (0, 429):
                    time.sleep(
                        0.2
                    )  # as fast as it is told to go away, this script's own CPU time would count
            connection.close()

        threads = [threading.Thread(target=repeat) for _ in range(PARALLEL)]
        for thread in threads:
            thread.start()
        yield told
        stop.set()
        for thread in threads:
            thread.join()


def p99s(readings: dict[str, Latencies]) -> float:
    return max(latencies.percentile_ms(99) for latencies in readings.values())


def attack(address: str, key: str, kind: str, for_s: float) -> None:
    """The process of the tenant at its limits: says what it was told."""
    with Tenant(address, key).asking(KINDS[kind]) as told:
        time.sleep(for_s)
    print(json.dumps(told))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this one; may be repeated")
    parser.add_argument("--seconds", type=float, default=15.0, help="for each kind")
    parser.add_argument("--attack", nargs=2, metavar=("ADDRESS", "KEY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        address, key = args.attack
        attack(address, key, args.kind[0], args.seconds)
        return
    with tempfile.TemporaryDirectory(prefix="asap-bench-") as folder:
        site = Site(Path(folder), None)
        reader, busy = make_key(site, "reader"), make_key(site, "busy", "submit")
        with server(site, "all", requests_per_minute=DEFAULTS["requests_per_minute"].default) as api:
            time.sleep(5)  # its worker starts
            tenant = Tenant(api.address, busy)
            connection = tenant.connect()
            runs = [run_of(cluster, number) for cluster in range(CLUSTERS) for number in range(3)]
            status, _ = tenant.ask(connection, ("POST", "/v1/measurements", as_json(runs)))
            if status != 201:
                raise RuntimeError(f"the runs were not taken: {status}")
            connection.close()
            quiet = read(api.address, reader, args.seconds)
            show("quiet", quiet, "nobody else")
            held = []
            for kind in args.kind or KINDS:
                time.sleep(15)  # the budget of CPU seconds comes back
                words = ["--attack", api.address, busy, "--kind", kind, "--seconds", str(args.seconds + 2)]
                command = [sys.executable, "-m", "benchmarks.fairness", *words]
                with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as process:
                    time.sleep(2)
                    readings = read(api.address, reader, args.seconds)
                    told = json.loads(process.communicate()[0])
                show(kind, readings, " ".join(f"{status}: {count}" for status, count in sorted(told.items())))
                answered = not any(latencies.failures for latencies in readings.values())
                held.append(answered and p99s(readings) <= max(FLOOR_MS, BAR * p99s(quiet)))
    print(f"{sum(held)} of {len(held)} kinds: all answered, p99 within {BAR:g}x of the quiet server's")
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
