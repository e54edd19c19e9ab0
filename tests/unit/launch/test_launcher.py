"""What a request may ask for, the intent recorded before a launch, waiting, and the engines opened."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.builders import EXAMPLES, templates
from tools.errors import InputError
from tools.launch.engines import open_launcher
from tools.launch.folder import JobFolder, check_key
from tools.launch.launcher import ConfigFile, Job, Launcher, check_job
from tools.launch.status import Handle, JobState, JobStatus, LaunchError
from tools.launch.template import Template, read_templates

LIMITS = {"wall_s": 60, "devices": 8, "nodes": 2}
SLURM = templates("slurm", limits=LIMITS, environment_allowed=["NCCL_DEBUG"])["test"]
SMALL = Job("test", {"model": {}}, nnodes=2, nproc=4)
FIELDS: dict[str, Any] = {
    "command": ["run", "{scenario}", "{config}", "{out}", "{steps}", "{key}", "{rendezvous}"],
    "environment": {"FIXED": "1", "BOTH": "template"},
    "environment_allowed": ["BOTH"],
    "environment_inherited": ["WANTED", "ABSENT"],
}
TEMPLATES = templates(**FIELDS)
JOB = Job("test", {"a": 1}, config=ConfigFile("plan.toml", "x = 1\n"), environment={"BOTH": "request"})
RUNNING, DONE = JobStatus(JobState.RUNNING), JobStatus(JobState.SUCCEEDED)
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
"""


class Scripted(Launcher):
    """Records intents; its engine answers in this order, and None is a controller out of reach."""

    name = "local"
    rendezvous = "here:0"

    def __init__(
        self, root: Path, *answers: JobStatus | None, registered: Mapping[str, Template] = TEMPLATES
    ) -> None:
        super().__init__(root, registered, {"WANTED": "w", "SECRET": "s"}, poll_s=0)
        self.answers = list(answers)

    def submit(self, key: str, job: Job) -> Handle:
        return Handle(self.name, key, self._prepare(key, job).intent.mark)

    def find(self, key: str) -> Handle | None:
        raise NotImplementedError

    def _query(self, folder: JobFolder, handle: Handle) -> JobStatus:
        answer = self.answers.pop(0)
        if answer is None:
            raise LaunchError("cannot contact the controller")
        return answer

    def _end(self, handle: Handle) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    "key", ["", "A", "../x", "a/b", "a.b", "-a", "a-", "a b", "a\n", "é", "a" * 41, ".", "a;id", None, 1]
)
def test_a_key_that_could_mean_more_than_a_name_is_refused(key: object) -> None:
    for plain in ("a", "k1", "session-1-trial-2", "0" * 40):
        check_key(plain)
    with pytest.raises(InputError, match="key"):
        check_key(key)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("nnodes", [3, 0]),
        ("nproc", [5, True, 1.0]),
        ("steps", [0, "1; id"]),
        ("warmup", [-1]),
        ("seed", [-1]),
        ("wall_s", [61, 0]),
        ("environment.LD_PRELOAD", [{"LD_PRELOAD": "x"}]),
        ("environment.NCCL_DEBUG", [{"NCCL_DEBUG": "a\0b"}]),
        ("scenario", [[], {"a": float("nan")}, {"a": {1}}]),
        ("config.name", [ConfigFile(name, "") for name in ("../x", "scenario.json", "", ".bashrc")]),
        ("config.text", [ConfigFile("a.toml", "x" * 1_000_001)]),
    ],
)
def test_a_value_over_a_limit_or_out_of_range_is_refused(field: str, values: list[Any]) -> None:
    for within in (SMALL, replace(SMALL, wall_s=60, environment={"NCCL_DEBUG": "INFO"})):
        check_job(within, SLURM)
    for value in values:
        with pytest.raises(InputError) as error:
            check_job(replace(SMALL, **{field.partition(".")[0]: value}), SLURM)
        assert error.value.path == field, value


def test_preparing_fills_the_command_and_writes_the_inputs(tmp_path: Path) -> None:
    Scripted(tmp_path).submit("k1", JOB)
    intent, home = JobFolder.of(tmp_path, "k1").find_intent(), tmp_path / "k1"
    assert intent is not None
    paths = [str(home / name) for name in ("inputs/scenario.json", "inputs/plan.toml", "out")]
    assert intent.command == ["run", *paths, "10", "k1", "here:0"]
    assert (home / "inputs/plan.toml").read_text() == "x = 1\n"
    assert intent.wall_s == 60
    assert intent.environment == {"WANTED": "w", "FIXED": "1", "BOTH": "request"}


def test_a_key_keeps_its_intent_even_if_the_template_changes_and_another_job_is_refused(
    tmp_path: Path,
) -> None:
    first = Scripted(tmp_path).submit("k1", JOB)
    changed = templates(**FIELDS | {"command": ["other"]})
    assert Scripted(tmp_path, registered=changed).submit("k1", JOB) == first
    with pytest.raises(InputError, match="key"):
        Scripted(tmp_path).submit("k1", replace(JOB, scenario={"a": 2}))
    assert '"a": 1' in (tmp_path / "k1/inputs/scenario.json").read_text()


def test_waiting_continues_while_the_controller_restarts_and_raises_only_without_time_left(
    tmp_path: Path,
) -> None:
    launcher = Scripted(tmp_path, None, RUNNING, None, None, RUNNING, DONE)
    handle = launcher.submit("k1", JOB)
    with pytest.raises(LaunchError):
        launcher.wait(handle, 0)
    assert launcher.wait(handle, 0) == RUNNING
    assert launcher.wait(handle, 60) == launcher.status(handle) == DONE, "the first end is kept"


def test_kubernetes_is_opened_by_its_kubeconfig_and_needs_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kubeflow_trainer_api", reason="needs the extra 'kubernetes'")
    examples, path = read_templates(EXAMPLES), tmp_path / "config"
    with pytest.raises(LaunchError, match="no Kubernetes cluster"):
        open_launcher("kubernetes", tmp_path, examples, {}, path)
    path.write_text(KUBECONFIG)
    assert open_launcher("kubernetes", tmp_path, examples, {}, path).name == "kubernetes"
    monkeypatch.setitem(sys.modules, "kubeflow_trainer_api", None)
    with pytest.raises(InputError, match="asap-sharding\\[kubernetes\\]"):
        open_launcher("kubernetes", tmp_path, examples, {}, path)
