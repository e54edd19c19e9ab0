"""What a request may state about a job (template, numbers, a scenario, an exported plan), and the base of all
launchers: checks, the recorded intent, waiting, log, results and cancelling are the same for every engine.

A job is checked against its template before anything is written or started. `submit` is idempotent by key:
the intent is on disk before the engine hears of the job.
"""

import hashlib
import json
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from pydantic import JsonValue

from tools.errors import InputError
from tools.launch.folder import INPUTS, OUT, JobFolder, copy_results, tail
from tools.launch.status import Handle, Intent, JobStatus, LaunchError
from tools.launch.template import LauncherName, Template, check_request, fill
from tools.names import did_you_mean

SCENARIO_FILE = "scenario.json"
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TEXT_LENGTH = 1_000_000
_BOUNDS = {
    "nnodes": (1, 1_000_000),
    "nproc": (1, 1_000_000),
    "steps": (1, 1_000_000),
    "warmup": (0, 1_000_000),
    "profile_steps": (0, 1_000_000),
    "seed": (0, 2**63 - 1),
}


@dataclass(frozen=True)
class ConfigFile:
    """The plan as its framework reads it, from `tools.frameworks`."""

    name: str
    text: str


@dataclass(frozen=True)
class Job:
    """One run of a template; two jobs with equal fields are the same job."""

    template: str
    scenario: Mapping[str, JsonValue]
    nnodes: int = 1
    nproc: int = 1
    steps: int = 10
    warmup: int = 3
    profile_steps: int = 0
    seed: int = 0
    wall_s: int | None = None
    """None is the template's limit."""
    config: ConfigFile | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def digest(self) -> str:
        """The same for equal jobs, whatever the order of their fields."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def check_job(job: Job, template: Template) -> None:
    """Raises InputError for what is out of range or over the template's limits."""
    limits = template.limits
    bounds = {**_BOUNDS, "wall_s": (1, limits.wall_s), "nnodes": (1, limits.nodes)}
    for name, (low, high) in bounds.items():
        value = getattr(job, name)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not (is_whole and low <= value <= high) and not (name == "wall_s" and value is None):
            raise InputError(name, value, f"must be a whole number from {low} to {high:,}")
    if job.nnodes * job.nproc > limits.devices:
        allowed = f"nnodes * nproc must be at most {limits.devices}, the limit of template {template.name}"
        raise InputError("nproc", job.nproc, allowed)
    check_request(job.environment, template.environment_allowed, "environment")
    try:
        is_object = json.dumps(job.scenario, allow_nan=False).startswith("{")
    except (TypeError, ValueError):
        is_object = False
    if not is_object:
        raise InputError("scenario", type(job.scenario).__name__, "must be a JSON object of finite values")
    if job.config is None:
        return
    name, length = job.config.name, len(job.config.text)
    if not _FILE_NAME.fullmatch(name) or name == SCENARIO_FILE:
        raise InputError("config.name", name, f"must be a plain file name other than {SCENARIO_FILE}")
    if length > _TEXT_LENGTH:
        raise InputError(
            "config.text", f"{length:,} characters", f"must be at most {_TEXT_LENGTH:,} characters"
        )


@dataclass(frozen=True)
class Prepared:
    """A job whose intent and inputs are on disk."""

    folder: JobFolder
    intent: Intent
    template: Template


class Launcher(ABC):
    """Runs jobs of registered templates. Raises InputError for the caller's mistakes, else LaunchError."""

    name: ClassVar[LauncherName]
    rendezvous: ClassVar[str | None] = None
    """Value of {rendezvous}; None if the engine has its own way."""
    for_others: ClassVar[bool] = False
    """Whether jobs run as another user than the service."""

    def __init__(
        self, root: Path, templates: Mapping[str, Template], inherited: Mapping[str, str], poll_s: float
    ) -> None:
        """`root` has one folder per job; of `inherited` a template may name variables to pass on."""
        self.root, self.templates = root, templates
        self._inherited, self._poll_s = inherited, poll_s

    @abstractmethod
    def submit(self, key: str, job: Job) -> Handle:
        """Starts the job, or finds the one that this key has started; another job under it is refused."""

    @abstractmethod
    def find(self, key: str) -> Handle | None:
        """The job that this key has started, if any."""

    @abstractmethod
    def _query(self, folder: JobFolder, handle: Handle) -> JobStatus:
        """What the engine says of a job whose end is not recorded."""

    @abstractmethod
    def _end(self, handle: Handle) -> None:
        """Asks the engine to end a job that is marked as cancelled."""

    def _pause(self, handle: Handle, left_s: float) -> None:
        """Between two looks at a job; `left_s` is the time that is left."""
        time.sleep(min(self._poll_s, left_s))

    def status(self, handle: Handle) -> JobStatus:
        folder = self._folder(handle.key)
        return folder.find_final() or folder.keep_final(self._query(folder, handle))

    def wait(self, handle: Handle, timeout_s: float) -> JobStatus:
        """Returns when the job has ended or the time is over, whichever is first; polls at least once.

        A controller may restart meanwhile: its error is raised only after the timeout.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                status = self.status(handle)
            except LaunchError:
                if time.monotonic() >= deadline_s:
                    raise
            else:
                if status.has_ended or time.monotonic() >= deadline_s:
                    return status
            self._pause(handle, max(0.0, deadline_s - time.monotonic()))

    def log_tail(self, handle: Handle, lines: int) -> list[str]:
        """The last lines of the job's output so far."""
        return tail(self._folder(handle.key).log, lines)

    def artefacts(self, handle: Handle, to: Path) -> list[Path]:
        """Copies the results there; gives their paths below `to`."""
        return copy_results(self._folder(handle.key).out, to)

    def cancel(self, handle: Handle, timeout_s: float = 60.0) -> JobStatus:
        """Ends the job with all its processes and waits for that; a job that has ended stays as it is."""
        folder = self._folder(handle.key)
        with folder.submission():
            folder.mark_cancelled()
        if not self.status(handle).has_ended:
            self._end(handle)
        return self.wait(handle, timeout_s)

    def _folder(self, key: str) -> JobFolder:
        return JobFolder.of(self.root, key)

    def _prepare(self, key: str, job: Job) -> Prepared:
        """Checks everything, writes the inputs and the intent. Another job under the same key is refused."""
        folder, template = self._folder(key), self._get_template(job.template)
        check_job(job, template)
        wanted = self._intent(folder, template, key, job)
        folder.make(for_others=self.for_others)
        with folder.submission():
            intent = folder.find_intent()
            if intent is None:
                # Inputs first: if there is an intent, they are complete.
                files = {SCENARIO_FILE: json.dumps(dict(job.scenario), indent=1) + "\n"}
                files |= {job.config.name: job.config.text} if job.config else {}
                for name, text in files.items():
                    folder.add_input(name, text, for_others=self.for_others)
                intent = folder.record_intent(wanted)
        if intent.digest != wanted.digest or intent.launcher != self.name:
            raise InputError("key", key, "has started another job; a new job needs a key of its own")
        return Prepared(folder, intent, template)

    def _get_template(self, name: str) -> Template:
        own = {key: template for key, template in self.templates.items() if template.launcher == self.name}
        if name not in own:
            allowed = did_you_mean(name, own) if own else f"no template for {self.name} is registered"
            raise InputError("template", name, allowed)
        return own[name]

    def _intent(self, folder: JobFolder, template: Template, key: str, job: Job) -> Intent:
        seen = Path(template.kubernetes.mount_path) / key if template.kubernetes else folder.path
        values = {name: str(getattr(job, name)) for name in _BOUNDS}
        values |= {"scenario": str(seen / INPUTS / SCENARIO_FILE), "out": str(seen / OUT), "key": key}
        values |= {"rendezvous": self.rendezvous} if self.rendezvous is not None else {}
        values |= {"config": str(seen / INPUTS / job.config.name)} if job.config else {}
        names = [name for name in template.environment_inherited if name in self._inherited]
        return Intent(
            key=key,
            launcher=self.name,
            template=template.name,
            digest=job.digest(),
            mark=f"{key}.{secrets.token_hex(8)}",
            command=fill(template.command, values),
            # A request replaces the template's value only of a name that it is allowed to set.
            environment={
                **{name: self._inherited[name] for name in names},
                **template.environment,
                **job.environment,
            },
            workdir=template.workdir or str(seen),
            nnodes=job.nnodes,
            nproc=job.nproc,
            wall_s=job.wall_s or template.limits.wall_s,
        )
