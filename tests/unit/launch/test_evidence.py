"""What a job left behind is read as data, whatever it is."""

import json
import math
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tools.launch.failures import read_evidence
from tools.launch.status import JobStatus, State

STATUS = JobStatus(State.FAILED)


def test_heartbeats_reports_and_the_last_lines_are_read(tmp_path: Path) -> None:
    beat = {"step": 3, "phase": "measure", "step_s": 0.5, "loss": math.nan, "unix_time_s": 10.0}
    (tmp_path / "progress.jsonl").write_text(json.dumps(beat) + "\n" + '{"step": 4, "ste')
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures/n1-7.json").write_text(json.dumps({"kind": "InputError", "message": "plan.tp: no"}))
    (tmp_path / "log.txt").write_text("".join(f"{number}\n" for number in range(300)))
    evidence = read_evidence(STATUS, tmp_path, tmp_path / "log.txt")
    assert [(beat.step, beat.step_s) for beat in evidence.heartbeats] == [(3, 0.5)]
    assert math.isnan(evidence.heartbeats[0].loss)
    assert [(report.kind, report.message) for report in evidence.reports] == [("InputError", "plan.tp: no")]
    assert (len(evidence.log), evidence.log[-1]) == (200, "299")


def test_the_log_may_come_as_lines(tmp_path: Path) -> None:
    assert read_evidence(STATUS, tmp_path, ["a" * 5000]).log == ["a" * 2000]


def test_a_job_that_left_nothing_has_no_evidence(tmp_path: Path) -> None:
    evidence = read_evidence(STATUS, tmp_path / "none", tmp_path / "none.txt")
    assert (evidence.log, evidence.heartbeats, evidence.reports) == ([], [], [])


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text(json.dumps({"kind": "secret", "message": "s"}))
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures/a.json").symlink_to(tmp_path / "secret.json")
    os.mkfifo(tmp_path / "failures/b.json")
    os.mkfifo(tmp_path / "progress.jsonl")
    evidence = read_evidence(STATUS, tmp_path, [])
    assert (evidence.heartbeats, evidence.reports) == ([], [])


def test_of_a_long_file_the_end_is_read(tmp_path: Path) -> None:
    line = json.dumps({"step": 1, "step_s": 1.0, "loss": 1.0, "unix_time_s": 1.0, "more": "x" * 1000})
    last = json.dumps({"step": 2, "step_s": 1.0, "loss": 1.0, "unix_time_s": 2.0})
    (tmp_path / "progress.jsonl").write_text((line + "\n") * 3000 + last + "\n")
    assert read_evidence(STATUS, tmp_path, []).heartbeats[-1].step == 2


values: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5) | st.just([])
)
odd = st.dictionaries(st.sampled_from(["step", "step_s", "loss", "unix_time_s", "kind", "message"]), values)


@given(st.lists(odd.map(json.dumps) | st.text(max_size=30) | st.just("[" * 5000)))
def test_no_content_is_an_error(tmp_path_factory: object, lines: list[str]) -> None:
    folder: Path = tmp_path_factory.mktemp("out")  # type: ignore[attr-defined]
    (folder / "failures").mkdir()
    content = "\n".join(lines)
    (folder / "progress.jsonl").write_text(content, encoding="utf-8", errors="replace")
    (folder / "failures/a.json").write_text(content, encoding="utf-8", errors="replace")
    read_evidence(STATUS, folder, [])
