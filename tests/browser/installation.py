"""A real installation for the browser: `asap serve` in processes of their own, over one folder of data."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from service.access.credentials import new_key
from service.access.store import add_key
from service.db.engine import open_database
from service.db.ids import new_id
from service.jobs.engine import prepare
from service.sessions.model import sessions
from service.settings import Settings
from tests.integration.service.api_process import ApiProcess, environment, running

ALL_SCOPES = ("read", "submit", "approve", "operator")
TIMEOUT_S = 60.0
DAY_S = 86_400.0


def server_of(data: Path, role: str = "all") -> ApiProcess:
    settings = environment(data, data_dir=data, shutdown_s=2, compute_processes=1)
    return ApiProcess(data, ["serve", "--role", role], settings)


@dataclass(frozen=True)
class Installation:
    server: ApiProcess
    key: str

    @property
    def api(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.server.address, headers=headers, timeout=30)

    def submit(self, body: dict[str, Any]) -> str:
        with self.api as client:
            answer = client.post("/v1/sessions", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def wait(self, id: str, *states: str) -> dict[str, Any]:
        ends_at = time.monotonic() + TIMEOUT_S
        with self.api as client:
            while time.monotonic() < ends_at:
                found: dict[str, Any] = client.get(f"/v1/sessions/{id}").json()
                if found["state"] in (states or ("completed", "failed")):
                    return found
                time.sleep(0.1)
        raise TimeoutError(found["state"])


@contextmanager
def installed(data: Path, many: int = 0) -> Iterator[Installation]:
    """With a key, so that people sign in, and with so many sessions of the past."""
    settings, key = Settings(data_dir=data, _env_file=None), new_key()
    with closing(open_database(settings.database)) as database:
        prepare(settings, database)
        with database.begin() as conn:
            add_key(conn, key.id, key.digest, "engineer", ALL_SCOPES)
            if many:
                conn.execute(sessions.insert(), [past_session(number) for number in range(many)])
    with running(server_of(data)) as server:
        yield Installation(server, key.text)


def past_session(number: int) -> dict[str, Any]:
    """One that was done long ago; every hundredth has a label of its own in its text."""
    at_s = time.time() - 30 * DAY_S + number
    id, name = new_id(at_s), f"model-{number:05d}"
    word = "needle" if number % 100 == 7 else "hay"
    times = dict.fromkeys(("created_at", "queued_at", "started_at", "finished_at", "updated_at"), at_s)
    counts = {"priority": 5, "dispatch_no": 1, "attempt": 1, "fence": 1, "claims": 1}
    told = {
        "model": name,
        "device": "h100-sxm-80gb",
        "num_devices": 64,
        "bottleneck": "compute",
        "speedup": 1.2,
    }
    return {
        "id": id, "tenant": "", "owner": "past", "state": "completed", "mode": "advise", "approval": "none",
        "cancel_requested": False, "labels": {}, "request": {}, "request_digest": "0" * 64,
        "search": f"{id}\n{name}\n{word}", "verdict": "It was fine.", **times, **counts, **told,
    }  # fmt: skip
