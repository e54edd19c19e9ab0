"""Thousands of connections without a key: are others answered, and how soon?

    python -m benchmarks.connections [--connections 10000] [--kind KIND] [--seconds 20]

A real `asap serve` with its default limits. One address (127.0.0.1) opens the connections, one kind after the
other, and opens each again that the server closes; another address (127.0.0.2) meanwhile reads /healthz and,
with a tenant's key, /v1/sessions, each time by a new connection. A request that is not answered with 200
within five seconds is not answered.
"""

import argparse
import http.client
import json
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.service_load import Latencies
from benchmarks.service_processes import REPO, Program, Site, server
from service.cli.parser import positive_number
from service.settings import Settings

DEFAULTS = Settings.model_fields
ATTACKER, READER = "127.0.0.1", "127.0.0.2"
PER_S = 20
"""Requests of the reader."""
READERS = 10
PATIENCE_S = 5.0
OPENED_PER_S = 2000
"""At which the attacker opens connections, the first time and again."""
TRICKLE_S = 3.0
BATCH = 200
BARS = {"answered": 1.0, "p99 ms": 100.0}


@dataclass(frozen=True)
class Kind:
    """What a connection sends at first, and then a piece of every few seconds."""

    first: bytes
    piece: bytes = b""
    reads: bool = True
    """Whether it takes what it is sent."""


DOCUMENT = b"GET /openapi.json HTTP/1.1\r\nHost: asap\r\n\r\n"
KINDS = {
    "half-open": Kind(b"GET / HTTP/1.1\r\n", b"a"),
    "slow body": Kind(
        b"POST /v1/predict HTTP/1.1\r\nHost: asap\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100000\r\n\r\n{",
        b" ",
    ),
    "idle keep-alive": Kind(b"GET /healthz HTTP/1.1\r\nHost: asap\r\n\r\n"),
    "pipelined slow reader": Kind(DOCUMENT * 8, reads=False),
}


@dataclass
class Crowd:
    """The attacker's connections: opened again when they are closed."""

    address: tuple[str, int]
    kind: Kind
    count: int
    per_s: float = OPENED_PER_S
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    trickling: deque[tuple[float, socket.socket]] = field(default_factory=deque)
    open: int = 0
    begun: int = 0
    closed: int = 0

    def run(self, until: float) -> None:
        credit, before = 0.0, time.monotonic()
        while (now := time.monotonic()) < until:
            credit = min(BATCH, credit + (now - before) * self.per_s)
            before = now
            while credit >= 1 and self.open < self.count:
                credit -= 1
                self.connect()
            for key, events in self.selector.select(0.02):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    if events & selectors.EVENT_WRITE:
                        connection.send(self.kind.first)
                        self.selector.modify(connection, selectors.EVENT_READ)
                        if self.kind.piece:
                            self.trickling.append((now + TRICKLE_S, connection))
                        if not self.kind.reads:
                            self.selector.unregister(connection)
                            self.trickling.append((now + TRICKLE_S, connection))
                    elif not connection.recv(65_536):
                        raise ConnectionError
                except OSError:
                    self.close(connection)
            while self.trickling and self.trickling[0][0] < now:
                _, connection = self.trickling.popleft()
                if connection.fileno() >= 0:
                    self.trickle(connection, now)

    def trickle(self, connection: socket.socket, now: float) -> None:
        try:
            if self.kind.piece:
                connection.send(self.kind.piece)
            elif not connection.recv(1):  # a byte: slow, and still there
                raise ConnectionError
        except BlockingIOError:
            pass
        except OSError:
            self.close(connection)
            return
        self.trickling.append((now + TRICKLE_S, connection))

    def connect(self) -> None:
        connection = socket.socket()
        connection.setblocking(False)
        if not self.kind.reads:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setsockopt(socket.SOL_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: ports are taken at connect
        connection.bind((ATTACKER, 0))
        with suppress(BlockingIOError):
            connection.connect(self.address)
        self.selector.register(connection, selectors.EVENT_WRITE)
        self.open += 1
        self.begun += 1

    def close(self, connection: socket.socket) -> None:
        with suppress(KeyError):
            self.selector.unregister(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # no TIME_WAIT
        connection.close()
        self.open -= 1
        self.closed += 1


def attack(address: str, kind: str, count: int, for_s: float, per_s: float) -> None:
    """The attacker's process: says what it did."""
    parts = urlsplit(address)
    crowd = Crowd((str(parts.hostname), parts.port or 0), KINDS[kind], count, per_s)
    crowd.run(time.monotonic() + for_s)
    print(json.dumps({"begun": crowd.begun, "closed": crowd.closed}))


@contextmanager
def crowded(address: str, kind: str, count: int, for_s: float) -> Iterator["subprocess.Popen[str]"]:
    """The attacker, from its first connection on."""
    words = ["--attack", address, "--kind", kind, "--connections", str(count), "--seconds", str(for_s)]
    command = [sys.executable, "-m", "benchmarks.connections", *words]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read(address: str, key: str, for_s: float) -> dict[str, Latencies]:
    """Of each address that is read: how long its answers took, from when each request was due."""
    parts = urlsplit(address)
    paths = {"/healthz": {}, "/v1/sessions?limit=5": {"Authorization": f"Bearer {key}"}}
    begun = time.perf_counter()
    numbers = iter(range(int(for_s * PER_S)))
    times: dict[str, list[float]] = {path: [] for path in paths}
    failures = dict.fromkeys(paths, 0)
    lock = threading.Lock()

    def ask() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            due = begun + number / PER_S
            time.sleep(max(0.0, due - time.perf_counter()))
            path = list(paths)[number % len(paths)]
            connection = http.client.HTTPConnection(
                str(parts.hostname), parts.port, timeout=PATIENCE_S, source_address=(READER, 0)
            )
            try:
                connection.request("GET", path, headers=paths[path])
                is_answered = connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                is_answered = False
            connection.close()
            with lock:
                times[path].append(time.perf_counter() - due)
                failures[path] += not is_answered

    threads = [threading.Thread(target=ask) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {path: Latencies(times[path], failures[path], for_s) for path in paths}


def show(name: str, readings: dict[str, Latencies], remark: str) -> bool:
    for path, latencies in readings.items():
        asked = len(latencies.seconds)
        share = 1 - latencies.failures / asked
        p50, p99 = (latencies.percentile_ms(percent) for percent in (50, 99))
        print(f"{name:<27} {path:<21} {share:>7.1%} answered, p50 {p50:7.1f} ms, p99 {p99:7.1f} ms; {remark}")
    return all(
        not latencies.failures and latencies.percentile_ms(99) <= BARS["p99 ms"]
        for latencies in readings.values()
    )


def make_key(site: Site, tenant: str, scope: str = "read") -> str:
    command = [sys.executable, "-m", "service.cli.main", "keys", "add", tenant, "--tenant", tenant]
    made = subprocess.run(
        [*command, "--scope", "read", "--scope", scope, "--json"],
        cwd=REPO, env=site.environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return str(json.loads(made.stdout)["key"])


def bench(api: Program, key: str, kind: str, count: int, for_s: float) -> bool:
    with crowded(api.address, kind, count, for_s + 2) as attacker:
        time.sleep(2)  # the attacker's own start
        readings = read(api.address, key, for_s)
        output, _ = attacker.communicate()
    did = json.loads(output)
    remark = f"{did['begun']:,} opened, {did['closed']:,} closed by the server, {api.resident_mib():.0f} MiB"
    return show(kind, readings, remark)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=positive_number, default=10_000)
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this one; may be repeated")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each kind")
    parser.add_argument("--per-second", type=positive_number, default=OPENED_PER_S, help=argparse.SUPPRESS)
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if args.attack:
        attack(args.attack, args.kind[0], args.connections, args.seconds, args.per_second)
        return
    with tempfile.TemporaryDirectory(prefix="asap-bench-") as folder:
        site = Site(Path(folder), None)
        key = make_key(site, "reader")
        with server(site, "all", requests_per_minute=DEFAULTS["requests_per_minute"].default) as api:
            time.sleep(5)  # its worker starts
            quiet = show("quiet", read(api.address, key, args.seconds), "nobody else")
            kinds = args.kind or list(KINDS)
            held = [bench(api, key, kind, args.connections, args.seconds) for kind in kinds]
    print(f"{sum(held)} of {len(held)} kinds within the bars: all answered, p99 {BARS['p99 ms']:g} ms")
    sys.exit(0 if quiet and all(held) else 1)


if __name__ == "__main__":
    main()
