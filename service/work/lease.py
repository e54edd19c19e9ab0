"""A worker's proof of life: a row written again and again, and its own view of whether that still holds.

The worker counts from before it wrote, others from when the row was written: a worker knows that it has lost
its lease before anybody takes its sessions.
"""

import os
import socket
import threading
import time
import uuid

from service.store.database import Database
from service.store.workers import beat, leave

EMBEDDED = "embedded"
"""With SQLite there is one worker; under a fixed name DBOS itself recovers what it had begun."""


class Lease:
    def __init__(self, database: Database, lease_s: float) -> None:
        self.lease_s = lease_s
        self.host, self.pid = socket.gethostname(), os.getpid()
        self.worker = EMBEDDED if database.is_sqlite else f"{self.host}-{self.pid}-{uuid.uuid4().hex[:8]}"
        self._database = database
        self._lock = threading.Lock()
        self._renewed_at = float("-inf")

    def renew(self) -> None:
        before = time.monotonic()
        with self._database.begin() as conn:
            beat(conn, self.worker, self.host, self.pid)
        with self._lock:
            self._renewed_at = before

    def is_held(self) -> bool:
        with self._lock:
            return time.monotonic() - self._renewed_at < self.lease_s

    def give_up(self) -> None:
        """What this worker still has may be taken over at once."""
        with self._lock:
            self._renewed_at = float("-inf")
        with self._database.begin() as conn:
            leave(conn, self.worker)
