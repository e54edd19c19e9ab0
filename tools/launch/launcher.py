"""The one interface of all engines, and the launchers that the registered templates need.

`submit` is idempotent by key: the intent is on disk before the engine hears of the job.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tools.errors import InputError
from tools.launch.files import LogChunk
from tools.launch.job import Job
from tools.launch.status import Handle, JobStatus
from tools.launch.template import Template


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
