"""The page of a session's trials: what a running job has written so far, and nothing that is not a step."""

import json
from pathlib import Path

from service.runtime import jobs_folder
from service.sessions.pages.trials import PROGRESS, read_job
from tests.unit.service.db.making import append_event
from tests.unit.service.served import Served
from tests.unit.service.web.browsing import EVIL, assert_only_text, get
from tools.launch.folder import JobFolder


def write_job(root: Path, key: str, log: str) -> None:
    folder = JobFolder.of(root, key)
    folder.make()
    steps = [{"step": number, "step_s": 1.5 - number / 10, "loss": 9.0 - number} for number in range(4)]
    lines = [*map(json.dumps, steps), "no step", "[1]", '{"loss": "much"}', '{"step_s": 9']
    (folder.out / PROGRESS).write_text("\n".join(lines))
    folder.log.write_text(log)


def test_steps_are_read_while_the_last_line_is_still_being_written(tmp_path: Path) -> None:
    write_job(tmp_path, "job-1", "first\nlast")
    job = read_job(tmp_path, "job-1", "")
    assert [round(step_s, 1) for step_s in job.step_times_s] == [1.5, 1.4, 1.3, 1.2]
    assert list(job.losses) == [9.0, 8.0, 7.0, 6.0]
    assert job.log[-1] == "last"
    assert [curve.name for curve in job.curves] == ["step time", "loss"]
    assert read_job(tmp_path, "elsewhere", "").state == "not on this machine"
    assert read_job(tmp_path, "../job-1", "").state == "unknown"


def test_the_page_shows_the_jobs_of_its_session_with_their_logs(served: Served) -> None:
    id = served.submit()
    write_job(jobs_folder(served.app.settings), "job-7", EVIL)
    event = {"key": "launch/1", "node": "trial", "kind": "waiting", "job": "job-7", "template": "local"}
    with served.app.database.begin() as conn:
        append_event(conn, id, event)
    answer, page = get(served, f"/sessions/{id}/trials")
    assert answer.status_code == 200
    assert "job-7" in page.text
    assert "now 1.20 s" in page.text
    curve = served.client.get(f"/sessions/{id}/trials/job-7/step%20time").json()
    assert [round(value, 1) for value in curve["layers"][0]["y"]] == [1.5, 1.4, 1.3, 1.2]
    assert (curve["x"]["title"], curve["y"]["title"]) == ("step", "step time, s")
    assert served.client.get(f"/sessions/{id}/trials/job-8/step%20time").status_code == 404
    assert_only_text(answer.text, page)
