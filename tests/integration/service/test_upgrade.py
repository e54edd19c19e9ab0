"""Databases of older versions, made by their own code (museum/): upgraded, read the same, gone on with."""

import gzip
import json
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from service.db.migrations.versions.v0006_packed import STARTED_OVER
from tests.integration.service.api_process import api_process, asap
from tests.integration.service.museum.make import MUSEUM, SECRET, wait
from tests.servers import POSTGRES_PROGRAMS

RENAMED = {"says": "message", "numbers_struck": "texts_refused"}
"""Of an incident (the contract's `evidence[].says` stays) and of a verification."""
PAGES = ("/figures", "/report.md")
"""Of a session with a report."""
UNKNOWN = "UPDATE alembic_version SET version_num = '0005'"
Answers = dict[str, dict[str, Any]]


@dataclass
class Upgraded:
    """An old installation under the present code."""

    http: httpx.Client
    expected: Answers
    """What the old version itself answered about each session."""

    def waiting(self) -> str:
        [id] = [id for id, had in self.expected.items() if had["session"]["state"] == "waiting_approval"]
        return id


def restore(exhibit: Path, folder: Path, postgres: str) -> dict[str, Any]:
    """The exhibit as a data folder or a new database; the settings that name it."""
    (data := folder / "data").mkdir()
    if exhibit.name == "postgresql":
        name = f"museum_{time.time_ns()}"
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        url = postgres.replace("/postgres?", f"/{name}?", 1)
        sql = gzip.decompress((exhibit / "asap.sql.gz").read_bytes())
        command = [str(POSTGRES_PROGRAMS / "psql"), "--quiet", "--set", "ON_ERROR_STOP=1", url]
        subprocess.run(command, input=sql, check=True, capture_output=True)
        return {"database_url": url, "checkpoint_secret": SECRET}
    for name in ("asap", "checkpoints"):
        with closing(sqlite3.connect(data / f"{name}.db")) as database:
            database.executescript(gzip.decompress((exhibit / f"{name}.sql.gz").read_bytes()).decode())
    if (exhibit / "checkpoint.key").exists():
        shutil.copy(exhibit / "checkpoint.key", data)
    return {}


@pytest.fixture(scope="module", params=[f"{v}/{d}" for v in ("0.1", "0.2") for d in ("sqlite", "postgresql")])
def upgraded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgres_server: str
) -> Iterator[Upgraded]:
    folder, exhibit = tmp_path_factory.mktemp("upgraded"), MUSEUM / request.param
    settings = restore(exhibit, folder, postgres_server)
    expected = json.loads(gzip.decompress((exhibit / "expected.json.gz").read_bytes()))
    with (
        api_process(folder, **settings) as server,
        httpx.Client(base_url=server.address, timeout=60) as http,
    ):
        yield Upgraded(http, expected)


def differences(before: object, now: object, path: str = "") -> list[str]:
    """What it had and the answer does not have, or has otherwise; new fields are no difference."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = {name: name if name in now else RENAMED.get(name, name) for name in before}
        return [
            each
            for name, called in names.items()
            for each in differences(before[name], now.get(called), f"{path}.{name}")
        ]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [each for number, pair in pairs for each in differences(*pair, f"{path}[{number}]")]
    return [] if before == now else [f"{path}: {before!r} is now {now!r}"]


def test_every_session_reads_the_same(upgraded: Upgraded) -> None:
    """But for one that had not ended: it has started over, and asks again."""
    again = upgraded.waiting()
    assert wait(upgraded.http, again)["state"] == "waiting_approval"
    assert len(upgraded.expected) == 4
    for id, had in upgraded.expected.items():
        if id == again:
            continue
        session, report = (upgraded.http.get(f"/v1/sessions/{id}{part}") for part in ("", "/report"))
        assert session.status_code == 200
        assert differences(had["session"], session.json()) == []
        assert differences(had["report"], report.json()) == []
        events = upgraded.http.get(f"/v1/sessions/{id}/events", headers={"Accept": "application/json"})
        assert differences(had["events"], events.json()["items"]) == []
        for page in ("", "/trail", "/trials", *(PAGES if "proposals" in had["report"] else ())):
            answer = upgraded.http.get(f"/sessions/{id}{page}", headers={"Accept": "text/html"})
            assert answer.status_code == 200, f"{page}: {answer.text[:300]}"


def test_a_session_that_starts_over_says_so(upgraded: Upgraded) -> None:
    wait(upgraded.http, id := upgraded.waiting())
    trail = upgraded.http.get(f"/sessions/{id}/trail", headers={"Accept": "text/html"})
    assert STARTED_OVER["reason"] in trail.text


def test_a_decision_on_a_completed_session_is_refused_and_costs_it_nothing(upgraded: Upgraded) -> None:
    """Its plans were predicted by another cost model: acting on them would fail the session."""
    completed = [id for id, had in upgraded.expected.items() if had["session"]["state"] == "completed"]
    assert completed
    for id in completed:
        body = {"action": "approve", "proposal": 1}
        answer = upgraded.http.post(f"/v1/sessions/{id}/decision", json=body)
        assert (answer.status_code, answer.json()["field"]) == (409, "state")
        assert "submit it again" in answer.json()["detail"]
        report = upgraded.http.get(f"/v1/sessions/{id}/report").json()
        assert differences(upgraded.expected[id]["report"], report) == []


def test_a_session_that_waited_for_a_decision_goes_on(upgraded: Upgraded) -> None:
    wait(upgraded.http, id := upgraded.waiting())
    decided = upgraded.http.post(f"/v1/sessions/{id}/decision", json={"action": "approve", "proposal": 1})
    assert decided.status_code == 202, decided.text
    assert wait(upgraded.http, id)["state"] == "completed"
    decisions = upgraded.http.get(f"/v1/sessions/{id}/report").json()["decisions"]
    assert [decision["action"] for decision in decisions] == ["approve"]


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("sqlite", UNKNOWN, "is revision 0005, but it is another one: "),
        ("postgresql", UNKNOWN, "is revision 0005, but it is another one: "),
        (
            "sqlite",
            "ALTER TABLE erasures RENAME COLUMN legs TO steps",
            "is revision 0004, but it is another one: ",
        ),
        (
            "sqlite",
            "UPDATE alembic_version SET version_num = '0002'",
            "0002, which this version of asap does not know (it knows 0004 to ",
        ),
    ],
)
def test_a_database_that_cannot_be_upgraded_is_refused_in_one_line(
    kind: str, change: str, reason: str, tmp_path: Path, postgres_server: str
) -> None:
    """The first is how a database of 0.1 looked once a development version had taken it for one of 0.2."""
    settings = restore(MUSEUM / "0.1" / kind, tmp_path, postgres_server)
    url = settings.get("database_url")
    tables = "SELECT count(*) FROM sessions WHERE leg > 0"
    with psycopg.connect(url) if url else closing(sqlite3.connect(tmp_path / "data/asap.db")) as database:
        database.execute(change)
        database.commit()
        refused = asap(tmp_path, "serve", "--port", "0", **settings)
        assert database.execute(tables).fetchone() == (4,)
    assert refused.returncode == 1, refused.stderr
    [line] = refused.stderr.strip().splitlines()
    assert reason in line
