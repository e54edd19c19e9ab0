"""The first record counts, and an intent is complete before anything is launched."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.builders import make_intent, templates
from tools.errors import InputError
from tools.launch.folder import JobFolder, Place, Prepared, prepare
from tools.launch.launcher import ConfigFile, Job
from tools.launch.status import Cause, JobStatus, State
from tools.launch.template import Template

FIELDS: dict[str, Any] = {
    "command": ["run", "{scenario}", "{config}", "{out}", "{steps}", "{key}", "{rendezvous}"],
    "environment": {"FIXED": "1", "BOTH": "template"},
    "environment_allowed": ["BOTH"],
    "environment_inherited": ["WANTED", "ABSENT"],
}
TEMPLATES = templates(**FIELDS)
JOB = Job("test", {"a": 1}, config=ConfigFile("plan.toml", "x = 1\n"), environment={"BOTH": "request"})


def prepare_k1(root: Path, job: Job = JOB, registered: dict[str, Template] = TEMPLATES) -> Prepared:
    place = Place("local", root, rendezvous="here:0", inherited={"WANTED": "w", "SECRET": "s"})
    return prepare(place, registered, "k1", job)


def test_the_first_intent_and_the_first_end_count(tmp_path: Path) -> None:
    folder = JobFolder.of(tmp_path, "k1")
    folder.make()
    assert folder.record_intent(make_intent("run")) == make_intent("run")
    assert folder.record_intent(make_intent("other")) == make_intent("run")
    running = JobStatus(State.RUNNING)
    assert folder.keep_final(running) == running
    assert folder.find_final() is None
    end = JobStatus(State.FAILED, Cause.EXIT, 3, nodes=("n1", "n2"), started_unix_s=1.5)
    assert folder.keep_final(end) == end
    assert folder.keep_final(JobStatus(State.LOST, Cause.LOST)) == end


def test_preparing_fills_the_command_and_writes_the_inputs(tmp_path: Path) -> None:
    intent, home = prepare_k1(tmp_path).intent, tmp_path / "k1"
    paths = [str(home / name) for name in ("inputs/scenario.json", "inputs/plan.toml", "out")]
    assert intent.command == ["run", *paths, "10", "k1", "here:0"]
    assert (home / "inputs/plan.toml").read_text() == "x = 1\n"
    assert intent.wall_s == 60
    assert intent.environment == {"WANTED": "w", "FIXED": "1", "BOTH": "request"}


def test_a_prepared_job_keeps_its_intent_even_if_the_template_changes(tmp_path: Path) -> None:
    first = prepare_k1(tmp_path).intent
    assert prepare_k1(tmp_path).intent == first
    changed = templates(**FIELDS | {"command": ["other"]})
    assert prepare_k1(tmp_path, registered=changed).intent == first


def test_another_job_under_the_key_changes_nothing(tmp_path: Path) -> None:
    prepare_k1(tmp_path)
    with pytest.raises(InputError, match="key"):
        prepare_k1(tmp_path, replace(JOB, scenario={"a": 2}))
    assert '"a": 1' in (tmp_path / "k1/inputs/scenario.json").read_text()


@pytest.mark.parametrize("wrong", [{"nproc": 2}, {"config": None}, {"template": "x"}])
def test_a_refused_job_leaves_no_folder(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        prepare_k1(tmp_path, replace(JOB, **wrong))
    assert list(tmp_path.iterdir()) == []
