"""Tuning sessions in the service: killed, handed back, cancelled; their jobs are found again, or ended."""

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from graph.report import Report
from service.runtime import jobs_folder, open_trials
from service.sessions.cleanup import end_orphans, erase_trials
from service.sessions.store import delete_session
from service.settings import Settings
from service.worker import make_worker
from tests.integration.launch.waiting import processes_of
from tests.integration.service.api_process import api_process
from tests.integration.service.at_work import Desk, assert_whole, opened, settings_for, wait_for
from tests.integration.service.test_chaos_mixed import small_disk
from tests.integration.trials.conftest import QUICK, scenario

TUNE = {**scenario(), "mode": "tune"}


def templates(folder: Path, seconds: float) -> Path:
    """One that takes so long; written as an administrator would."""
    file = folder / "templates.toml"
    file.write_text(
        '[[template]]\nname = "quick"\nlauncher = "local"\nlimits = { wall_s = 60, devices = 2 }\n'
        f"command = {json.dumps([*QUICK, str(seconds)])}\n"
    )
    return file


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    given: dict[str, Any] = {"session_trials": 2, "trial_steps": 6, "trial_runs": 1, "shutdown_s": 0.0}
    return settings_for(tmp_path, launch_templates=templates(tmp_path, 2.0), **given)


@pytest.fixture
def desk(settings: Settings) -> Iterator[Desk]:
    with opened(settings) as one:
        yield one
    assert processes_of(jobs_folder(settings)) == []


def starts(settings: Settings) -> dict[str, int]:
    files = jobs_folder(settings).glob("*/out/starts.txt")
    return {file.parent.parent.name: len(file.read_text().split()) for file in files}


def _more_than(settings: Settings, known: int) -> bool:
    return len(starts(settings)) > known


def test_a_worker_that_stops_leaves_the_trial_to_the_next(settings: Settings, desk: Desk) -> None:
    id = desk.submit(request=TUNE, mode="tune")
    for _ in range(2):
        worker = make_worker(settings)
        worker.start()
        known = len(starts(settings))
        wait_for(partial(_more_than, settings, known))
        assert worker.stop()
        assert processes_of(jobs_folder(settings)), "its trial had ended before the worker did"
    worker = make_worker(settings)
    worker.start()
    row = desk.wait(id)
    worker.stop()
    assert (row.state, row.error) == ("completed", None)
    measured = Report.model_validate(row.report).proposals[0].measured
    assert measured is not None
    assert row.measured_speedup == measured.speedup
    assert starts(settings) == {f"{id}-1-0": 1, f"{id}-1-1": 1}
    assert desk.states(id) == ["queued", *["running", "queued"] * 2, "running", "completed"]
    assert_whole(desk.events(id))


def test_a_cancelled_session_ends_its_trial(settings: Settings, desk: Desk) -> None:
    slow = settings.model_copy(update={"launch_templates": templates(settings.data_dir, 60.0)})
    id = desk.submit(request=TUNE, mode="tune")
    worker = make_worker(slow)
    worker.start()
    wait_for(lambda: starts(settings))
    assert processes_of(jobs_folder(settings))
    desk.cancel(id)
    row = desk.wait(id)
    worker.stop()
    assert row.state == "cancelled"
    wait_for(
        lambda: not processes_of(jobs_folder(settings))
    )  # a killed process takes a moment on a busy machine


def test_a_job_of_a_session_that_was_cancelled_while_nobody_ran_it_is_ended(
    settings: Settings, desk: Desk
) -> None:
    slow = settings.model_copy(update={"launch_templates": templates(settings.data_dir, 60.0)})
    id, trials = desk.submit(request=TUNE, mode="tune"), open_trials(slow)
    assert trials is not None
    worker = make_worker(slow)
    worker.start()
    wait_for(lambda: starts(settings))
    assert worker.stop()
    jobs = jobs_folder(slow)
    assert end_orphans(desk.database, trials, jobs) == [], "its session goes on"
    assert processes_of(jobs), "nothing to end"
    desk.cancel(id)
    assert desk.row(id).state == "cancelled"
    assert end_orphans(desk.database, trials, jobs) == [f"{id}-1-0"]
    assert end_orphans(desk.database, trials, jobs) == []
    (trials.results / f"{id}-1-0").mkdir(parents=True)
    assert erase_trials(desk.database, jobs, trials.results) == [], "its session can still be read"
    with desk.database.begin() as conn:
        delete_session(conn, "", id)
    assert erase_trials(desk.database, jobs, trials.results) == [f"{id}-1-0"] * 2
    assert not [*jobs.iterdir(), *trials.results.glob(f"{id}*")]


def test_a_full_disk_delays_a_session_and_does_not_end_it(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of its first trial find no room, twice; the trial is not run again."""
    monkeypatch.setattr("service.sessions.run.ROOM_PAUSE_S", 1.0)
    monkeypatch.setattr("service.sessions.run.MIN_FREE_BYTES", 0)  # its disk seems to have room again
    given: dict[str, Any] = {"session_trials": 2, "trial_steps": 6, "trial_runs": 1}
    given |= {"launch_templates": templates(tmp_path, 1.0), "jobs_dir": tmp_path / "jobs"}
    with small_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("only root may mount a small disk")
        settings = settings_for(disk, postgres_url, **given)
        with opened(settings) as desk:
            worker = make_worker(settings)
            worker.start()
            id = desk.submit(request=TUNE, mode="tune")
            wait_for(lambda: starts(settings))
            with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
                while True:
                    ballast.write(bytes(4096))
            row = desk.wait(id, until=lambda row: row.claims > 2 or row.finished_at is not None)
            assert row.error is None
            (disk / "ballast").unlink()
            row = desk.wait(id)
            assert worker.stop()
            assert (row.state, row.error) == ("completed", None)
            assert row.measured_speedup
            assert_whole(desk.events(id))
        assert starts(settings) == {f"{id}-1-0": 1, f"{id}-1-1": 1}


@pytest.mark.slow
def test_a_server_killed_in_each_trial_loses_none(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "launch_templates": templates(tmp_path, 4.0), "session_trials": 3, "trial_runs": 1, "lease_s": 2,
    }  # fmt: skip
    jobs = tmp_path / "data" / "jobs"
    with api_process(tmp_path, **options) as server:
        id = httpx.post(f"{server.address}/v1/sessions", json=TUNE).json()["id"]
        assert server.kill() == -signal.SIGKILL
    for number in range(3):
        begun = jobs / f"{id}-1-{number}" / "out" / "starts.txt"
        with api_process(tmp_path, **options) as server:
            wait_for(begun.exists)
            assert server.kill() == -signal.SIGKILL
            assert processes_of(jobs), "its trial had ended before the server did"
    with api_process(tmp_path, **options) as server:

        def ended() -> dict[str, Any] | None:
            row: dict[str, Any] = httpx.get(f"{server.address}/v1/sessions/{id}").json()
            return row if row["state"] in ("completed", "failed") else None

        row = wait_for(ended, 180.0)
        assert row["state"] == "completed", row
        assert row["measured_speedup"] >= 1.0
    counts = {
        file.parent.parent.name: len(file.read_text().split()) for file in jobs.glob("*/out/starts.txt")
    }
    assert counts == {f"{id}-1-{number}": 1 for number in range(3)}
    assert processes_of(jobs) == []
