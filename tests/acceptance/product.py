"""The product as its user has it: processes with settings of their own, spoken to by HTTP."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.integration.service.api_process import ApiProcess, environment, running
from tests.workloads import SMALL

ENDED = ("completed", "failed", "cancelled", "waiting_approval")
T = TypeVar("T")


@dataclass
class Server(ApiProcess):
    """One `asap serve`."""

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=60.0)

    def submit(self, **body: Any) -> str:  # noqa: ANN401 - any JSON
        with self.http as http:
            answer = http.post("/v1/sessions", json={**SMALL, **body})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def session(self, id: str) -> dict[str, Any]:
        with self.http as http:
            return dict(http.get(f"/v1/sessions/{id}").json())

    def wait(self, path: str, is_done: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """What is there as soon as it is done."""
        with self.http as http:
            return wait_for(lambda: row if is_done(row := http.get(path).json()) else None)

    def report(self, id: str) -> dict[str, Any]:
        """Of a session that completes."""
        session = self.wait(f"/v1/sessions/{id}", lambda row: row["state"] in ENDED)
        assert session["state"] == "completed", session
        with self.http as http:
            return dict(http.get(f"/v1/sessions/{id}/report").json())

    def metric(self, name: str) -> float:
        """The sum of its series; one that nobody serves is no zero."""
        with self.http as http:
            lines = http.get("/metrics").text.splitlines()
        assert any(line.startswith(f"# TYPE {name} ") for line in lines), name
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} "))
        )


@contextmanager
def serving(folder: Path, **settings: object) -> Iterator[Server]:
    """Listening when it is yielded."""
    server = Server(folder, ["serve"], environment(folder, **settings))
    with running(server):
        yield server


def wait_for(look: Callable[[], T | None], longest_s: float = 120.0) -> T:
    """Looks until there is something; a busy machine may take its time."""
    deadline = time.monotonic() + longest_s
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise TimeoutError(f"nothing within {longest_s} s")
