"""What a request may state about a job (template, numbers, a scenario, an exported plan), the one interface
of all engines, and the launchers that the registered templates need.

A job is checked against its template before anything is written or started. `submit` is idempotent by key:
the intent is on disk before the engine hears of the job.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue

from tools.errors import InputError
from tools.launch.files import LogChunk
from tools.launch.status import Handle, JobStatus
from tools.launch.template import Template, check_request
from tools.names import did_you_mean

_KEY = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TEXT_LENGTH = 1_000_000
SCENARIO_FILE = "scenario.json"
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


def check_key(key: object) -> None:
    """Keys name folders, Slurm jobs and Kubernetes objects: the strictest rule of the three holds."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        allowed = "must be 1 to 40 lower-case letters, digits or '-', with '-' only inside"
        raise InputError("key", key, allowed)


def get_template(templates: Mapping[str, Template], job: Job, launcher: str) -> Template:
    """The job's template; raises InputError if it is not registered for this launcher."""
    known = {name: template for name, template in templates.items() if template.launcher == launcher}
    if job.template not in known:
        allowed = did_you_mean(job.template, known) if known else f"no template for {launcher} is registered"
        raise InputError("template", job.template, allowed)
    return known[job.template]


def check_job(job: Job, template: Template) -> None:
    """Raises InputError for what is out of range or over the template's limits."""
    for name, (low, high) in _BOUNDS.items():
        _check_number(name, getattr(job, name), low, high)
    limits = template.limits
    if job.wall_s is not None:
        _check_number("wall_s", job.wall_s, 1, limits.wall_s)
    _check_number("nnodes", job.nnodes, 1, limits.nodes)
    if job.nnodes * job.nproc > limits.devices:
        allowed = f"nnodes * nproc must be at most {limits.devices}, the limit of template {template.name}"
        raise InputError("nproc", job.nproc, allowed)
    check_request(job.environment, template.environment_allowed, "environment")
    _check_files(job)


def _check_number(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(name, value, f"must be a whole number from {low} to {high:,}")


def _check_files(job: Job) -> None:
    try:
        is_object = json.dumps(job.scenario, allow_nan=False).startswith("{")
    except (TypeError, ValueError):
        is_object = False
    if not is_object:
        raise InputError("scenario", type(job.scenario).__name__, "must be a JSON object of finite values")
    if job.config is None:
        return
    name = job.config.name
    if not _FILE_NAME.fullmatch(name) or name == SCENARIO_FILE:
        raise InputError("config.name", name, f"must be a plain file name other than {SCENARIO_FILE}")
    if len(job.config.text) > _TEXT_LENGTH:
        allowed = f"must be at most {_TEXT_LENGTH:,} characters"
        raise InputError("config.text", f"{len(job.config.text):,} characters", allowed)


class Launcher(Protocol):
    """Runs jobs of registered templates. Raises InputError for the caller's mistakes, else LaunchError."""

    @property
    def name(self) -> str: ...

    def submit(self, key: str, job: Job) -> Handle:
        """Starts the job, or finds the one that this key has started; another job under it is refused."""
        ...

    def find(self, key: str) -> Handle | None:
        """The job that this key has started, if any."""
        ...

    def status(self, handle: Handle) -> JobStatus: ...

    def wait(self, handle: Handle, timeout_s: float) -> JobStatus:
        """Returns when the job has ended or the time is over, whichever is first."""
        ...

    def logs(self, handle: Handle, offset: int = 0, *, follow: bool = True) -> Iterator[LogChunk]:
        """Output from byte `offset` on, with `follow` until the end; a chunk has the offset to resume at."""
        ...

    def artefacts(self, handle: Handle, to: Path) -> list[Path]:
        """Copies the results there; gives their paths below `to`."""
        ...

    def cancel(self, handle: Handle, timeout_s: float = 60.0) -> JobStatus:
        """Ends the job with all its processes and waits for that; a job that has ended stays as it is."""
        ...


@dataclass(frozen=True)
class LaunchSettings:
    """Where jobs live and how engines are reached; read from the environment by the service."""

    root: Path
    """One folder per job: on Slurm seen by the nodes too, on Kubernetes the mount of the templates' claim."""
    environment: Mapping[str, str]
    """The service's own: local jobs inherit of it what their template names, Slurm's commands see PATH and
    SLURM_CONF."""
    kubeconfig: Path | None = None
    """None: the cluster that the service runs in."""
    kube_context: str | None = None


def open_launchers(templates: Mapping[str, Template], settings: LaunchSettings) -> dict[str, Launcher]:
    """By name; an engine that no template uses is not opened."""
    wanted = {template.launcher for template in templates.values()}
    return {name: _open(name, templates, settings) for name in sorted(wanted)}


def _open(name: str, templates: Mapping[str, Template], settings: LaunchSettings) -> Launcher:
    if name == "local":
        from tools.launch.local import LocalLauncher

        return LocalLauncher(settings.root, templates, settings.environment)
    if name == "slurm":
        from tools.launch.slurm import SlurmLauncher

        names = ("PATH", "SLURM_CONF")
        seen = {key: settings.environment[key] for key in names if key in settings.environment}
        return SlurmLauncher(settings.root, templates, seen)
    return _open_kubernetes(templates, settings)


def _open_kubernetes(templates: Mapping[str, Template], settings: LaunchSettings) -> Launcher:
    try:
        import kubeflow_trainer_api  # noqa: F401

        from tools.launch.kubernetes import KubernetesLauncher, open_cluster
    except ImportError as error:
        allowed = "needs the extra 'kubernetes': pip install 'asap-sharding[kubernetes]'"
        raise InputError("template.launcher", "kubernetes", f"{allowed} ({error.name} is missing)") from None
    cluster = open_cluster(settings.kubeconfig, settings.kube_context)
    return KubernetesLauncher(settings.root, templates, cluster)
