"""What docker-compose.yml starts, as processes: its own commands and settings, both stores beside them."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from asap_client.client import Client
from tests.integration.service.api_process import ApiProcess, running
from tests.servers import running_chroma
from tests.unit.deploy.reading import REPO, compose_services

SCENARIO = json.loads((REPO / "examples/llama-3.1-70b-64xh100.json").read_text())
TRACES = REPO / "examples/traces/ddp-gloo-straggler"
START_S, WORK_S = 60, 120

pytestmark = [pytest.mark.real, pytest.mark.slow]


@dataclass
class Place:
    """Where compose's names are on this machine."""

    folder: Path
    postgres: str
    chroma: str

    def environment(self, service: str) -> dict[str, str]:
        stated = {name: str(value) for name, value in compose_services()[service].environment.items()}
        here = {
            "ASAP_DATABASE_URL": self.postgres,
            "ASAP_CHROMA_URL": stated["ASAP_CHROMA_URL"].replace("http://chroma:8000", self.chroma),
            "ASAP_DATA_DIR": str(self.folder / "data"),
            "ASAP_TRACES_DIR": str(self.folder / "traces"),
            "ASAP_EMBEDDING": "none",
        }
        plain = {name: value for name, value in os.environ.items() if not name.startswith("ASAP_")}
        unset = {name: re.sub(r"\$\{\w+:-\}", "", value) for name, value in stated.items()}
        return {**plain, **unset, **here}

    def start(self, service: str) -> ApiProcess:
        """A process with the service's own command, on a free port."""
        folder = self.folder / f"{service}-log"
        folder.mkdir(exist_ok=True)
        return ApiProcess(folder, compose_services()[service].command, self.environment(service))

    def key(self, name: str) -> str:
        command = [sys.executable, "-m", "service.cli.main", "keys", "add", name, "--scope", "operator"]
        made = subprocess.run(
            command, cwd=REPO, env=self.environment("api"), capture_output=True, text=True, check=True
        )
        return made.stdout.strip()


@pytest.fixture
def place(tmp_path: Path, postgres_url: str) -> Iterator[Place]:
    with running_chroma(tmp_path / "chroma") as port:
        yield Place(tmp_path, postgres_url, f"http://127.0.0.1:{port}")


def wait_until_ready(address: str) -> dict[str, dict[str, object]]:
    deadline = time.monotonic() + START_S
    while True:
        answer = httpx.get(f"{address}/readyz")
        if answer.status_code == 200:
            return dict(answer.json()["checks"])
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.2)


def test_one_api_takes_a_session_with_traces_and_the_other_gives_its_report(place: Place) -> None:
    key = place.key("first")
    with ExitStack() as stack:
        started = [stack.enter_context(running(place.start(name))) for name in ("api", "api", "worker")]
        addresses = [process.address.replace("0.0.0.0", "127.0.0.1") for process in started]
        checks = [wait_until_ready(address) for address in addresses]
        assert {check["database"]["detail"] for check in checks} == {"postgresql"}
        assert {check["knowledge"]["detail"] for check in checks} == {"server"}
        one, other = (stack.enter_context(Client(address, key)) for address in addresses[:2])
        uploaded = one.upload(TRACES)
        session = one.submit({**SCENARIO, "traces": f"trace:{uploaded.id}"})
        assert other.wait(session.id, timeout_s=WORK_S).state == "completed"
        report = other.report(session.id)
        assert [proposal["rank"] for proposal in report["proposals"]] == [1, 2, 3]
        assert report["profile"] is not None
        kinds = [event.kind for event in other.events(session.id)]
        assert kinds == [event.kind for event in one.events(session.id)]
        told = httpx.get(f"{addresses[2]}/metrics", headers={"Authorization": f"Bearer {key}"}).text
        assert re.search(r'asap_sessions\{state="completed"\} 1\.0', told)
        assert re.search(r"asap_queue_wait_seconds_count 1\.0", told)
        assert httpx.get(f"{addresses[0]}/v1/sessions").status_code == 401
