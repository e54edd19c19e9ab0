"""Records that are whole or absent, and the first of which counts."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.errors import InputError
from tools.launch.files import copy_results, open_plain, write_whole
from tools.launch.folder import JobFolder, Place, prepare
from tools.launch.job import ConfigFile, Job
from tools.launch.status import Cause, Intent, JobStatus, State
from tools.launch.template import parse_templates

INTENT = Intent("k1", "local", "t", "d", "m", ["run"], {}, "/", 1, 1, 60)
TABLE = {
    "name": "t",
    "launcher": "local",
    "command": ["run", "{scenario}", "{config}", "{out}", "{steps}", "{key}", "{rendezvous}"],
    "limits": {"wall_s": 60},
    "environment": {"FIXED": "1", "BOTH": "template"},
    "environment_allowed": ["BOTH"],
    "environment_inherited": ["WANTED", "ABSENT"],
}
TEMPLATES = parse_templates({"template": [TABLE]})
JOB = Job("t", {"a": 1}, config=ConfigFile("plan.toml", "x = 1\n"), environment={"BOTH": "request"})


def place(root: Path) -> Place:
    return Place("local", root, rendezvous="here:0", inherited={"WANTED": "w", "SECRET": "s"})


def test_the_first_intent_counts(tmp_path: Path) -> None:
    folder = JobFolder.of(tmp_path, "k1")
    folder.make()
    assert folder.record_intent(INTENT) == INTENT
    assert folder.record_intent(replace(INTENT, command=["other"])) == INTENT


def test_the_first_end_counts_and_a_job_under_way_is_not_kept(tmp_path: Path) -> None:
    folder = JobFolder.of(tmp_path, "k1")
    folder.make()
    running = JobStatus(State.RUNNING)
    assert folder.keep_final(running) == running
    assert folder.find_final() is None
    end = JobStatus(State.FAILED, Cause.EXIT, 3, nodes=("n1", "n2"), started_unix_s=1.5)
    assert folder.keep_final(end) == end
    assert folder.keep_final(JobStatus(State.LOST, Cause.LOST)) == end


statuses = st.builds(
    JobStatus,
    state=st.sampled_from(State),
    cause=st.none() | st.sampled_from(Cause),
    exit_status=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    detail=st.text(),
    nodes=st.lists(st.text()).map(tuple),
    ended_unix_s=st.none() | st.floats(allow_nan=False),
)


@given(statuses)
def test_a_status_survives_the_journey_through_json(status: JobStatus) -> None:
    assert JobStatus.from_json(json.dumps(asdict(status))) == status


def test_writing_leaves_nothing_half_done_beside_the_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "one")
    write_whole(tmp_path / "a", "two", only_first=True)
    assert (tmp_path / "a").read_text() == "one"
    write_whole(tmp_path / "a", "three")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "three"


def test_preparing_fills_the_command_and_writes_the_inputs(tmp_path: Path) -> None:
    prepared = prepare(place(tmp_path), TEMPLATES, "k1", JOB)
    home = tmp_path / "k1"
    assert prepared.intent.command == [
        "run",
        str(home / "inputs/scenario.json"),
        str(home / "inputs/plan.toml"),
        str(home / "out"),
        "10",
        "k1",
        "here:0",
    ]
    assert (home / "inputs/plan.toml").read_text() == "x = 1\n"
    assert prepared.intent.wall_s == 60
    assert prepared.intent.environment == {"WANTED": "w", "FIXED": "1", "BOTH": "request"}


def test_preparing_again_gives_the_same_intent(tmp_path: Path) -> None:
    first = prepare(place(tmp_path), TEMPLATES, "k1", JOB)
    again = prepare(place(tmp_path), TEMPLATES, "k1", JOB)
    assert again.intent == first.intent


def test_a_changed_template_does_not_change_a_job_that_was_prepared(tmp_path: Path) -> None:
    first = prepare(place(tmp_path), TEMPLATES, "k1", JOB)
    changed = parse_templates({"template": [TABLE | {"command": ["other"]}]})
    assert prepare(place(tmp_path), changed, "k1", JOB).intent == first.intent


def test_another_job_under_the_key_changes_nothing(tmp_path: Path) -> None:
    prepare(place(tmp_path), TEMPLATES, "k1", JOB)
    with pytest.raises(InputError, match="key"):
        prepare(place(tmp_path), TEMPLATES, "k1", replace(JOB, scenario={"a": 2}))
    assert '"a": 1' in (tmp_path / "k1/inputs/scenario.json").read_text()


def test_a_refused_job_leaves_no_folder(tmp_path: Path) -> None:
    for wrong in (replace(JOB, nproc=2), replace(JOB, config=None), replace(JOB, template="x")):
        with pytest.raises(InputError):
            prepare(place(tmp_path), TEMPLATES, "k1", wrong)
    assert list(tmp_path.iterdir()) == []


def test_results_are_copied_without_links_and_pipes(tmp_path: Path) -> None:
    source, secret = tmp_path / "out", tmp_path / "secret"
    (source / "traces").mkdir(parents=True)
    (source / "traces/rank0.json").write_text("{}")
    (source / "result.json").write_text("{}")
    secret.mkdir()
    (secret / "key").write_text("k")
    (source / "link.json").symlink_to(secret / "key")
    (source / "folder").symlink_to(secret)
    os.mkfifo(source / "pipe")
    copied = copy_results(source, tmp_path / "to")
    assert copied == [Path("result.json"), Path("traces/rank0.json")]
    assert sorted(path.name for path in (tmp_path / "to").rglob("*") if path.is_file()) == [
        "rank0.json",
        "result.json",
    ]
    assert copy_results(source, tmp_path / "to") == copied


def test_a_result_of_the_longest_name_is_copied(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ("x" * 255)).write_text("{}")
    assert copy_results(tmp_path / "out", tmp_path / "to") == [Path("x" * 255)]
    assert len(list((tmp_path / "to").iterdir())) == 1


def test_only_plain_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    file = open_plain(tmp_path / "plain")
    assert file is not None
    with file:
        assert file.read() == b"x"
    assert [open_plain(tmp_path / name) for name in ("link", "none", ".")] == [None, None, None]
