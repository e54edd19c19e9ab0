"""`asap schedule` against a real API, without a network."""

import json
from collections.abc import Callable
from glob import glob
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from asap_client.client import Client
from service.cli import schedule
from service.cli.main import main
from service.db.schedules import claim_run, set_run
from tests.unit.service.api.test_schedules import broken_report, finish
from tests.unit.service.served import SCENARIO, Served

Run = Callable[..., tuple[int, str, str]]


class Through(httpx.BaseTransport):
    """Hands requests of the client to the API in this process."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        place = request.url.raw_path.decode()
        headers = {name: value for name, value in request.headers.items() if name != "host"}
        answer = self._served.client.request(request.method, place, content=request.read(), headers=headers)
        kept = {name: value for name, value in answer.headers.items() if name != "content-length"}
        return httpx.Response(answer.status_code, headers=kept, content=answer.content)


@pytest.fixture
def run(served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The status, and what was printed."""

    def open_client(_: str | None) -> Client:
        return Client("http://127.0.0.1", transport=Through(served))

    monkeypatch.setattr(schedule, "connect", open_client)

    def call(*words: str) -> tuple[int, str, str]:
        status = main(["schedule", *words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "job.json").write_text(json.dumps(SCENARIO))
    path = tmp_path / "nightly.yaml"
    one = {"name": "llama", "scenario": "job.json", "uploads": "llama-*"}
    path.write_text(yaml.safe_dump({"workloads": [one], "report": "pages"}))
    return path


def add(run: Run, file: Path) -> Any:  # noqa: ANN401 - JSON
    words = (
        "add",
        str(file),
        "--name",
        "nightly",
        "--cron",
        "30 5 * * *",
        "--zone",
        "Europe/Berlin",
        "--json",
    )
    status, out, err = run(*words)
    assert status == 0, err
    return json.loads(out)


def test_a_file_for_asap_nightly_becomes_a_schedule(run: Run, file: Path) -> None:
    made = add(run, file)
    assert (made["name"], made["cron"], made["zone"]) == ("nightly", "30 5 * * *", "Europe/Berlin")
    assert made["definition"]["workloads"][0]["scenario"]["model"]["name"] == "tiny"
    status, out, _ = run("list")
    assert status == 0
    assert "nightly" in out
    assert "none yet" in out


def test_it_is_paused_resumed_shown_and_removed(run: Run, file: Path) -> None:
    add(run, file)
    assert json.loads(run("pause", "nightly", "--json")[1])["state"] == "paused"
    assert json.loads(run("resume", "nightly", "--json")[1])["state"] == "active"
    assert "llama" in run("show", "nightly")[1]
    assert run("remove", "nightly")[0] == 0
    assert run("list", "--json")[1] == ""
    status, _, err = run("show", "nightly")
    assert status == 1
    assert "there is no schedule 'nightly'" in err


def test_a_run_by_hand_and_its_report(run: Run, file: Path, served: Served) -> None:
    add(run, file)
    status, _, err = run("report", "nightly")
    assert status == 1
    assert "no run of nightly has a report yet" in err
    made = json.loads(run("run", "nightly", "--json")[1])
    finish(served, made["id"], broken_report(made["id"]))
    assert "broken" in run("runs", "nightly")[1]
    assert json.loads(run("runs", "nightly", "--json")[1])["outcome"] == "broken"
    assert "| llama | not read |" in run("report", "nightly")[1]
    assert run("report", "nightly", "--format", "html")[1].startswith("<!doctype html>")
    assert json.loads(run("report", "nightly", "--json", "--run", made["id"])[1])["title"] == "Night"


def worker_sets(served: Served, **ending: Any) -> Callable[[float], None]:  # noqa: ANN401 - columns of a run
    """What a worker would do while the command sleeps."""

    def end(_: float) -> None:
        (asked,) = served.client.get("/v1/schedules/nightly/runs").json()["items"]
        with served.app.database.begin() as conn:
            row = claim_run(conn, asked["id"], "w", 1)
            assert row
            set_run(conn, row, **ending)

    return end


def test_waiting_for_a_run_that_fails_says_why(
    run: Run, file: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(run, file)

    monkeypatch.setattr("time.sleep", worker_sets(served, state="failed", reason="the disk is full"))
    status, _, err = run("run", "nightly", "--wait")
    assert status == 1
    assert "the disk is full" in err


@pytest.mark.parametrize(
    ("outcome", "told", "status"),
    [
        ("quiet", True, 0),
        ("regression", True, 4),
        ("regression", False, 4),
        ("broken", True, 1),
        ("quiet", False, 1),
    ],
)
def test_the_exit_status_tells_what_the_night_found_as_asap_nightly_does(
    run: Run,
    file: Path,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    outcome: str,
    told: bool,
    status: int,
) -> None:
    add(run, file)

    deliveries = [{"kind": "email", "to": "team", "ok": told, "answer": "", "at": 1.0}]
    ended = worker_sets(served, state="completed", outcome=outcome, deliveries=deliveries)
    monkeypatch.setattr("time.sleep", ended)
    assert run("run", "nightly", "--wait")[0] == status
    assert run("run", "nightly")[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--cron", "30 5 * * *"], "name: got"),
        (["--name", "n"], "cron: got"),
        (["--name", "n", "--cron", "99 5 * * *"], "cron"),
        (["--name", "n", "--cron", "30 5 * * *", "--zone", "Mars"], "zone"),
    ],
)
def test_what_is_wrong_gives_two_and_names_the_field(
    run: Run, file: Path, words: list[str], says: str
) -> None:
    status, _, err = run("add", str(file), *words)
    assert status == 2, err
    assert len(err.splitlines()) == 1
    assert says in err


def test_paths_are_those_beside_the_file_as_for_asap_nightly(run: Run, file: Path) -> None:
    one = {"name": "llama", "scenario": "job.json", "metrics": "logs/*.jsonl"}
    file.write_text(yaml.safe_dump({"workloads": [one]}))
    assert add(run, file)["definition"]["workloads"][0]["metrics"] == str(file.parent / "logs/*.jsonl")


def test_a_bracket_in_the_folder_of_the_file_is_no_pattern(run: Run, file: Path) -> None:
    folder = file.parent / "team[1]"
    folder.mkdir()
    moved = file.rename(folder / file.name)
    (file.parent / "job.json").rename(folder / "job.json")
    (folder / "night.jsonl").write_text("{}")
    one = {"name": "llama", "scenario": "job.json", "metrics": "*.jsonl"}
    moved.write_text(yaml.safe_dump({"workloads": [one]}))
    pattern = add(run, moved)["definition"]["workloads"][0]["metrics"]
    assert glob(pattern) == [str(folder / "night.jsonl")]


def test_a_file_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    status, _, err = run("add", str(tmp_path / "no.yaml"), "--name", "n", "--cron", "30 5 * * *")
    assert status == 2
    assert "FILE: got" in err


def test_a_scenario_file_that_is_not_there_is_named(run: Run, file: Path) -> None:
    (file.parent / "job.json").unlink()
    status, _, err = run("add", str(file), "--name", "n", "--cron", "30 5 * * *")
    assert status == 2
    assert "scenario" in err
