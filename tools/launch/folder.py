"""A job's folder: everything ASAP knows about it, written atomically, and the recorded intent that precedes a
launch.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tools.errors import InputError
from tools.launch.files import CANCELLED, FINAL, INPUTS, INTENT, LOG, OUT, write_whole
from tools.launch.launcher import SCENARIO_FILE, Job, check_job, check_key, get_template
from tools.launch.status import Intent, JobStatus
from tools.launch.template import Template, fill

_LOCK = "submit.lock"


@dataclass(frozen=True)
class JobFolder:
    path: Path

    @classmethod
    def of(cls, root: Path, key: str) -> "JobFolder":
        check_key(key)
        return cls(root.absolute() / key)

    @property
    def inputs(self) -> Path:
        return self.path / INPUTS

    @property
    def out(self) -> Path:
        return self.path / OUT

    @property
    def log(self) -> Path:
        return self.path / LOG

    def make(self, *, for_others: bool = False) -> None:
        """With `for_others` any user may read the inputs and write results, as a container's user must."""
        for folder, mode in ((self.path, 0o755), (self.inputs, 0o755), (self.out, 0o777)):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if for_others:
                folder.chmod(mode)

    def add_input(self, name: str, text: str, *, for_others: bool = False) -> None:
        write_whole(self.inputs / name, text)
        if for_others:
            (self.inputs / name).chmod(0o644)

    def find_intent(self) -> Intent | None:
        text = self.read(INTENT)
        return Intent.from_json(text) if text else None

    def record_intent(self, intent: Intent) -> Intent:
        """The intent that was recorded first."""
        self.write(INTENT, asdict(intent), only_first=True)
        recorded = self.find_intent()
        assert recorded is not None
        return recorded

    def mark_cancelled(self) -> None:
        self.write(CANCELLED, {})

    @property
    def is_cancelled(self) -> bool:
        return (self.path / CANCELLED).exists()

    def find_final(self) -> JobStatus | None:
        text = self.read(FINAL)
        return JobStatus.from_json(text) if text else None

    def keep_final(self, status: JobStatus) -> JobStatus:
        """The first end counts: a job ends once."""
        if not status.has_ended:
            return status
        self.write(FINAL, asdict(status), only_first=True)
        return self.find_final() or status

    def read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write(self, name: str, content: object, *, only_first: bool = False) -> None:
        write_whole(self.path / name, json.dumps(content, indent=1) + "\n", only_first=only_first)

    @contextmanager
    def submission(self) -> Iterator[int]:
        """One submitter at a time; a child that inherits the descriptor holds the lock too."""
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class Place:
    """How a launcher's jobs see the world."""

    launcher: str
    root: Path
    """The service's folder for jobs."""
    rendezvous: str | None = None
    """Value of {rendezvous}; None if the engine has its own way."""
    inherited: Mapping[str, str] = field(default_factory=dict)
    """The service's own environment, of which a template may name variables to pass on."""
    for_others: bool = False
    """Whether jobs run as another user than the service."""


@dataclass(frozen=True)
class Prepared:
    folder: JobFolder
    intent: Intent
    template: Template


def prepare(place: Place, templates: Mapping[str, Template], key: str, job: Job) -> Prepared:
    """Checks everything, writes the inputs and the intent. Another job under the same key is refused."""
    folder = JobFolder.of(place.root, key)
    template = get_template(templates, job, place.launcher)
    check_job(job, template)
    wanted = _intent(place, folder, template, key, job)
    folder.make(for_others=place.for_others)
    with folder.submission():
        intent = folder.find_intent() or _record(place, folder, wanted, job)
    if intent.digest != wanted.digest or intent.launcher != place.launcher:
        raise InputError("key", key, "has started another job; a new job needs a key of its own")
    return Prepared(folder, intent, template)


def _intent(place: Place, folder: JobFolder, template: Template, key: str, job: Job) -> Intent:
    seen = Path(template.kubernetes.mount_path) / key if template.kubernetes else folder.path
    return Intent(
        key=key,
        launcher=place.launcher,
        template=template.name,
        digest=job.digest(),
        mark=f"{key}.{secrets.token_hex(8)}",
        command=fill(template.command, _values(place, seen, key, job)),
        environment=_environment(place, template, job),
        workdir=template.workdir or str(seen),
        nnodes=job.nnodes,
        nproc=job.nproc,
        wall_s=job.wall_s or template.limits.wall_s,
    )


def _record(place: Place, folder: JobFolder, intent: Intent, job: Job) -> Intent:
    """Inputs first: if there is an intent, they are complete."""
    scenario = json.dumps(dict(job.scenario), indent=1) + "\n"
    folder.add_input(SCENARIO_FILE, scenario, for_others=place.for_others)
    if job.config:
        folder.add_input(job.config.name, job.config.text, for_others=place.for_others)
    return folder.record_intent(intent)


def _values(place: Place, seen: Path, key: str, job: Job) -> dict[str, str]:
    numbers = ("steps", "warmup", "profile_steps", "seed", "nnodes", "nproc")
    values = {name: str(getattr(job, name)) for name in numbers}
    values |= {"scenario": str(seen / INPUTS / SCENARIO_FILE), "out": str(seen / OUT), "key": key}
    if place.rendezvous is not None:
        values["rendezvous"] = place.rendezvous
    if job.config:
        values["config"] = str(seen / INPUTS / job.config.name)
    return values


def _environment(place: Place, template: Template, job: Job) -> dict[str, str]:
    """A request replaces the template's value only of a name that it is allowed to set."""
    inherited = {
        name: place.inherited[name] for name in template.environment_inherited if name in place.inherited
    }
    return {**inherited, **template.environment, **job.environment}
