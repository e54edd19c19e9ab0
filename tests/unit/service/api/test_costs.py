"""What a request costs: few files of ours, SQL that does not grow with rows, a session read once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sa

import service
from tests.unit.service.served import SCENARIO, Serve, Served

ROOT = Path(service.__file__).parent
MAX_FILES = 21
"""That one submission may pass through: a reader must be able to follow it."""


@contextmanager
def statements(served: Served) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("PRAGMA"):
            seen.append(statement)

    sa.event.listen(served.app.database.engine, "before_cursor_execute", note)
    yield seen
    sa.event.remove(served.app.database.engine, "before_cursor_execute", note)


def add_schedule(served: Served, name: str) -> None:
    workload = {"name": f"job-{name}", "scenario": SCENARIO, "uploads": f"{name}-*"}
    body: dict[str, Any] = {"name": name, "cron": "30 5 * * *", "workloads": [workload]}
    answer = served.client.post("/v1/schedules", json=body)
    assert answer.status_code == 201, answer.text
    assert served.client.post(f"/v1/schedules/{name}/run").status_code == 202


def test_a_list_of_schedules_costs_the_same_however_many_there_are(served: Served) -> None:
    counts: list[int] = []
    for name in ("a", "b", "c"):
        add_schedule(served, name)
        with statements(served) as seen:
            items = served.client.get("/v1/schedules").json()["items"]
        assert len(items) == len(counts) + 1
        assert all(item["last_run"] for item in items)
        counts.append(len(seen))
    assert counts[0] == counts[2], counts


@pytest.mark.parametrize("action", ["cancel", "retry", "decision"])
def test_an_action_reads_the_session_once_and_its_report_only_to_decide_on_it(
    served: Served, action: str
) -> None:
    id = served.submit()
    if action != "cancel":
        report = {"proposals": [], "scenario": SCENARIO}
        served.end(id, "failed" if action == "retry" else "completed", report=report)
    with statements(served) as seen:
        body = {"action": "approve"} if action == "decision" else None
        answer = served.client.post(f"/v1/sessions/{id}/{action}", json=body)
    assert answer.status_code == 202, answer.text
    reads = [text for text in seen if text.startswith("SELECT") and "FROM sessions" in text]
    of_report = [text for text in seen if "sessions.report" in text or " report" in text]
    assert len(of_report) == (action == "decision"), "which cost model made a completed one stands there"
    assert len(reads) == 1 + len(of_report), reads


def test_submitting_a_session_passes_few_files(serve: Serve) -> None:
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    threading.setprofile(note)  # of the threads that the server starts from here on
    try:
        served = serve()
        served.submit()
        seen.clear()  # what is imported or opened at the first request counts for nothing
        served.submit()
    finally:
        threading.setprofile(None)
    files = sorted(str(Path(name).relative_to(ROOT)) for name in seen if name.startswith(str(ROOT)))
    assert len(files) <= MAX_FILES, " ".join(files)
