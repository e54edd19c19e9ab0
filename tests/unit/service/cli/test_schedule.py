"""`asap schedule` against a real API, without a network."""

import json
from collections.abc import Callable
from glob import glob
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.schedules.dispatch import NIGHTS
from service.schedules.store import set_run
from tests.unit.service.api.test_schedules import broken_report, finish
from tests.unit.service.cli.commands import Asap, Result
from tests.unit.service.served import SCENARIO, Served

NAMED = ("--name", "nightly", "--cron", "30 5 * * *")


@pytest.fixture
def schedule(at_server: Asap) -> Asap:
    return lambda *words: at_server("schedule", *words)


def write(folder: Path, **source: str) -> Path:
    """A file for `asap nightly` with its scenario beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "job.json").write_text(json.dumps(SCENARIO))
    path = folder / "nightly.yaml"
    one = {"name": "llama", "scenario": "job.json", **(source or {"uploads": "llama-*"})}
    path.write_text(yaml.safe_dump({"workloads": [one], "report": "pages"}))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path)


def add(schedule: Asap, file: Path) -> dict[str, Any]:
    result: Result = schedule("add", file, *NAMED, "--zone", "Europe/Berlin", "--json")
    assert result.status == 0, result.err
    return result.answer


def test_it_is_paused_resumed_shown_and_removed(schedule: Asap, file: Path) -> None:
    add(schedule, file)
    for action, state in (("pause", "paused"), ("resume", "active")):
        assert schedule(action, "nightly", "--json").answer["state"] == state
    assert "llama" in schedule("show", "nightly").out
    assert schedule("remove", "nightly").status == 0
    assert schedule("list", "--json").out == ""
    gone = schedule("show", "nightly")
    assert (gone.status, "there is no schedule 'nightly'" in gone.err) == (1, True)


def test_a_run_by_hand_and_its_report(schedule: Asap, file: Path, served: Served) -> None:
    add(schedule, file)
    early = schedule("report", "nightly")
    assert (early.status, "no run of nightly has a report yet" in early.err) == (1, True)
    made = schedule("run", "nightly", "--json").answer
    finish(served, made["id"], broken_report(made["id"]))
    assert "broken" in schedule("runs", "nightly").out
    assert schedule("runs", "nightly", "--json").answer["outcome"] == "broken"
    assert "| llama | not read |" in schedule("report", "nightly").out
    assert schedule("report", "nightly", "--format", "html").out.startswith("<!doctype html>")
    assert schedule("report", "nightly", "--json", "--run", made["id"]).answer["title"] == "Night"


def worker_sets(served: Served, **ending: Any) -> Callable[[float], None]:  # noqa: ANN401 - columns of a run
    """What a worker would do while the command sleeps."""

    def end(_: float) -> None:
        (asked,) = served.client.get("/v1/schedules/nightly/runs").json()["items"]
        with served.app.database.begin() as conn:
            row = NIGHTS.claim(conn, asked["id"], "w", 1)
            assert row
            set_run(conn, row, **ending)

    return end


@pytest.mark.parametrize(
    ("outcome", "is_delivered", "status"),
    [
        ("quiet", True, 0),
        ("regression", True, 4),
        ("regression", False, 4),
        ("broken", True, 1),
        ("quiet", False, 1),
    ],
)
def test_the_exit_status_tells_what_the_night_found_as_asap_nightly_does(
    schedule: Asap,
    file: Path,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    outcome: str,
    is_delivered: bool,
    status: int,
) -> None:
    add(schedule, file)
    deliveries = [{"kind": "email", "to": "team", "ok": is_delivered, "answer": "", "at": 1.0}]
    ended = worker_sets(served, state="completed", outcome=outcome, deliveries=deliveries)
    monkeypatch.setattr("time.sleep", ended)
    assert schedule("run", "nightly", "--wait").status == status
    assert schedule("run", "nightly").status == 0


def test_paths_are_those_beside_the_file_whatever_its_folder_is_called(
    schedule: Asap, tmp_path: Path
) -> None:
    folder = tmp_path / "team[1]"  # no pattern, although it looks like one
    made = add(schedule, write(folder, metrics="*.jsonl"))
    (folder / "night.jsonl").write_text("{}")
    assert glob(made["definition"]["workloads"][0]["metrics"]) == [str(folder / "night.jsonl")]
