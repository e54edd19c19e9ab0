"""Makes an exhibit: a database and checkpoints by the code of an older version, and what it answered.

    git worktree add --detach ../old 978ab7b && make -C ../old setup
    python -m tests.integration.service.museum.make ../old 0.1

A version's exhibits are made once, when it is released, and never again.
"""

import argparse
import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from tests.servers import POSTGRES_PROGRAMS, running_postgres

MUSEUM = Path(__file__).parent
SECRET = "a secret of the museum"
"""On PostgreSQL the key of checkpoints would else follow from its address."""
SCENARIO = json.loads((MUSEUM.parents[3] / "examples/llama-3.1-70b-64xh100.json").read_text())
SESSIONS: dict[str, dict[str, Any]] = {
    "with notes": {"notes": "tp must be at most 4. Keep pp. Is NVLink slow?", "labels": {"team": "a"}},
    "decided": {"approval": "person"},
    "waits": {"approval": "person"},
    "infeasible": {"plan": None, "cluster": {**SCENARIO["cluster"], "num_devices": 8}},
}
AS_LIST = {"Accept": "application/json"}
WORK_S = 120


def wait(http: httpx.Client, id: str) -> dict[str, object]:
    """The session once it has ended or waits for a person."""
    ends_at = time.monotonic() + WORK_S
    while (session := http.get(f"/v1/sessions/{id}").json())["state"] in ("queued", "running"):
        assert time.monotonic() < ends_at, session
        time.sleep(0.25)
    return dict(session)


def use(address: str) -> dict[str, object]:
    """Submits the sessions; what the server answered about each."""
    with httpx.Client(base_url=address, timeout=60) as http:
        expected: dict[str, object] = {}
        for kind, stated in SESSIONS.items():
            created = http.post("/v1/sessions", json={**SCENARIO, **stated})
            created.raise_for_status()
            id = created.json()["id"]
            wait(http, id)
            if kind == "decided":
                decision = {"action": "approve", "proposal": 1}
                http.post(f"/v1/sessions/{id}/decision", json=decision).raise_for_status()
            session, report = wait(http, id), http.get(f"/v1/sessions/{id}/report")
            expected[id] = {
                "session": session,
                "report": report.json() if report.is_success else {"detail": report.json()["detail"]},
                "events": http.get(f"/v1/sessions/{id}/events", headers=AS_LIST).json()["items"],
            }
        return expected


def make(checkout: Path, folder: Path, database_url: str | None) -> None:
    data = Path(tempfile.mkdtemp(prefix="asap-museum-"))
    settings = {"ASAP_DATA_DIR": str(data), "ASAP_EMBEDDING": "none"}
    if database_url:
        settings |= {"ASAP_DATABASE_URL": database_url, "ASAP_CHECKPOINT_SECRET": SECRET}
    server = subprocess.Popen(
        [checkout.absolute() / ".venv/bin/asap", "serve", "--port", "0", "--json"],
        cwd=checkout, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout
    try:
        expected = use(json.loads(server.stdout.readline())["address"])
    finally:
        server.terminate()
        server.wait(WORK_S)
    folder.mkdir(parents=True)
    _write(folder / "expected.json.gz", json.dumps(expected))
    if database_url:
        dump = [
            str(POSTGRES_PROGRAMS / "pg_dump"),
            "--inserts",
            "--no-owner",
            "--no-privileges",
            database_url,
        ]
        _write(
            folder / "asap.sql.gz", subprocess.run(dump, capture_output=True, text=True, check=True).stdout
        )
    else:
        for name in ("asap", "checkpoints"):
            with closing(sqlite3.connect(data / f"{name}.db")) as database:
                _write(folder / f"{name}.sql.gz", "\n".join(database.iterdump()))
        if (data / "checkpoint.key").exists():
            shutil.copy(data / "checkpoint.key", folder)
    shutil.rmtree(data)


def _write(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("version")
    stated = parser.parse_args()
    make(stated.checkout, MUSEUM / stated.version / "sqlite", None)
    with running_postgres() as postgres:
        make(stated.checkout, MUSEUM / stated.version / "postgresql", postgres.get_uri())
