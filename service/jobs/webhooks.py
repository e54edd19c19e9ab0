"""Sends webhooks: signed, at least once, with exponential backoff.

Receivers verify X-Asap-Signature (HMAC-SHA256 of "<X-Asap-Timestamp>.<body>") and drop repeats by the
body's `id`.
"""

import hashlib
import hmac
import http.client
import logging
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

import msgspec

from service.addresses import RefusedAddressError, parse_target, resolve
from service.db.engine import Database
from service.jobs.model import WebhookDelivery
from service.jobs.outbox import close_delivery, reschedule, take_due
from service.settings import Settings
from tools.errors import InputError

TIMEOUT_S = 10.0
"""The socket's timeout: how long a receiver may be silent."""
MAX_REQUEST_S = 30.0
"""For the whole request: a receiver that answers a byte at a time is never silent."""
LEASE_S = 60.0
"""How long a delivery stays claimed if its sender dies; longer than one takes."""
FIRST_PAUSE_S = 5.0
MAX_PAUSE_S = 3600.0
MAX_ATTEMPTS = 16
"""With these pauses: about five hours."""
CONCURRENCY = 32
PER_TENANT = 4
"""In flight at a time: slow receivers of one tenant delay nobody else's."""
MAX_ANSWER_BYTES = 1000
MAX_ANSWER_CHARACTERS = 300

_log = logging.getLogger(__name__)


class NotDeliveredError(Exception):
    """The receiver answered, but not with success."""


class Webhooks:
    def __init__(self, settings: Settings, database: Database, first_pause_s: float = FIRST_PAUSE_S) -> None:
        secret = settings.webhook_secret
        self._secret = secret.get_secret_value().encode() if secret else b""
        self._private_allowed = settings.webhook_private
        self._database, self._first_pause_s = database, first_pause_s
        self._threads = ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="webhook")
        self._lock, self._in_flight = threading.Lock(), Counter[str]()

    def start_due(self) -> list[Future[None]]:
        """Does not wait for receivers."""
        with self._lock:
            in_flight = Counter({tenant: count for tenant, count in self._in_flight.items() if count})
        if in_flight.total() >= CONCURRENCY:
            return []
        with self._database.begin() as conn:
            due = take_due(conn, LEASE_S, PER_TENANT, in_flight)
        with self._lock:
            self._in_flight.update(delivery.tenant for delivery in due)
        return [self._threads.submit(self._send, delivery) for delivery in due]

    def _send(self, delivery: WebhookDelivery) -> None:
        try:
            body = msgspec.json.encode(delivery.body)
            signed = signed_headers(self._secret, delivery.id, body)
            answer = post(delivery.url, body, signed, self._private_allowed)
        except (InputError, RefusedAddressError) as error:
            self._fail(delivery, str(error), final=True)
        except (OSError, http.client.HTTPException, NotDeliveredError, UnicodeError) as error:
            reason = _as_text(str(error)) or type(error).__name__
            self._fail(delivery, reason, delivery.attempts >= MAX_ATTEMPTS)
        else:
            with self._database.begin() as conn:
                close_delivery(conn, delivery.id, answer)
        finally:
            with self._lock:
                self._in_flight[delivery.tenant] -= 1

    def _fail(self, delivery: WebhookDelivery, answer: str, final: bool) -> None:
        pause_s = min(self._first_pause_s * 2 ** (delivery.attempts - 1), MAX_PAUSE_S)
        _log.warning("webhook %s not delivered: %s", delivery.id, answer, extra={"final": final})
        with self._database.begin() as conn:
            reschedule(conn, delivery.id, answer, None if final else time.time() + pause_s)


def post(url: str, body: bytes, headers: Mapping[str, str], private_allowed: bool) -> str:
    """What the receiver answered; NotDeliveredError if that is no success, OSError from the network."""
    target = parse_target(url, private_allowed)
    # To the checked address, while the certificate is that of the name.
    connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)
    address = resolve(target, private_allowed)
    connection.sock = socket.create_connection((address, target.port), TIMEOUT_S)
    if target.scheme == "https":
        connection.sock = ssl.create_default_context().wrap_socket(
            connection.sock, server_hostname=target.host
        )
    own = {"Host": target.host_header, "Content-Type": "application/json", "User-Agent": "asap"}
    with closing(connection), _ended_in_time(connection.sock):
        connection.request("POST", target.path, body, {**own, **headers})
        response = connection.getresponse()
        response.read(MAX_ANSWER_BYTES)
    answer = _as_text(f"{response.status} {response.reason}")
    if not 200 <= response.status < 300:
        raise NotDeliveredError(answer)
    return answer


def _as_text(text: str) -> str:
    """A receiver's words as a person can read them, and PostgreSQL keep them: it takes no NUL."""
    return "".join(char if char.isprintable() else "?" for char in text[:MAX_ANSWER_CHARACTERS])


@contextmanager
def _ended_in_time(connection: socket.socket) -> Iterator[None]:
    """Whoever still reads or writes after MAX_REQUEST_S gets an error."""

    def end() -> None:
        with suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)  # TLS's own would wait for its lock

    timer = threading.Timer(MAX_REQUEST_S, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def signed_headers(secret: bytes, id: str, body: bytes) -> dict[str, str]:
    timestamp = str(int(time.time()))
    return {
        "X-Asap-Delivery": id,
        "X-Asap-Timestamp": timestamp,
        "X-Asap-Signature": f"sha256={signature(secret, timestamp, body)}",
    }


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    return hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
