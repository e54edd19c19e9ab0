"""docs/operations.md, followed: a copy made while the server works, restored, has all of it and goes on."""

import json
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from asap_client.client import Client
from service.db.engine import open_database
from service.jobs.model import BUSY
from service.sessions.store import get_session
from service.settings import Settings
from tests.integration.docs.pages import blocks
from tests.integration.service.api_process import REPO, api_process, asap
from tests.servers import POSTGRES_PROGRAMS

SCENARIO = json.loads((REPO / "examples/llama-3.1-70b-64xh100.json").read_text())
TRACES = REPO / "examples/traces/ddp-gloo-straggler"
CASE = {
    "id": "our-70b-tp4", "title": "tp 8 to 4 on 64 H100", "story": "Tensor parallelism was halved.",
    "device": "h100-sxm-80gb", "num_devices": 64, "before": {"tp": 8}, "after": {"tp": 4},
    "measured": {"metric": "step time, s", "before": 9.8, "after": 8.1},
}  # fmt: skip
WORK_S = 120

pytestmark = [pytest.mark.real, pytest.mark.slow]


def documented_copy() -> str:
    page = (REPO / "docs/operations.md").read_text()
    return next(block.text for block in blocks(page) if "sqlite3" in block.text)


def start_sessions(address: str) -> list[str]:
    """One that has ended, with traces of its own, and one that is at work."""
    with Client(address) as client:
        uploaded = client.upload(TRACES)
        ended = client.submit({**SCENARIO, "traces": f"trace:{uploaded.id}"})
        assert client.wait(ended.id, timeout_s=WORK_S).state == "completed"
        return [ended.id, client.submit(SCENARIO).id]


def check_copied_at_work(settings: Settings, ids: list[str]) -> None:
    """As the copy has them: had both ended before it was made, it would not have been made at work."""
    with closing(open_database(settings.database)) as database, database.read() as conn:
        ended, at_work = (get_session(conn, "", id).state for id in ids)
    assert ended == "completed"
    assert at_work in BUSY


def check_sessions(address: str, ids: list[str]) -> None:
    with Client(address) as client:
        for id in ids:
            assert client.wait(id, timeout_s=WORK_S).state == "completed"
            assert client.report(id)["proposals"]


def test_a_copy_of_the_data_folder_has_everything(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    (tmp_path / "case.json").write_text(json.dumps(CASE))
    with api_process(before) as server:
        assert asap(before, "kb", "add", str(tmp_path / "case.json"), "--by", "anna").returncode == 0
        (before / ".asap").symlink_to("data")
        ids = start_sessions(server.address)
        subprocess.run(["bash", "-ec", documented_copy()], cwd=before, check=True)
        server.stop()
    (before / "backup").rename(tmp_path / "copy")
    shutil.rmtree(before)
    after.mkdir()
    shutil.copytree(tmp_path / "copy", after / "data")
    assert list((after / "data/traces").rglob("*.json*"))
    check_copied_at_work(Settings(data_dir=after / "data", _env_file=None), ids)
    assert asap(after, "kb", "show", str(CASE["id"])).returncode == 0
    with api_process(after) as server:
        check_sessions(server.address, ids)
        server.stop()


def test_a_dump_of_postgresql_is_a_whole_installation(
    tmp_path: Path, postgres_server: str, postgres_url: str
) -> None:
    import psycopg

    dump = tmp_path / "asap.dump"
    with api_process(tmp_path, database_url=postgres_url) as server:
        ids = start_sessions(server.address)
        with dump.open("wb") as file:
            subprocess.run(
                [POSTGRES_PROGRAMS / "pg_dump", "--format", "custom", postgres_url], stdout=file, check=True
            )
        server.stop()
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE restored")
    other = postgres_server.replace("/postgres?", "/restored?", 1)
    with dump.open("rb") as file:
        command = [str(POSTGRES_PROGRAMS / "pg_restore"), "--dbname", other, "--exit-on-error"]
        subprocess.run(command, stdin=file, check=True)
    check_copied_at_work(Settings(data_dir=tmp_path / "data", database_url=other, _env_file=None), ids)
    with api_process(tmp_path, database_url=other) as server:
        check_sessions(server.address, ids)
        server.stop()
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("DROP DATABASE restored WITH (FORCE)")
