"""The launchers that the registered templates need, ready to use."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.errors import InputError
from tools.launch.launcher import Launcher
from tools.launch.template import Template


@dataclass(frozen=True)
class LaunchSettings:
    """Where jobs live and how engines are reached; read from the environment by the service."""

    root: Path
    """One folder a job: on Slurm seen by the nodes too, on Kubernetes the mount of the templates' claim."""
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

        from tools.launch.kubernetes_api import open_cluster
        from tools.launch.kubernetes_launcher import KubernetesLauncher
    except ImportError as error:
        allowed = "needs the extra 'kubernetes': pip install 'asap-sharding[kubernetes]'"
        raise InputError("template.launcher", "kubernetes", f"{allowed} ({error.name} is missing)") from None
    cluster = open_cluster(settings.kubeconfig, settings.kube_context)
    return KubernetesLauncher(settings.root, templates, cluster)
